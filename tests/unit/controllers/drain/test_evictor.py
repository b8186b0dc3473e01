"""One eviction at a time: never twice in short order, and the words of whoever refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controllers.node_policy.drain.evictor import AGAIN_SECONDS, Evictor
from controllers.node_policy.drain.pods import Pod, read_pod
from runtime.resources import PODS
from tests.builders.fake_api import FakeApi
from tests.builders.workloads import VM_LABELS, pod

BUDGET = {"reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods and has 1 currently"}


class Bench:
    def __init__(self, server: FakeApi, evictor: Evictor) -> None:
        self.server, self.evictor = server, evictor
        self.now = 0.0
        self.leads = True

    def add(self, name: str = "p", **given: object) -> Pod:
        return read_pod(self.server.objects.create(PODS, pod(name, **given)))  # type: ignore[arg-type]

    @property
    def evictions(self) -> int:
        return len([request for request in self.server.calls("POST", PODS) if request.subresource == "eviction"])


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with FakeApi() as server, server.client("npufleet-node-policy") as api:
        found: Bench
        found = Bench(server, Evictor(api, may_write=lambda: found.leads, clock=lambda: found.now))
        yield found


async def test_accepted_eviction_carries_the_uid_and_is_not_asked_for_again() -> None:
    async with bench() as found:
        victim = found.add()
        assert await found.evictor.evict(victim) == ""
        assert found.evictor.accepted({victim.uid, "other"}) == {victim.uid}
        [request] = found.server.calls("POST", PODS)
        assert request.body["deleteOptions"]["preconditions"] == {"uid": victim.uid}
        assert await found.evictor.evict(victim) == ""
        assert found.evictions == 1


async def test_budget_that_refuses_is_quoted_and_asked_again_after_a_while() -> None:
    async with bench() as found:
        victim = found.add()
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        fault = found.server.fail("POST", PODS, code=429, reason="TooManyRequests", message=message, causes=[BUDGET])
        words = f"pod team/p: {message} {BUDGET['message']}"
        assert await found.evictor.evict(victim) == words
        found.now = AGAIN_SECONDS - 0.1
        assert await found.evictor.evict(victim) == words
        assert found.evictions == 1
        found.server.heal(fault)
        found.now = AGAIN_SECONDS
        assert await found.evictor.evict(victim) == ""
        assert found.evictions == 2


async def test_refusal_by_a_webhook_names_the_virtual_machine() -> None:
    async with bench() as found:
        victim = found.add(labels=VM_LABELS)
        found.server.fail("POST", PODS, code=429, reason="TooManyRequests", message="evacuation was triggered")
        assert await found.evictor.evict(victim) == "VM team/db (pod team/p): evacuation was triggered"
        assert found.evictions == 1


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        (
            403,
            'cannot create resource "pods/eviction" in API group ""',
            "grant create on pods/eviction to npufleet-node",
        ),
        (403, "a policy says no", "pod team/p: a policy says no"),
        (500, "more than one PodDisruptionBudget", "more than one PodDisruptionBudget"),
        (504, "not now", "not now"),
    ],
)
async def test_every_other_refusal_is_told_and_no_fault(code: int, message: str, text: str) -> None:
    async with bench() as found:
        victim = found.add()
        found.server.fail(
            "POST", PODS, code=code, reason="Forbidden" if code == 403 else "InternalError", message=message
        )
        assert text in await found.evictor.evict(victim)
        assert not found.evictor.accepted({victim.uid})


async def test_pod_that_is_gone_counts_as_evicted_and_another_of_its_name_is_left_alone() -> None:
    async with bench() as found:
        gone = found.add()
        found.server.objects.delete(PODS, "p", "team")
        assert await found.evictor.evict(gone) == ""
        assert found.evictor.accepted({gone.uid})
        old = found.add()
        found.server.objects.delete(PODS, "p", "team")
        new = found.add()
        assert await found.evictor.evict(old) == ""
        assert found.server.objects.get(PODS, "p", "team")["metadata"]["uid"] == new.uid


async def test_one_that_does_not_lead_evicts_nobody() -> None:
    async with bench() as found:
        found.leads = False
        assert await found.evictor.evict(found.add()) == ""
        assert found.evictions == 0


async def test_eviction_whose_answer_was_lost_is_told_and_tried_again() -> None:
    async with bench() as found:
        victim = found.add()
        found.server.fail("POST", PODS, drop=True, times=1)
        assert (await found.evictor.evict(victim)).startswith("pod team/p: ")
        found.now = AGAIN_SECONDS
        assert await found.evictor.evict(victim) == ""
        assert found.server.objects.find(PODS, "p", "team") is None
