"""The spaces that are walked through whole: which devices a host has, and what is tried on it.

Together they hold every host of at most three devices in at most two IOMMU groups, up to what cannot matter: devices of
one group are interchangeable, groups do not see each other (which the spaces of two groups show), and what a third
device of a group can be is one of each kind of place, entry and order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.unit.planner_space.states import (
    GONE,
    JOURNALS,
    NATIVE,
    ORDERS,
    PLACES,
    PORT,
    PUBLISHED,
    RARE_JOURNALS,
    RARE_PLACES,
    UNREADABLE,
    USED,
    VETOED,
    Device,
    Host,
    host_of,
    hosts,
    letters,
)

FLAGS: Final = (USED, VETOED, PUBLISHED, GONE, UNREADABLE)
# Orders that differ for the binder; VGPU and the like are Container to it, which the spaces of one and two show.
USUAL: Final = (None, "refuse", "bind", "container", "restore", "leave", "hold")
EVERY: Final = (*USUAL, "vgpu", "hold-container")

USUAL_JOURNALS: Final = ("none", "ours", "ours-driverless", "companion")

_NONE, _OWN, _OTHER, _VFIO, _BARE_VFIO, _STUB, _NONE_LEFT, _OWN_LEFT = PLACES
_MAIN: Final = (_NONE, _OWN, _VFIO)

EVERYTHING: Final = letters((*PLACES, *RARE_PLACES), (*JOURNALS, *RARE_JOURNALS), (None, *ORDERS), (None, *FLAGS))
WIDE: Final = letters(PLACES, (*USUAL_JOURNALS, "other-boot"), EVERY)
MIDDLE: Final = letters((*_MAIN, _BARE_VFIO, _STUB, _NONE_LEFT, _OWN_LEFT), ("none", "ours", "companion"), USUAL)
FLAGGED: Final = letters(_MAIN, ("none", "ours", "companion"), USUAL, FLAGS)
PLAIN: Final = letters(_MAIN, ("none", "ours", "companion"), USUAL)
NARROW: Final = letters(_MAIN, ("none", "ours", "companion"), (None, "refuse", "bind", "container", "restore", "hold"))
LEAN: Final = letters(_MAIN, ("none", "ours", "companion"), (None, "bind", "container", "restore"))
TINY: Final = letters((_OWN, _VFIO), ("none", "ours"), (None, "bind", "refuse", "container", "restore"))
TINY_FLAGGED: Final = letters(
    (_OWN, _VFIO), ("none", "ours", "companion"), (None, "bind", "container"), (USED, VETOED, GONE)
)


@dataclass(frozen=True)
class Space:
    """Hosts, whether every single failure is tried on them, and how many states and transitions that is at least."""

    name: str
    hosts: Callable[[], Iterator[Host]]
    failures: bool
    states: int
    transitions: int

    def __str__(self) -> str:
        return self.name


def _one_device() -> Iterator[Host]:
    yield from hosts([20], EVERYTHING)
    yield from hosts([None], EVERYTHING)


def _with_a_bridge() -> Iterator[Host]:
    """A port in the group of two devices, on its driver or on none; ordered by mistake, or not."""
    for driver in (PORT, None, NATIVE):
        for order in (None, "bind", "container", "restore"):
            port = Device(driver=driver, order=order, bridge=True)
            for host in hosts([20, 20], LEAN, LEAN):
                yield host._replace(groups=(20, 20, 20), devices=(*host.devices, port))


def _drawn() -> Iterator[Host]:
    """Three devices of every kind, in all ways to share groups, drawn by a fixed seed."""
    chance = random.Random(20261130)
    ways = ([20, 20, 20], [20, 20, 21], [20, 21, 20], [21, 20, 20], [20, 21, 22], [None, 20, 20], [None, 20, 21])
    for number in range(15000):
        yield host_of(ways[number % len(ways)], [chance.choice(EVERYTHING) for _ in range(3)])


SPACES: Final[tuple[Space, ...]] = (
    Space("one device, everything, failures", _one_device, True, 27700, 22800),
    Space("two of a group, everything", lambda: hosts([20, 20], WIDE, WIDE), False, 54000, 41500),
    Space("two of a group, failures", lambda: hosts([20, 20], MIDDLE, MIDDLE), True, 36000, 79000),
    Space(
        "two of a group, one not to be touched, failures", lambda: hosts([20, 20], FLAGGED, NARROW), True, 33000, 41000
    ),
    Space("two groups, failures", lambda: hosts([20, 21], NARROW, NARROW), True, 11500, 31400),
    Space("one without a group, failures", lambda: hosts([None, 20], NARROW, NARROW), True, 10900, 22700),
    Space("three of a group", lambda: hosts([20, 20, 20], PLAIN, PLAIN, PLAIN), False, 50300, 35400),
    Space("three of a group, failures", lambda: hosts([20, 20, 20], TINY, TINY, TINY), True, 13800, 22000),
    Space(
        "three of a group, one not to be touched",
        lambda: hosts([20] * 3, TINY_FLAGGED, LEAN, LEAN),
        False,
        32000,
        19500,
    ),
    Space("two of a group and one of another", lambda: hosts([20, 20, 21], LEAN, LEAN, LEAN), False, 24600, 22200),
    Space(
        "two of a group and one of another, failures", lambda: hosts([20, 20, 21], TINY, TINY, TINY), True, 26900, 60500
    ),
    Space("two of a group and a bridge", _with_a_bridge, False, 8500, 5900),
    Space("three devices of any kind, drawn", _drawn, False, 22900, 8400),
)


def small_space() -> Iterator[Host]:
    """A little of everything, for planners that have a bug."""
    alone = letters(_MAIN, ("none", "ours", "companion", "other-boot"), EVERY, (None, *FLAGS))
    pair = letters(_MAIN, ("none", "ours", "companion"), (None, "refuse", "bind", "restore", "hold"))
    used = letters((_OWN,), ("none",), (None, "bind"), (USED, VETOED))
    yield from hosts([20], alone)
    yield from hosts([20, 20], pair, pair)
    yield from hosts([20, 20], used, pair)
    yield from hosts([20, 21], letters((_OWN,), ("none",), ("bind",)), pair)
