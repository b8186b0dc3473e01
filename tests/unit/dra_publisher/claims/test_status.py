"""What is told of prepared devices in the claim's status: behind the answer, once, and never in anybody's way."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dra_publisher.claims.status import ClaimStatuses
from node_host.evidence.checkpoint import PreparedClaim
from runtime.errors import Conflict, Forbidden, NotFound, Unreachable
from runtime.resources import RESOURCE_CLAIMS
from tests.builders.claims_world import DRIVER, FIRST, NODE, OTHER_DRIVER, SECOND, World, offer, result, vfio

AT = datetime(2026, 12, 1, 1, 2, 3, tzinfo=UTC)


def statuses(world: World) -> ClaimStatuses:
    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    waited: list[float] = []
    return ClaimStatuses(world.api, "npufleet-dra-publisher", now=lambda: AT, sleep=sleep)


def entry(world: World, uid: str) -> PreparedClaim:
    return world.record().claims[uid]


async def test_each_device_is_told_to_be_ready_with_its_share(world: World) -> None:
    share = "6f0f7d1e-0000-4000-8000-0000000000aa"
    world.offer(offer(SECOND, driver=OTHER_DRIVER))
    ref = world.claim("vm", result(vfio(FIRST), "a", shareID=share), result(vfio(SECOND), "b", driver=OTHER_DRIVER))
    await world.prepared(ref)
    await world.prepared(ref, OTHER_DRIVER)
    await world.claims.statuses.write_all()
    told = world.api.objects.get(RESOURCE_CLAIMS, "vm", "team-a")["status"]["devices"]
    keys = [(one["driver"], one["pool"], one["device"], one.get("shareID")) for one in told]
    assert keys == [(DRIVER, NODE, vfio(FIRST), share), (OTHER_DRIVER, NODE, vfio(SECOND), None)]
    for one, address in zip(told, (FIRST, SECOND), strict=True):
        (condition,) = one["conditions"]
        assert {key: condition[key] for key in ("type", "status", "reason", "message")} == {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": f"{address} is prepared",
        }


async def test_what_the_claim_says_already_is_not_written_again(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    await world.claims.statuses.write_all()
    before = world.api.calls.count("apply")
    assert before == 1
    world.restart()
    await world.prepared(ref)
    await world.claims.statuses.write_all()
    assert world.api.calls.count("apply") == before


async def test_nothing_is_told_of_a_claim_that_was_taken_back(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    await world.unprepare(ref)
    await world.claims.statuses.write_all()
    assert "apply" not in world.api.calls


async def test_what_one_driver_takes_back_leaves_the_word_of_the_other(world: World) -> None:
    world.offer(offer(SECOND, driver=OTHER_DRIVER))
    ref = world.claim("vm", result(vfio(FIRST), "a"), result(vfio(SECOND), "b", driver=OTHER_DRIVER))
    await world.prepared(ref)
    await world.prepared(ref, OTHER_DRIVER)
    await world.unprepare(ref, driver=OTHER_DRIVER)
    await world.claims.statuses.write_all()
    told = world.api.objects.get(RESOURCE_CLAIMS, "vm", "team-a")["status"]["devices"]
    assert [one["driver"] for one in told] == [DRIVER]


async def test_the_answer_does_not_wait_for_it(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    assert "apply" not in world.api.calls


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (Unreachable(0, "", "refused"), 3),
        (Forbidden(403, "Forbidden", "no"), 1),
        (NotFound(404, "NotFound", "gone"), 1),
        (Conflict(409, "Conflict", "uid"), 1),
    ],
)
async def test_a_server_that_refuses_ends_it(world: World, error: Exception, tries: int) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    writer = statuses(world)
    tried = 0

    def fault(when: str, verb: str) -> None:
        nonlocal tried
        tried += when == "before"
        raise error

    world.api.fault = fault
    writer.tell(entry(world, ref.uid))
    writer.tell(entry(world, ref.uid))
    await writer.write_all()
    assert tried == tries


async def test_another_claim_of_the_name_is_not_told_anything(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    old = entry(world, ref.uid)
    world.delete(ref)
    world.claim("vm", vfio(FIRST))
    writer = statuses(world)
    writer.tell(old)
    await writer.write_all()
    assert "devices" not in world.api.objects.get(RESOURCE_CLAIMS, "vm", "team-a")["status"]
