"""The slices of a node on an API server: written once, kept, put right, and degraded in the open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dra_publisher.offers.offer import Offer, Taint, TaintKey
from dra_publisher.slices.pace import AT_ONCE, FIRST_PAUSE
from dra_publisher.slices.pool import DROPS_TAINTS
from dra_publisher.slices.writer import PROBE_AGAIN_SECONDS, Outcome, SliceWriter
from runtime.api import Api
from runtime.errors import ApiError, Forbidden, Invalid, Unreachable
from runtime.resources import RESOURCE_SLICES, Resource
from runtime.store import Key
from tests.builders.binder import FakeClock
from tests.builders.offers import NPUFLEET, REBELLIONS, offer
from tests.builders.slice_server import SliceServer, stored

NODE, UID = "node-atom", "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
NAME = "node-atom-npufleet.io-000"
WITHHELD = [Taint(TaintKey.HANDOVER, "HandOver")]
Offers = Mapping[str, Sequence[Offer]]


class Scene:
    """A publisher beside its server."""

    def __init__(self, server: SliceServer, api: Api) -> None:
        self.server = server
        self.clock = FakeClock()
        self.wakes = 0
        self._woken = asyncio.Event()
        self.writer = SliceWriter(api, NODE, wake=self._wake, clock=self.clock)

    def _wake(self) -> None:
        self.wakes += 1
        self._woken.set()

    async def publish(self, offers: Offers, uid: str = UID) -> Outcome:
        return await self.writer.publish(offers, node_uid=uid)

    async def woken(self, seconds: float = 3.0) -> None:
        async with asyncio.timeout(seconds):
            await self._woken.wait()
        self._woken.clear()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)

    def devices(self, name: str = NAME) -> list[str]:
        return [one["name"] for one in stored(self.server.objects)[name]["spec"].get("devices") or []]

    def writes(self) -> list[tuple[str, str]]:
        """Since the last call."""
        found = [(one.verb, one.name or one.body["metadata"]["name"]) for one in self.server.slice_writes()]
        self.server.requests.clear()
        return found


@asynccontextmanager
async def scene(**server_options: Any) -> AsyncIterator[Scene]:
    async with SliceServer(**server_options) as server, server.client() as api, running(Scene(server, api)) as made:
        yield made


@asynccontextmanager
async def running(made: Scene) -> AsyncIterator[Scene]:
    task = asyncio.create_task(made.writer.run())
    try:
        async with asyncio.timeout(5):
            await made.writer.wait_synced()
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def drops_taints(it: Scene) -> bool:
    return it.writer.keeps_taints is False


async def test_what_is_offered_is_written_once() -> None:
    async with scene() as it:
        offers = {NPUFLEET: [offer(1), offer(2)], REBELLIONS: []}
        done = await it.publish(offers)
        assert (done.written, done.complete, done.left_out, done.conflicts) == (2, True, {}, {})
        assert it.devices() == [offer(1).name, offer(2).name]
        assert it.devices("node-atom-npu.rebellions.ai-000") == []
        it.writes()
        for _ in range(3):
            assert await it.publish(offers) == Outcome()
        assert it.writes() == []


async def test_a_new_process_finds_all_as_it_is_and_writes_nothing() -> None:
    async with SliceServer() as server, server.client() as api:
        offers = {NPUFLEET: [offer(n, taints=WITHHELD if n == 3 else []) for n in range(70)]}
        async with running(Scene(server, api)) as first:
            await first.publish(offers)
            first.writes()
        async with running(Scene(server, api)) as second:
            assert second.writer.existing()[NPUFLEET][offer(3).name] == {"npufleet.io/handover"}
            assert second.writer.existing()[NPUFLEET][offer(4).name] == frozenset()
            device = second.writer.existing_device(NPUFLEET, offer(3).name)
            assert device is not None
            assert device["attributes"]["iommuGroup"] == {"int": 3}
            assert second.writer.existing_device(NPUFLEET, "vfio-0000-99-00-0") is None
            assert (await second.publish(offers)).written == 0
            assert second.writes() == []


async def test_nothing_is_published_before_the_slices_are_known() -> None:
    async with SliceServer() as server, server.client() as api:
        with pytest.raises(Unreachable, match="not known yet"):
            await Scene(server, api).publish({NPUFLEET: []})


async def test_t19_slices_that_were_wiped_come_back_with_a_newer_generation() -> None:
    async with scene() as it:
        offers = {NPUFLEET: [offer(n) for n in range(200)]}
        await it.publish(offers)
        before = stored(it.server.objects)
        for name in before:
            it.server.objects.delete(RESOURCE_SLICES, name)
        await it.woken()
        assert (await it.publish(offers)).complete
        after = stored(it.server.objects)
        assert set(after) == set(before)
        assert {one["spec"]["pool"]["generation"] for one in after.values()} == {2}


async def test_somebody_who_insists_is_answered_ever_later_but_new_offers_at_once() -> None:
    async with scene() as it:
        offers = {NPUFLEET: [offer(1)]}
        await it.publish(offers)
        waited: list[float] = []
        for number in range(AT_ONCE + 2):
            it.server.objects.delete(RESOURCE_SLICES, NAME)
            await it.until(lambda: not it.writer.existing())
            done = await it.publish(offers)
            if done.waits is not None:
                assert not done.complete
                waited.append(done.waits)
                assert it.writer.existing() == {}
                it.clock.advance(done.waits)
                assert (await it.publish(offers)).complete
            else:
                assert number < AT_ONCE
        assert waited == [FIRST_PAUSE, 2 * FIRST_PAUSE]
        it.server.objects.delete(RESOURCE_SLICES, NAME)
        await it.until(lambda: not it.writer.existing())
        assert (await it.publish({NPUFLEET: [offer(1), offer(2)]})).written == 1


async def test_the_end_of_the_wait_wakes() -> None:
    async with scene() as it:
        await it.publish({NPUFLEET: []})
        for _ in range(AT_ONCE + 1):
            it.server.objects.delete(RESOURCE_SLICES, NAME)
            await it.until(lambda: not it.writer.existing())
            if it.writer.existing() == {}:
                done = await it.publish({NPUFLEET: []})
        assert done.waits == FIRST_PAUSE
        before = it.wakes
        await it.woken()
        await it.until(lambda: it.wakes > before)


async def test_own_writes_are_no_news_and_others_are_within_a_moment() -> None:
    async with scene() as it:
        await it.until(lambda: it.server.watching == 1)
        for number in range(1, 6):
            await it.publish({NPUFLEET: [offer(number)], REBELLIONS: []})
            assert it.writer._timer is None
        await it.publish({NPUFLEET: [offer(1)]})
        assert it.writer._timer is None
        assert it.wakes == 0
        item = stored(it.server.objects)[NAME]
        it.server.objects.edit(RESOURCE_SLICES, NAME, spec={**item["spec"], "devices": []})
        await it.woken(seconds=1)
        assert (await it.publish({NPUFLEET: [offer(1)]})).written == 1
        assert it.devices() == [offer(1).name]


async def test_a_write_that_met_a_newer_slice_is_planned_again() -> None:
    async with scene() as it:
        await it.publish({NPUFLEET: [offer(1)]})
        it.server.silence_watches()
        item = stored(it.server.objects)[NAME]
        it.server.objects.edit(RESOURCE_SLICES, NAME, spec={**item["spec"], "devices": []})
        assert (await it.publish({NPUFLEET: [offer(1), offer(2)]})).complete
        assert it.devices() == [offer(1).name, offer(2).name]
        it.server.objects.delete(RESOURCE_SLICES, NAME)
        assert (await it.publish({NPUFLEET: [offer(3)]})).complete
        assert it.devices() == [offer(3).name]
        it.server.objects.delete(RESOURCE_SLICES, NAME)
        assert (await it.publish({})).complete
        assert stored(it.server.objects) == {}


async def test_a_slice_that_is_deleted_before_its_write_is_answered_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene() as it:
        api, strikes = it.writer._api, [1]
        real = api.create

        async def create(resource: Resource, body: dict[str, Any], **more: Any) -> dict[str, Any]:
            answer = await real(resource, body, **more)
            name = body["metadata"]["name"]
            if strikes:
                strikes.pop()
                it.server.objects.delete(RESOURCE_SLICES, name)
                await it.until(lambda: Key("", name) in it.writer._store._tombstones)
            return answer

        monkeypatch.setattr(api, "create", create)
        assert not (await it.publish({NPUFLEET: [offer(1)]})).complete
        await it.woken()
        assert (await it.publish({NPUFLEET: [offer(1)]})).complete
        assert it.devices() == [offer(1).name]


async def test_a_create_whose_answer_was_lost_is_found_again() -> None:
    async with scene() as it:
        it.server.silence_watches()
        fault = it.server.fail("POST", RESOURCE_SLICES, after=True, drop=True)
        with pytest.raises(ApiError):
            await it.publish({NPUFLEET: [offer(1)]})
        it.server.heal(fault)
        assert (await it.publish({NPUFLEET: [offer(1)]})).complete
        assert it.devices() == [offer(1).name]


async def test_a_refusal_by_rights_is_told() -> None:
    async with scene() as it:
        it.server.fail("POST", RESOURCE_SLICES, code=403, reason="Forbidden", message="not yours")
        with pytest.raises(Forbidden, match="not yours"):
            await it.publish({NPUFLEET: [offer(1)]})


async def test_the_name_of_another_nodes_slice_is_left_to_it() -> None:
    async with scene() as it:
        spec = {"driver": "x", "nodeName": "node", "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1}}
        it.server.objects.create(RESOURCE_SLICES, {"metadata": {"name": NAME}, "spec": spec})
        assert (await it.publish({NPUFLEET: [offer(1)]})).complete
        names = [name for name in stored(it.server.objects) if name != NAME]
        assert len(names) == 1
        assert names[0].startswith("node-atom-npufleet.io-")
        assert it.devices(names[0]) == [offer(1).name]
        it.writes()
        assert (await it.publish({NPUFLEET: [offer(1)]})).written == 0


async def test_without_taints_a_withheld_device_is_left_out_and_never_offered_bare() -> None:
    async with scene(keeps_taints=False) as it:
        await it.publish({NPUFLEET: [offer(1), offer(2)]})
        assert not drops_taints(it)
        done = await it.publish({NPUFLEET: [offer(1, taints=WITHHELD), offer(2)]})
        assert done.left_out == {(NPUFLEET, offer(1).name): DROPS_TAINTS}
        assert done.complete
        assert done.dropped == frozenset({"taints"})
        assert drops_taints(it)
        assert it.devices() == [offer(2).name]
        bodies = [one.body for one in it.server.slice_writes()]
        assert [[device["name"] for device in body["spec"]["devices"]] for body in bodies] == [
            [offer(1).name, offer(2).name],
            [offer(2).name],
        ]
        it.writes()
        assert (await it.publish({NPUFLEET: [offer(1, taints=WITHHELD), offer(2)]})).written == 0
        assert it.writes() == []
        assert it.server.dry_runs == 1
        assert (await it.publish({NPUFLEET: [offer(1), offer(2)]})).left_out == {}


async def test_a_server_that_learns_taints_is_asked_again_in_time() -> None:
    async with scene(keeps_taints=False) as it:
        offers = {NPUFLEET: [offer(1, taints=WITHHELD)]}
        await it.publish(offers)
        it.server.keeps_taints = True
        assert (await it.publish(offers)).left_out != {}
        it.clock.advance(PROBE_AGAIN_SECONDS)
        done = await it.publish(offers)
        assert (done.left_out, done.dropped) == ({}, frozenset())
        assert it.writer.existing() == {NPUFLEET: {offer(1).name: {"npufleet.io/handover"}}}


async def test_a_server_that_forgets_taints_is_noticed_by_its_answer() -> None:
    async with scene() as it:
        await it.publish({REBELLIONS: [offer(1, driver=REBELLIONS, taints=WITHHELD)], NPUFLEET: [offer(2)]})
        it.server.keeps_taints = False
        done = await it.publish({REBELLIONS: [], NPUFLEET: [offer(2, taints=WITHHELD)]})
        assert set(done.left_out) == {(NPUFLEET, offer(2).name)}
        assert it.devices() == []
        assert done.complete


async def test_times_of_taints_stay_when_another_device_changes() -> None:
    async with scene() as it:
        await it.publish({NPUFLEET: [offer(1, taints=WITHHELD)]})
        (taint,) = stored(it.server.objects)[NAME]["spec"]["devices"][0]["taints"]
        it.server.objects.version += 7
        await it.publish({NPUFLEET: [offer(1, taints=WITHHELD), offer(2)]})
        assert stored(it.server.objects)[NAME]["spec"]["devices"][0]["taints"] == [taint]


async def test_a_device_that_the_server_refuses_costs_itself_only() -> None:
    async with scene() as it:
        it.server.refuses = lambda device: [(".name", "I do not like it")] if device["name"] == offer(2).name else []
        done = await it.publish({NPUFLEET: [offer(1), offer(2), offer(3)]})
        assert it.devices() == [offer(1).name, offer(3).name]
        assert done.left_out == {
            (NPUFLEET, offer(2).name): "the API server refuses it: spec.devices[1].name: I do not like it"
        }
        it.writes()
        assert (await it.publish({NPUFLEET: [offer(1), offer(2), offer(3)]})).left_out == done.left_out
        assert it.writes() == []
        changed = offer(2, attributes={"type": "vfio"})
        it.server.refuses = lambda device: []
        assert (await it.publish({NPUFLEET: [offer(1), changed, offer(3)]})).left_out == {}


async def test_a_refusal_that_names_no_device_is_told() -> None:
    async with scene() as it:
        it.server.fail("POST", RESOURCE_SLICES, code=422, reason="Invalid", message="no such pool")
        with pytest.raises(Invalid, match="no such pool"):
            await it.publish({NPUFLEET: [offer(1)]})


async def test_a_server_that_stores_something_else_is_told_and_not_written_to_for_ever() -> None:
    async with scene() as it:
        original = it.server._default

        def meddled(body: dict[str, Any], old: dict[str, Any] | None) -> None:
            original(body, old)
            for device in body["spec"].get("devices") or []:
                device["attributes"]["webhook"] = {"bool": True}

        it.server._default = meddled  # type: ignore[method-assign]
        done = await it.publish({NPUFLEET: [offer(1)]})
        assert (done.written, done.complete) == (1, False)
        assert "is not what was written" in (done.problem or "")
        outcomes = [await it.publish({NPUFLEET: [offer(1)]}) for _ in range(20)]
        assert sum(one.written for one in outcomes) == AT_ONCE
        assert outcomes[-1].waits is not None


async def test_another_plugin_under_our_driver_takes_the_pool_and_gives_it_back() -> None:
    async with scene() as it:
        await it.publish({NPUFLEET: [offer(1)]})
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NPUFLEET, "nodeName": NODE, "pool": pool}
        it.server.objects.create(RESOURCE_SLICES, {"metadata": {"name": f"{NODE}-npufleet.io-x1y2z"}, "spec": spec})
        await it.woken()
        assert "x1y2z" in (it.writer.others([NPUFLEET]).of(NPUFLEET, offer(1).address) or "")
        done = await it.publish({NPUFLEET: [offer(1)]})
        assert "x1y2z" in done.conflicts[NPUFLEET]
        assert list(stored(it.server.objects)) == [f"{NODE}-npufleet.io-x1y2z"]
        it.server.objects.delete(RESOURCE_SLICES, f"{NODE}-npufleet.io-x1y2z")
        await it.woken()
        assert (await it.publish({NPUFLEET: [offer(1)]})).conflicts == {}
        assert it.devices() == [offer(1).name]


async def test_slices_of_other_nodes_and_drivers_are_not_touched() -> None:
    async with scene() as it:
        for node, driver in (("other", NPUFLEET), (NODE, "gpu.example.com")):
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": node, "pool": pool}
            it.server.objects.create(RESOURCE_SLICES, {"metadata": {"name": f"{node}-{driver}-x1y2z"}, "spec": spec})
        before = stored(it.server.objects)
        await it.publish({NPUFLEET: [offer(1)]})
        await it.publish({})
        assert stored(it.server.objects) == before


async def test_a_node_of_another_uid_owns_the_slices_anew() -> None:
    async with scene() as it:
        await it.publish({NPUFLEET: [offer(1)]})
        await it.publish({NPUFLEET: [offer(1)]}, uid="00000000-0000-4000-8000-000000000001")
        (owner,) = stored(it.server.objects)[NAME]["metadata"]["ownerReferences"]
        assert owner["uid"] == "00000000-0000-4000-8000-000000000001"
