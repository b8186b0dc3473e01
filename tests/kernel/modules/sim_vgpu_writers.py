"""Processes that write types at the same time as others, and notice when they got what they must not."""

from __future__ import annotations

import errno
import os
import random

from tests.kernel.modules.sim_vgpu_card import IDS, Card, Function


def seize(card: Card, number: int, gate: int, opener: int, times: int = 50) -> None:
    """Take all, look whether a sibling has something too, give it back. Begins when all have closed the opener."""
    paths = [function.path / "nvidia/current_vgpu_type" for function in card.functions()]
    own, siblings = os.open(paths[number], os.O_WRONLY), [os.open(path, os.O_RDONLY) for path in paths]
    del siblings[number]
    whole, nothing = str(IDS[48]).encode(), b"0"
    os.close(opener)
    os.read(gate, 1)
    while times:
        try:
            os.pwrite(own, whole, 0)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            continue
        try:
            assert {os.pread(sibling, 16, 0) for sibling in siblings} == {b"0\n"}
        finally:
            os.pwrite(own, nothing, 0)
        times -= 1


def scribble(function: Function, writes: int) -> None:
    """Set and clear at random; refusals are part of the game, anything but EIO is a fault."""
    chance = random.Random(os.getpid())
    for _ in range(writes):
        try:
            function.set(chance.choice([0, 0, IDS[12], IDS[24], IDS[16]]))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        function.creatable()


def scribble_until_gone(function: Function) -> None:
    while True:
        try:
            function.set(IDS[12])
            function.set(0)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return
            if error.errno != errno.EIO:
                raise
