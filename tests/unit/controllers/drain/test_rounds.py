"""A round: who is seen, who is evicted, and what the planner is told."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controllers.node_policy.drain.evictor import AGAIN_SECONDS, Evictor
from controllers.node_policy.drain.rounds import Rounds
from controllers.node_policy.plan.drains import DrainedDevice, DrainOrder
from controllers.node_policy.plan.view import DrainFacts
from runtime.api import ApiError
from runtime.resources import PODS, RESOURCE_CLAIMS
from tests.builders.fake_api import ALL_RESOURCES, FakeApi
from tests.builders.workloads import allocation, claim, pod

A, B = "0000:23:00.0", "0000:24:00.0"
DEVICE_A = "vfio-0000-23-00-0"
Object = dict[str, Any]


def device(address: str = A, *, pods: Collection[str] = (), withheld: bool = True) -> DrainedDevice:
    return DrainedDevice(address, frozenset({address}), frozenset(pods), withheld)


def order(*devices: DrainedDevice, node: str = "node-0", cordoned: bool = False, revision: str = "r1") -> DrainOrder:
    return DrainOrder(node, "policy", revision, devices or (device(),), cordoned)


class Bench:
    """Rounds on a fake API server, with a clock of their own."""

    def __init__(self, server: FakeApi, api: Any, **options: Any) -> None:
        self.server = server
        self.now = 0.0
        self.leads = True
        self.replans = 0
        self.problem = ""
        self.listing_takes = 0.0
        self.when_asked: Callable[[], object] = lambda: None
        evictor = Evictor(api, may_write=self._may_write, clock=lambda: self.now)
        self.rounds = Rounds(
            api,
            may_write=self._may_write,
            replan=self._replan,
            problem=lambda node: self.problem,
            evictor=evictor,
            clock=self._time,
            **options,
        )

    def _time(self) -> float:
        self.now += self.listing_takes
        return self.now

    def _may_write(self) -> bool:
        self.when_asked()
        return self.leads

    def _replan(self) -> None:
        self.replans += 1

    def add_pod(self, name: str = "p", **given: Any) -> Object:
        return self.server.objects.create(PODS, pod(name, **given))

    def add_claim(
        self, name: str, devices: Collection[str] = (DEVICE_A,), pods: Collection[Object] = (), **more: Any
    ) -> None:
        self.server.objects.create(RESOURCE_CLAIMS, {**claim(name), "status": allocation(devices, pods, **more)})

    async def round(self, *orders: DrainOrder, unmarked: Collection[str] = ()) -> dict[str, DrainFacts]:
        self.rounds.post({one.node: one for one in orders or (order(),)}, unmarked)
        self.now += AGAIN_SECONDS
        await self.rounds.run("all")
        return self.rounds.facts

    async def facts(self, *orders: DrainOrder, unmarked: Collection[str] = ()) -> DrainFacts:
        return (await self.round(*orders, unmarked=unmarked))["node-0"]

    @property
    def evicted(self) -> list[str | None]:
        """Names of pods in the order in which they were asked for."""
        return [request.name for request in self.server.calls("POST", PODS) if request.subresource == "eviction"]


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    async with FakeApi() as server, server.client("npufleet-node-policy") as api:
        yield Bench(server, api, **options)


async def test_pod_with_a_claim_on_a_withheld_device_is_evicted_without_a_cordon() -> None:
    async with bench() as found:
        user = found.add_pod()
        found.add_pod("bystander")
        found.add_claim("c", pods=[user])
        facts = await found.facts(order(device(pods=[user["metadata"]["uid"]])))
        assert found.evicted == ["p"]
        assert not facts.needs_cordon
        assert facts.claims == ("team/c",)
        assert facts.evicted == {user["metadata"]["uid"]}
        assert found.server.calls("LIST", PODS) == [], "its name stands in the claim"
        assert found.replans == 1


async def test_claims_are_listed_once_a_round_with_quorum_for_all_nodes() -> None:
    async with bench() as found:
        users = [found.add_pod(f"p{n}", node=f"node-{n}") for n in range(3)]
        for n, user in enumerate(users):
            found.add_claim(f"c{n}", pods=[user], pool=f"node-{n}")
        await found.round(*(order(node=f"node-{n}") for n in range(3)))
        assert sorted(filter(None, found.evicted)) == ["p0", "p1", "p2"]
        [listing] = found.server.calls("LIST", RESOURCE_CLAIMS)
        assert "resourceVersion" not in listing.query


async def test_nobody_is_evicted_while_others_could_still_get_the_device() -> None:
    async with bench() as found:
        user = found.add_pod()
        found.add_claim("c", [DEVICE_A, "vfio-0000-24-00-0"], pods=[user])
        facts = await found.facts(order(device(), device(B, withheld=False)))
        assert found.evicted == []
        assert facts.blockers == (f"pod team/p uses {A}, {B}",)
        await found.facts(order(device(), device(B)))
        assert found.evicted == ["p"]


async def test_nobody_is_evicted_before_the_node_is_marked() -> None:
    async with bench() as found:
        found.add_claim("c", pods=[found.add_pod()])
        await found.round(order(), unmarked=["node-0"])
        assert found.evicted == []
        assert found.rounds.post({"node-0": order()}, []) == 0.0, "a round is due at once"
        await found.round(order())
        assert found.evicted == ["p"]


async def test_user_without_a_claim_asks_for_a_cordon_and_is_evicted_under_it() -> None:
    async with bench() as found:
        user = found.add_pod()
        uid = user["metadata"]["uid"]
        assert (await found.facts(order(device(pods=[uid])))).needs_cordon
        assert found.evicted == []
        facts = await found.facts(order(device(pods=[uid]), cordoned=True))
        assert found.evicted == ["p"]
        assert facts.evicted == {uid}
        # It is gone, and the device free: the cordon stays until the drain is over.
        assert (await found.facts(order(device(), cordoned=True))).needs_cordon
        found.rounds.post({}, [])
        assert found.rounds.facts == {}
        assert not (await found.facts(order())).needs_cordon


@pytest.mark.parametrize(
    ("given", "claimed", "evicted"),
    [
        ({"owner": ""}, True, False),
        ({"owner": ""}, False, False),
        ({"owner": "DaemonSet/agent"}, True, True),
        ({"owner": "DaemonSet/agent"}, False, False),
        ({"owner": "Node/node-0", "annotations": {"kubernetes.io/config.mirror": "x"}}, False, False),
        ({"terminating": True}, True, False),
    ],
)
async def test_pods_that_are_not_to_be_evicted_are_named(given: Object, claimed: bool, evicted: bool) -> None:
    async with bench() as found:
        user = found.add_pod(**given)
        if claimed:
            found.add_claim("c", pods=[user])
        facts = await found.facts(order(device(pods=[user["metadata"]["uid"]]), cordoned=True))
        assert found.evicted == (["p"] if evicted else [])
        assert len(facts.blockers) == 1 and facts.blockers[0].startswith("pod team/p ")
        assert not facts.needs_cordon, "a cordon would not help"


async def test_pod_that_ends_already_is_waited_for_and_counts_as_evicted() -> None:
    """What a new leader finds of the work of the last one."""
    async with bench() as found:
        user = found.add_pod(terminating=True, grace=7)
        found.add_claim("c", pods=[user])
        facts = await found.facts()
        assert found.evicted == []
        assert facts.blockers == ("pod team/p is terminating, grace 7 s",)
        assert facts.evicted == {user["metadata"]["uid"]}


async def test_accepted_eviction_is_told_like_the_pod_that_ends() -> None:
    async with bench() as found:
        user = pod("p", grace=7)
        user["metadata"]["finalizers"] = ["example.io/wait"]
        found.add_claim("c", pods=[found.server.objects.create(PODS, user)])
        before = await found.facts()
        assert before.blockers == ("pod team/p is terminating, grace 7 s",)
        assert await found.facts() == before
        assert found.evicted == ["p"]
        assert found.replans == 1


async def test_another_pod_of_the_name_is_not_the_one_for_which_the_claim_is_reserved() -> None:
    async with bench() as found:
        found.add_claim("c", pods=[{"metadata": {"name": "p", "uid": "former"}}])
        found.add_pod()
        facts = await found.facts()
        assert found.evicted == []
        assert facts.claims == ("team/c",)


async def test_claim_that_no_pod_answers_for_is_named() -> None:
    async with bench() as found:
        group = {"apiGroup": "scheduling.example.io", "resource": "podgroups", "name": "train", "uid": "u"}
        found.add_claim("grouped", others=[group])
        found.add_claim("idle")
        facts = await found.facts()
        assert facts.blockers == (
            f"claim team/grouped holds {A} for podgroups team/train, which no eviction moves",
            f"claim team/idle holds {A}, though it is reserved for no pod",
        )


async def test_process_of_a_pod_that_nobody_knows_is_named() -> None:
    async with bench() as found:
        facts = await found.facts(order(device(pods=["nobody"])))
        assert facts.blockers == (f"a process of pod nobody, which the API server does not know, uses {A}",)
        assert not facts.needs_cordon


@pytest.mark.parametrize(
    "stays",
    [
        {"owner": ""},
        {"owner": "DaemonSet/agent"},
        {"annotations": {"kubernetes.io/config.mirror": "static"}},
    ],
)
async def test_nobody_is_evicted_from_a_device_that_would_not_become_free(stays: Object) -> None:
    async with bench() as found:
        keeps, user, other = found.add_pod("keeps", **stays), found.add_pod("user"), found.add_pod("other")
        found.add_claim("a", pods=[user])
        found.add_claim("b", ["vfio-0000-24-00-0"], pods=[other])
        seen = keeps["metadata"]["uid"] if "annotations" not in stays else "static"
        facts = await found.facts(order(device(pods=[seen]), device(B), cordoned=True))
        assert found.evicted == ["other"], "the other device becomes free"
        assert any("pod team/keeps" in text for text in facts.blockers)
        assert f"pod team/user uses {A} and is left there: {A} would not become free" in facts.blockers
        assert not facts.needs_cordon


async def test_pod_that_is_spared_for_one_device_keeps_its_others_too() -> None:
    async with bench() as found:
        keeps, both, user = found.add_pod("keeps", owner=""), found.add_pod("both"), found.add_pod("user")
        found.add_claim("a", pods=[keeps, both])
        found.add_claim("b", ["vfio-0000-24-00-0"], pods=[both, user])
        facts = await found.facts(order(device(), device(B)))
        assert found.evicted == []
        assert len(facts.blockers) == 3


async def test_claim_of_somebody_who_is_no_pod_spares_the_pods_beside_it() -> None:
    async with bench() as found:
        group = {"apiGroup": "scheduling.example.io", "resource": "podgroups", "name": "train", "uid": "u"}
        found.add_claim("c", pods=[found.add_pod()], others=[group])
        await found.facts(order())
        assert found.evicted == []


async def test_process_of_an_unknown_pod_spares_the_others_unless_its_pod_was_evicted() -> None:
    async with bench() as found:
        first, second = found.add_pod("first"), found.add_pod("second")
        uid = first["metadata"]["uid"]
        found.add_claim("a", pods=[first])
        await found.facts(order(device(pods=[uid])))
        assert found.evicted == ["first"]
        found.server.objects.delete(RESOURCE_CLAIMS, "a", "team")
        found.add_claim("b", pods=[second])
        await found.facts(order(device(pods=[uid])))
        assert found.evicted == ["first", "second"], "its process is only seen for a moment longer"
        third = found.add_pod("third")
        found.add_claim("c", pods=[third])
        await found.facts(order(device(pods=[uid, "unknown"])))
        assert "third" not in found.evicted


async def test_budget_that_refuses_is_named_until_it_gives_way() -> None:
    async with bench() as found:
        found.add_claim("c", pods=[found.add_pod()])
        cause = {"reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods"}
        fault = found.server.fail("POST", PODS, code=429, reason="TooManyRequests", message="No.", causes=[cause])
        facts = await found.facts()
        assert facts.blockers == ("pod team/p: No. The disruption budget web needs 1 healthy pods",)
        assert await found.facts() == facts
        assert found.replans == 1, "the same again is no news"
        found.server.heal(fault)
        await found.round()
        assert found.evicted == ["p"] * 3


@pytest.mark.parametrize(
    ("resource", "right"),
    [(RESOURCE_CLAIMS, "grant list on resourceclaims.resource.k8s.io"), (PODS, "grant get and list on pods")],
)
async def test_missing_right_is_named_and_nobody_is_evicted(resource: Any, right: str) -> None:
    async with bench() as found:
        user = found.add_pod()
        found.add_claim("c", pods=[user])
        for verb in ("LIST", "GET"):
            found.server.fail(verb, resource, code=403, reason="Forbidden", message="forbidden: no")
        facts = await found.facts(order(device(pods=[user["metadata"]["uid"]]), cordoned=True))
        assert right in facts.blockers[0] and "npufleet-node-policy" in facts.blockers[0]
        assert not facts.needs_cordon
        assert found.evicted == []
        found.server.heal()
        await found.round()
        assert found.evicted == ["p"]


async def test_server_without_claims_has_no_users_by_claim(caplog: pytest.LogCaptureFixture) -> None:
    served = tuple(resource for resource in ALL_RESOURCES if resource != RESOURCE_CLAIMS)
    async with FakeApi(served=served) as server, server.client() as api:
        found = Bench(server, api)
        user = found.add_pod()
        marked = order(device(pods=[user["metadata"]["uid"]]), cordoned=True)
        await found.round(marked)
        await found.round(marked)
        assert found.evicted == ["p"]
        assert len([one for one in caplog.records if "serves no resourceclaims" in one.message]) == 1


async def test_what_was_seen_stands_while_the_server_does_not_answer() -> None:
    async with bench() as found:
        found.add_claim("c", pods=[found.add_pod(owner="")])
        before = await found.facts()
        for resource in (RESOURCE_CLAIMS, PODS):
            fault = found.server.fail("*", resource, code=422, reason="Invalid")
            with pytest.raises(ApiError):
                await found.round()
            assert found.rounds.facts == {"node-0": before}
            found.server.heal(fault)


async def test_node_that_cannot_be_looked_at_holds_up_no_other() -> None:
    async with bench() as found:
        found.add_claim("c0", pods=[found.add_pod("p0")])
        found.add_claim("c1", pods=[found.add_pod("p1", node="node-1")], pool="node-1")
        found.server.fail("GET", PODS, name="p0", code=422, reason="Invalid")
        with pytest.raises(ApiError):
            await found.round(order(), order(node="node-1"))
        assert found.evicted == ["p1"]


async def test_problem_with_the_node_itself_is_told_too() -> None:
    async with bench() as found:
        found.problem = "the Node cannot be marked: no"
        assert (await found.facts(unmarked=["node-0"])).blockers == ("the Node cannot be marked: no",)


async def test_external_drainer_is_left_to_do_the_evictions() -> None:
    async with bench(evicts=False) as found:
        found.add_claim("c", pods=[found.add_pod()])
        facts = await found.facts(order(cordoned=True))
        assert found.evicted == []
        assert facts.blockers == (f"pod team/p uses {A}",)


async def test_claims_are_not_listed_where_no_device_is_to_be_emptied() -> None:
    async with bench() as found:
        facts = await found.facts(DrainOrder("node-0", "policy", "r1", (), cordoned=False))
        assert facts == DrainFacts("r1", False, (), (), frozenset())
        assert found.server.requests == []


async def test_one_that_does_not_lead_asks_and_evicts_nothing() -> None:
    async with bench() as found:
        found.add_claim("c", pods=[found.add_pod()])
        found.leads = False
        await found.round()
        assert found.server.requests == []
        assert found.rounds.facts == {}


async def test_without_drains_nothing_is_asked() -> None:
    async with bench() as found:
        assert found.rounds.post({}, []) is None
        assert await found.rounds.run("all") is None
        assert found.server.requests == []


async def test_drain_that_was_called_off_meanwhile_evicts_nobody() -> None:
    async with bench() as found:
        found.add_claim("c", pods=[found.add_pod()])
        found.rounds.post({"node-0": order()}, [])

        found.when_asked = found.rounds.stop
        assert await found.rounds.run("all") == AGAIN_SECONDS
        assert found.server.calls("LIST", RESOURCE_CLAIMS)
        assert found.evicted == []
        assert found.rounds.facts == {}


async def test_rounds_are_rare_where_the_list_of_claims_takes_long() -> None:
    async with bench() as found:
        found.rounds.post({"node-0": order()}, [])
        assert await found.rounds.run("all") == AGAIN_SECONDS
        found.listing_takes = 3.0
        assert await found.rounds.run("all") == 12.0
        found.listing_takes = 0.0
        due = found.rounds.post({"node-0": order(cordoned=True)}, [])
        assert due is not None and 6.0 <= due <= 12.0
