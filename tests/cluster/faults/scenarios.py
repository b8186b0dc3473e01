"""What is done to a fleet of twenty nodes while faults strike. Each scenario has one right end, whatever its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from runtime.api import Api
from runtime.resources import CONFIG_MAPS, NAMESPACE, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, Resource
from tests.builders.fault_proxy import Weather
from tests.builders.objects import node_policy
from tests.cluster.faults.controller import Supervised
from tests.cluster.faults.definitions import install_crd, uninstall_crd
from tests.cluster.faults.fleet import NODE_COUNT, OURS, PARTS, POOL, Fleet

Object = dict[str, Any]
LIMIT = 3
PAUSE_SECONDS = 1.0
"""Longer than the controller lets commits settle here."""
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False)
CONFIRM = "npufleet.io/confirm-removal"
SETTINGS = "npufleet-settings"


@dataclass(slots=True)
class Stage:
    """What a scenario acts on. `broken` collects what it sees that must never be."""

    fleet: Fleet
    weather: Weather
    controller: Supervised
    broken: list[str]

    @property
    def api(self) -> Api:
        return self.fleet.api


Act = Callable[[Stage], Awaitable[None]]


async def _nothing(stage: Stage) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`arrange` comes before any fault and must be complete when it returns; `act` runs under faults; `tidy` puts
    back what belongs to the cluster. `same_end_as`: the name of one that must end the same."""

    name: str
    act: Act
    arrange: Act = _nothing
    tidy: Act = _nothing
    limit: int = LIMIT
    any_of_pool: bool = False
    """Which of the selected cards are moved depends on timing."""
    writes: int = 0
    options: tuple[str, ...] = ()
    same_end_as: str = ""


def policy(
    name: str = "flt", mode: str = "Passthrough", limit: int = LIMIT, part: int | None = None, **more: Any
) -> Object:
    nodes = POOL if part is None else {**POOL, "part": str(part)}
    return node_policy(name, nodes=nodes, mode=mode, rollout={"maxUnavailable": limit}, **more)


async def _nodes_known(stage: Stage) -> None:
    """Every node has told what it has: binders that fall silent later keep nobody from planning."""
    states = stage.fleet.states
    await stage.fleet.until(
        lambda: all("inventory" in (states.get(name) or {}).get("status", {}) for name in stage.fleet.pool),
        what="every node has an inventory",
    )


async def in_place(stage: Stage, *policies: Object) -> None:
    """These policies have been carried out; quickly, and then with the limit that holds in the scenario."""
    for each in policies:
        wide = {**each, "spec": {**each["spec"], "rollout": {"maxUnavailable": "100%"}}}
        await stage.fleet.apply(wide)
    await stage.fleet.until(lambda: all_ready(stage.fleet), what="everything is in place")
    for each in policies:
        await stage.fleet.apply(each)
    await stage.fleet.until(
        lambda: all_ready(stage.fleet) and limits_told(stage.fleet) and all_answered(stage.fleet),
        what="the limits are in force",
    )


def is_observed(found: Object) -> bool:
    return bool((found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"])


def is_ready(fleet: Fleet, name: str) -> bool:
    found = fleet.policies.get(name) or {"metadata": {"generation": 0}}
    status = found.get("status") or {}
    ready: Object = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
    return ready.get("status") == "True" and is_observed(found)


def all_ready(fleet: Fleet) -> bool:
    return bool(fleet.policies) and all(is_ready(fleet, name) for name in fleet.policies)


def limits_told(fleet: Fleet) -> bool:
    """Every state carries the limits of the present policies, where it has orders."""
    for name in fleet.pool:
        spec = (fleet.states.get(name) or {"spec": {}})["spec"]
        told = {entry["policy"]: entry["maxUnavailable"] for entry in spec.get("rollouts") or []}
        for decider in {entry["decidedBy"]["policy"] for entry in spec.get("devices") or []}:
            wanted = fleet.policies.get(decider)
            if wanted is not None and told.get(decider) != wanted["spec"]["rollout"]["maxUnavailable"]:
                return False
    return True


def all_answered(fleet: Fleet) -> bool:
    """No binder owes an answer to orders. One that falls silent before counts as unavailable, for good: of a node that
    has not answered its newest orders, be it only for their limits, nobody can tell."""
    return all(fleet.has_answered(name) for name in fleet.pool)


# Scenarios, one after the other.


async def _create(stage: Stage) -> None:
    await stage.fleet.apply(policy())


async def put_in_place(stage: Stage) -> None:
    await in_place(stage, policy())


async def _change(stage: Stage) -> None:
    await stage.fleet.apply(policy(mode="Container"))


async def _revert(stage: Stage) -> None:
    """After five nodes have changed, while three more are ordered to."""
    await _only_first(stage, 5, policy(mode="Container"), "Container")
    await stage.fleet.apply(policy())
    await _goes_on(stage, "Container", 5)


async def _goes_on(stage: Stage, former: str = "", most: int = NODE_COUNT) -> None:
    """Let all binders answer once the controller speaks of the newest policies and at most so many nodes are ordered
    to the former mode: which cards are moved hangs on no timing then."""
    fleet = stage.fleet
    await fleet.until(lambda: all(is_observed(each) for each in fleet.policies.values()), what="the policies are seen")
    if former:
        await fleet.until(lambda: fleet.ordered(former) <= most, what="unanswered orders are taken back")
    fleet.answer_again()


async def _only_first(stage: Stage, number: int, wanted: Object, mode: str) -> None:
    """Apply a policy, and let the binders of the first nodes alone obey: the rollout comes so far and no further.

    A node whose order was refused leaves its room to the next one, so fewer than these may have changed then.
    """
    silent = stage.fleet.pool[number:]
    stage.fleet.silent.update(silent)
    await stage.fleet.apply(wanted)
    full = "the limit is filled by nodes that do not answer"
    await stage.fleet.until(lambda: stage.fleet.ordered(mode, among=silent) >= LIMIT, what=full)


async def _delete(stage: Stage) -> None:
    await stage.fleet.delete("flt")


async def _recreate_policy(stage: Stage) -> None:
    await stage.fleet.delete("flt")
    await stage.fleet.apply(policy(mode="Container", driver_name="npu.rebellions.ai"))


async def _flap_label(stage: Stage) -> None:
    """Off and on again, faster and slower than the controller looks."""
    first, second, third, *_ = stage.fleet.pool
    for pause in (0.0, 0.05, 0.4, 1.0):
        for name in (first, second, third):
            await stage.fleet.label(name, {"faults": None})
        await asyncio.sleep(pause)
        for name in (first, second, third):
            await stage.fleet.label(name, {"faults": "pool"})
        await asyncio.sleep(pause)
    await stage.fleet.label(third, {"faults": None})


async def _node_goes(stage: Stage) -> None:
    """A machine is taken away between its order and its answer."""
    name = stage.fleet.pool[1]
    stage.fleet.silent.add(name)
    await _change(stage)
    await stage.fleet.until(lambda: stage.fleet.order(name).get("mode") == "Container", what=f"{name} is ordered")
    await stage.api.delete(NODES, name)


async def _node_returns(stage: Stage) -> None:
    """A machine is installed anew between its order and its answer: same name, another UID, another boot."""
    name = stage.fleet.pool[1]
    stage.fleet.silent.add(name)
    await _change(stage)
    await stage.fleet.until(lambda: stage.fleet.order(name).get("mode") == "Container", what=f"{name} is ordered")
    stage.fleet.silent.discard(name)
    await stage.fleet.recreate_node(name)


async def _a_then_b(stage: Stage) -> None:
    await _only_first(stage, 4, policy("flt-a", priority=100), "Passthrough")
    await stage.fleet.apply(policy("flt-b", mode="Container", priority=200))
    await _goes_on(stage, "Passthrough", 4)


async def _b_then_a(stage: Stage) -> None:
    await _only_first(stage, 4, policy("flt-b", mode="Container", priority=200), "Container")
    await stage.fleet.apply(policy("flt-a", priority=100))
    await _goes_on(stage)


def _draining_policy(mode: str = "Passthrough") -> Object:
    found = policy(mode=mode)
    found["spec"]["rollout"] |= {"drain": "IfInUse", "drainTimeoutSeconds": 300}
    return found


async def _used_in_place(stage: Stage) -> None:
    """Six of the nodes have a pod whose process has the card open."""
    await in_place(stage, _draining_policy())
    used = stage.fleet.pool[:12:2]
    for name in used:
        await stage.fleet.use(name)
    states = stage.fleet.states
    await stage.fleet.until(
        lambda: all(is_used(states[name]) for name in used), what="the inventories tell of the pods"
    )


def is_used(state: Object) -> bool:
    devices = ((state.get("status") or {}).get("inventory") or {}).get("devices") or []
    return any(device.get("usedBy") for device in devices)


async def _drain(stage: Stage) -> None:
    """Pods are evicted from cordoned nodes, a few nodes at a time."""
    await stage.fleet.apply(_draining_policy("Container"))
    fleet = stage.fleet
    await fleet.until(lambda: not any(cards[OURS].pods for cards in fleet.cards.values()), what="the pods are gone")


async def _two_in_place(stage: Stage) -> None:
    await in_place(stage, policy("flt-a", priority=300), policy("flt-b", mode="Container", priority=200))


async def _swap_priorities(stage: Stage) -> None:
    await stage.fleet.apply(policy("flt-b", mode="Container", priority=300))
    await stage.fleet.apply(policy("flt-a", priority=200))


async def _second_writer(stage: Stage) -> None:
    """Somebody else writes what is the controller's to say."""
    await stage.fleet.apply(policy())
    for number in range(8):
        await stage.fleet.until(lambda: stage.fleet.ordered("Passthrough") >= 1, what="the change is under way")
        wrong = {"status": {"observedGeneration": 1, "nodes": {"matched": 90 + number, "ready": 80}}}
        await stage.api.patch(NPU_NODE_POLICIES, "flt", wrong, subresource="status")
        name = stage.fleet.pool[number]
        lie = {"status": {"rollout": {"admitted": "Waiting", "observedGeneration": 1, "conditions": []}}}
        await stage.api.patch(NPU_NODE_STATES, name, lie, subresource="status")
        await asyncio.sleep(0.2)


async def _take_right(stage: Stage) -> None:
    """The right to write orders is taken in the middle of a change, and given back after it was missed."""
    await _change(stage)
    await stage.fleet.until(lambda: stage.fleet.ordered("Container") >= 4, what="the change is under way")
    role = await stage.api.get(CLUSTER_ROLES, "npufleet-node-policy")
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]}
        if rule["resources"] == ["npunodestates"]
        else rule
        for rule in role["rules"]
    ]
    await stage.api.patch(CLUSTER_ROLES, "npufleet-node-policy", {"rules": rules})
    refused = stage.weather.refused
    try:
        async with asyncio.timeout(30):
            while stage.weather.refused <= refused and not _arrived(stage):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await stage.api.patch(CLUSTER_ROLES, "npufleet-node-policy", {"rules": role["rules"]})


def _arrived(stage: Stage) -> bool:
    return stage.fleet.ordered("Container") == stage.fleet.size


async def _jump_clock(stage: Stage) -> None:
    await _change(stage)
    for seconds, reached in ((7200.0, 4), (-86400.0, 8), (31_536_000.0, 12), (0.0, 16)):
        await stage.fleet.until(lambda reached=reached: stage.fleet.ordered("Container") >= reached)  # type: ignore[misc]
        stage.controller.shift_clock(seconds)


def _four_policies() -> list[Object]:
    return [policy(f"flt-{part}", part=part) for part in range(PARTS)]


async def _four_in_place(stage: Stage) -> None:
    await in_place(stage, *_four_policies())


async def _crd_goes(stage: Stage) -> None:
    """The kind of the policies is uninstalled, and installed again with the policies from Git."""
    crd = await uninstall_crd(stage.api)
    await asyncio.sleep(2.0)
    _still_bound(stage)
    await install_crd(stage.api, crd)
    for each in _four_policies():
        await stage.fleet.apply(each)


def _still_bound(stage: Stage) -> None:
    loose = [name for name in stage.fleet.pool if not stage.fleet.cards[name][OURS].bound]
    if loose:
        stage.broken.append(f"given back though nobody confirmed that most policies are gone: {loose}")


async def _delete_all(stage: Stage) -> None:
    """At once, or a busy machine makes several commits of it."""
    await asyncio.gather(*(stage.fleet.delete(f"flt-{part}") for part in range(PARTS)))


async def _prune_all(stage: Stage) -> None:
    """Everything vanishes from Git at once; the fleet is held until somebody confirms it."""
    await _delete_all(stage)
    held = "every order is held"
    await stage.fleet.until(lambda: stage.fleet.ordered("Passthrough", "Hold") == stage.fleet.size, what=held)
    _still_bound(stage)
    await confirm_removal(stage.api, "all")


async def _back_one_by_one(stage: Stage) -> None:
    """They vanish all at once and come back one at a time, each long after the one before it has settled: none may be
    given back while it is on its way, however few are missing by then."""
    fleet = stage.fleet
    await _delete_all(stage)
    await fleet.until(lambda: fleet.ordered("Passthrough", "Hold") == fleet.size, what="every order is held")
    for part, each in enumerate(_four_policies()):
        await fleet.apply(each)
        mine = fleet.pool[part::PARTS]
        await fleet.until(
            lambda mine=mine: fleet.ordered("Passthrough", among=mine) == len(mine),  # type: ignore[misc]
            what=f"the devices of {each['metadata']['name']} are its own again",
        )
        await asyncio.sleep(PAUSE_SECONDS)
        _still_bound(stage)
        loose = [name for name in fleet.pool[part + 1 :: PARTS] if fleet.order(name).get("intent") != "Hold"]
        if part + 1 < PARTS and loose:
            stage.broken.append(f"not held any more though their policy is not back: {loose}")


async def confirm_removal(api: Api, what: str | None) -> None:
    await api.patch(CONFIG_MAPS, SETTINGS, {"metadata": {"annotations": {CONFIRM: what}}}, NAMESPACE)


async def _withdraw_confirmation(stage: Stage) -> None:
    await confirm_removal(stage.api, None)


# What goes at once has to be heard of within the settle time; on a busy machine that takes longer than elsewhere.
ONE_COMMIT = ("--settle-seconds", "1.5")

SCENARIOS = (
    Scenario("create", _create),
    Scenario("change", _change, put_in_place),
    Scenario("revert", _revert, put_in_place),
    Scenario("drain", _drain, _used_in_place),
    Scenario("delete", _delete, put_in_place),
    Scenario("recreate-policy", _recreate_policy, put_in_place),
    Scenario("label-flaps", _flap_label, put_in_place, any_of_pool=True, writes=40),
    Scenario("node-goes", _node_goes, put_in_place),
    Scenario("node-returns", _node_returns, put_in_place),
    Scenario("two-a-first", _a_then_b, _nodes_known),
    Scenario("two-b-first", _b_then_a, _nodes_known, same_end_as="two-a-first"),
    Scenario("swap-priorities", _swap_priorities, _two_in_place),
    Scenario("second-writer", _second_writer, writes=8),
    Scenario("right-taken", _take_right, put_in_place),
    Scenario("clock-jumps", _jump_clock, put_in_place),
    Scenario("crd-goes", _crd_goes, _four_in_place, options=ONE_COMMIT),
    Scenario("all-pruned", _prune_all, _four_in_place, _withdraw_confirmation, options=ONE_COMMIT),
    Scenario("one-by-one", _back_one_by_one, _four_in_place),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
