"""Random histories of a node's claims against a model of who holds what: whatever happens, no device is given twice,
none is lost, and an answer that was given is given again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crds.device_names import address_of
from dra_publisher.claims.claims import Claims
from dra_publisher.claims.looking import DeviceLooks
from dra_publisher.claims.recording import Looks
from dra_publisher.claims.shape import Wanted
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef
from runtime.resources import RESOURCE_CLAIMS
from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import CARD, COMPANION, FIRST, SECOND, World, machine, vfio, world_of
from tests.builders.inline import InlineCalls

T = TypeVar("T")

_EXAMPLES = 2000
_CLAIMS = 4
_DEVICES = (FIRST, SECOND, CARD, COMPANION)
Answers = tuple[AnsweredDevice, ...]


@dataclass
class Held:
    """What one claim has. ``answer`` None: nobody was told of it (it was recovered)."""

    devices: frozenset[str]
    boot: str
    answer: Answers | None


@dataclass
class Model:
    """Who holds what, as it should be."""

    held: dict[str, Held] = field(default_factory=dict)
    is_lost: bool = False

    def holder_of(self, address: str, *, but: str) -> str | None:
        return next((uid for uid, one in self.held.items() if uid != but and address in one.devices), None)


class History:
    """One node, and what happens to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = Model()
        self.refs: dict[int, ClaimRef] = {}
        self.allocated: dict[int, frozenset[str]] = {}
        self.number = 0

    async def make(self, claim: int, devices: frozenset[str]) -> None:
        """The claim is made, or gets these devices instead of those that it has."""
        if claim in self.refs:
            self.world.allocate(self.refs[claim], *(vfio(one) for one in sorted(devices)))
        else:
            self.number += 1
            uid = f"00000000-0000-4000-8000-{self.number:012d}"
            self.refs[claim] = self.world.claim(f"c{claim}", *(vfio(one) for one in sorted(devices)), uid=uid)
        self.allocated[claim] = devices

    async def delete(self, claim: int) -> None:
        if claim in self.refs:
            self.world.delete(self.refs.pop(claim))
            del self.allocated[claim]

    async def prepare(self, claim: int, devices: frozenset[str]) -> None:
        """A claim that is not there yet is made first, with these devices; none: it stays away."""
        if claim not in self.refs and devices:
            await self.make(claim, devices)
        ref = self.refs.get(claim) or ClaimRef("team-a", f"c{claim}", "none")
        answer = (await self.world.prepare(ref))[ref.uid]
        expected = self._expected(claim, ref.uid)
        if expected is None:
            assert isinstance(answer, str), f"{answer} instead of a refusal"
            return
        assert not isinstance(answer, str), answer
        assert frozenset(str(address_of(one.device)) for one in answer) == expected
        before = self.model.held.get(ref.uid)
        if before is not None and before.answer is not None and before.devices == expected:
            assert answer == before.answer
        self.model.held[ref.uid] = Held(expected, self.world.boot_id, answer)
        there = self.world.cdi_devices()
        assert all(name in there for one in answer for name in one.cdi_ids)

    def _expected(self, claim: int, uid: str) -> frozenset[str] | None:
        devices = self.allocated.get(claim)
        if not devices or self.model.is_lost:
            return None
        mine = self.model.held.get(uid)
        if mine is not None and mine.boot == self.world.boot_id and mine.devices != devices:
            return None
        if mine is not None and mine.boot == self.world.boot_id and mine.answer is not None:
            return devices
        if any(self.model.holder_of(address, but=uid) for address in devices):
            return None
        return devices

    async def unprepare(self, claim: int) -> None:
        ref = self.refs.get(claim) or ClaimRef("team-a", f"c{claim}", "none")
        assert await self.world.unprepare(ref) == {ref.uid: None}
        self.model.held.pop(ref.uid, None)

    async def restart(self) -> None:
        self.world.store.close()
        self.world.restart()
        await self.world.claims.start()

    async def complete(self) -> None:
        await self.world.claims.complete()

    async def lose_files(self) -> None:
        shutil.rmtree(self.world.cdi, ignore_errors=True)

    async def corrupt(self) -> None:
        path = self.world.checkpoint_path
        if path.exists():
            path.write_bytes(path.read_bytes()[:-7] + b"x")
            self.model = Model(is_lost=True)

    async def collect(self) -> None:
        """Long enough for everything that is gone to be seen to be gone."""
        if self.model.is_lost:
            self.model.is_lost = False
            for claim, devices in self.allocated.items():
                if devices:
                    self.model.held.setdefault(self.refs[claim].uid, Held(devices, self.world.boot_id, None))
        await self.world.claims.collector.round()
        self.world.now += 61
        await self.world.claims.collector.round()
        there = {self.refs[claim].uid: devices for claim, devices in self.allocated.items()}
        for uid, held in list(self.model.held.items()):
            if not held.devices <= there.get(uid, frozenset()):
                del self.model.held[uid]

    async def reboot(self) -> None:
        self.number += 1
        self.world.boot_id = f"{self.number:08d}-0000-4000-8000-000000000000"
        self.world.wipe_tmpfs()
        await self.restart()

    async def check(self) -> None:
        """What is recorded is what the model has."""
        self.world.holders(FIRST)
        if self.model.is_lost:
            return
        record = self.world.record()
        assert record.doubt is None
        found = {uid: frozenset(one.address for one in claim.devices) for uid, claim in record.claims.items()}
        assert found == {uid: held.devices for uid, held in self.model.held.items()}
        taken = [address for devices in found.values() for address in devices]
        # What was recovered may overlap: the API server gave a device to another while the first was not taken back.
        if all(held.answer is not None for held in self.model.held.values()):
            assert len(taken) == len(set(taken))


_CLAIM = st.integers(0, _CLAIMS - 1)
_SOME = st.frozensets(st.sampled_from(_DEVICES), max_size=2)
_STEP = st.one_of(
    st.tuples(st.just("make"), _CLAIM, _SOME),
    st.tuples(st.just("prepare"), _CLAIM, _SOME),
    st.tuples(st.just("prepare"), _CLAIM, _SOME),
    st.tuples(st.just("prepare"), _CLAIM, _SOME),
    st.tuples(st.just("unprepare"), _CLAIM),
    st.tuples(st.just("delete"), _CLAIM),
    st.tuples(st.sampled_from(["restart", "lose_files", "corrupt", "collect", "reboot", "complete"])),
)


class _Inline(Claims):
    """Works on files at once, where it is called: threads would be most of what an example costs."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class _InlineLooks(DeviceLooks):
    """Looks likewise."""

    async def then_write(self, wanted: Sequence[Wanted], write: Callable[[Looks], T]) -> T:
        return write(await self.each(wanted))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in memory, where nothing is synced."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("tests.builders.claims_world.Claims", _Inline)
    monkeypatch.setattr("dra_publisher.claims.claims.DeviceLooks", _InlineLooks)
    monkeypatch.setattr("tests.builders.claims_world.BoundedCalls", InlineCalls)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as directory:
        yield Path(directory)


def test_random_histories_of_claims_end_as_the_model_says(fast: Path) -> None:
    ran = steps = given_out = 0
    with machine(fast) as kernel, asyncio.Runner() as runner:

        async def play(history: list[tuple[object, ...]]) -> None:
            nonlocal steps, given_out
            node = History(_fresh(kernel))
            await node.world.claims.start()
            for name, *arguments in history:
                await getattr(node, str(name))(*arguments)
                await node.check()
                steps += 1
                given_out += len(node.model.held)
            node.world.store.close()

        @settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
        @given(st.lists(_STEP, min_size=2, max_size=12))
        def check(history: list[tuple[object, ...]]) -> None:
            nonlocal ran
            ran += 1
            runner.run(play(history))

        check()
    print(f"{ran} examples, {steps} steps, {given_out} devices held after them")
    assert ran >= _EXAMPLES and given_out > 3 * _EXAMPLES


def _fresh(kernel: SimulatedKernel) -> World:
    world = world_of(kernel)
    world.wipe_tmpfs()
    world.wipe_disk()
    assert not list(world.api.objects.items(RESOURCE_CLAIMS))
    return world
