"""A fleet on paper: objects as the API server would keep them, and daemons that answer orders, all in plain dicts.

The daemons here know the API and the rules of behaviour, and nothing of the planner under test.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from controllers.node_policy.plan import Cache, Plan, World, plan, read_node, read_policy, read_state
from controllers.node_policy.plan.read import read_map
from tests.builders import objects
from tests.builders.paper_binder import Card, address, report_on

Object = dict[str, Any]
USERS = ("InUse", "CompanionInUse", "Published", "HandOver")
View = TypeVar("View")
_MOST_READINGS = 5000
START = datetime(2026, 11, 30, 12, tzinfo=UTC)


_readings: dict[tuple[object, str], Any] = {}


def _read(read: Callable[[Object], View], obj: Object) -> View:
    """What an object says; one that says the same as another is read once: most of a fleet stays as it is."""
    known = (read, repr(obj))
    if known not in _readings:
        if len(_readings) >= _MOST_READINGS:
            _readings.clear()
        _readings[known] = read(obj)
    found: View = _readings[known]
    return found


class PaperFleet:
    """Nodes, policies and NPUNodeStates, with the daemons' part of the work."""

    def __init__(self) -> None:
        self.now = START
        self.policies: dict[str, Object] = {}
        self.nodes: dict[str, Object] = {}
        self.states: dict[str, Object] = {}
        self.cards: dict[str, dict[str, Card]] = {}
        self.maps: dict[str, Object] | None = {}
        """VGPUProfileMaps by name; None: nobody knows which there are."""
        self.writes = 0
        self.world_extra: dict[str, Any] = {}
        self.held: frozenset[str] | None = None
        """What the controller's process remembers of its last plan; None: it has made none."""

    # The cluster's part.

    def add_policy(self, policy: Object) -> Object:
        """Create or update; the generation moves when the spec does, as on the API server."""
        policy = pickle.loads(pickle.dumps(policy))  # a copy of plain data, in a quarter of deepcopy's time
        old = self.policies.get(policy["metadata"]["name"])
        if old is not None:
            changed = old["spec"] != policy["spec"]
            policy["metadata"]["generation"] = old["metadata"]["generation"] + changed
            policy["status"] = old.get("status")
        self.policies[policy["metadata"]["name"]] = policy
        return policy

    def add_node(
        self, name: str, cards: Mapping[str, Card] | int = 1, *, labels: Mapping[str, str] | None = None
    ) -> None:
        found = {address(n): Card() for n in range(cards)} if isinstance(cards, int) else dict(cards)
        self.nodes[name] = objects.node(name, uid=f"uid-{name}", boot_id=f"boot-{name}-1", labels=labels)
        self.cards[name] = found

    def reboot(self, name: str) -> None:
        """A new boot: bindings are gone, reports are of the past."""
        info = self.nodes[name]["status"]["nodeInfo"]
        before, _, number = info["bootID"].rpartition("-")
        info["bootID"] = f"{before}-{int(number) + 1}"
        for card in self.cards[name].values():
            card.bound = False
            card.users = []

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # The controller's part.

    def world(self, **extra: Any) -> World:
        return World(
            policies={name: _read(read_policy, policy) for name, policy in self.policies.items()},
            nodes={name: read_node(node) for name, node in self.nodes.items()},
            states={name: _read(read_state, state) for name, state in self.states.items()},
            maps=None if self.maps is None else {name: _read(read_map, one) for name, one in self.maps.items()},
            **{"held": self.held, **self.world_extra, **extra},
        )

    def plan(self, cache: Cache | None = None, **extra: Any) -> Plan:
        return plan(self.world(**extra), self.now, cache)

    def restart(self) -> None:
        """Another process of the controller goes on: it knows what the objects say."""
        self.held = None

    def write(self, made: Plan) -> None:
        """Everything that the plan wants written, as the API server takes it."""
        self.held = made.holds.held
        for name, spec in made.creations.items():
            self.states[name] = objects.node_state(name, meta={"uid": f"state-{name}-{self.writes}"})
            self.states[name]["spec"] = spec
            self.writes += 1
        for name in made.deletions:
            del self.states[name]
            self.writes += 1
        for name, change in made.specs.items():
            if change is not None:
                state = self.states[name]
                assert state["spec"] != change.spec(), "a write that changes nothing"
                state["spec"] = change.spec()
                state["metadata"]["generation"] += 1
                self.writes += 1
        for name, rollout in made.rollouts.items():
            self.states[name].setdefault("status", {})["rollout"] = rollout.to_object()
            self.writes += 1
        for name, status in made.policy_statuses.items():
            self.policies[name]["status"] = status.to_object()
            self.writes += 1

    # The daemons' part.

    def report(self, name: str) -> bool:
        """The binder of a node obeys what it can and says how things stand; True when it says something new."""
        if name not in self.states or name not in self.nodes:
            return False
        state = self.states[name]
        if state["spec"]["nodeUID"] != self.nodes[name]["metadata"]["uid"]:
            return False
        said = report_on(state, self.cards[name], self.nodes[name]["status"]["nodeInfo"]["bootID"])
        status = state.setdefault("status", {})
        news = any(status.get(subtree) != report for subtree, report in said.items())
        status.update(said)
        return news

    # Both together.

    def settle(self, rounds: int = 200, *, only: Iterable[str] | None = None) -> int:
        """Plan, write and report until nothing is left to do; returns the rounds. Fails when it does not end.

        With a cache, as the controller plans; that it changes no plan is a property of its own.
        """
        cache = Cache()
        for number in range(rounds):
            made = self.plan(cache)
            self.write(made)
            news = [self.report(name) for name in (self.nodes if only is None else only)]
            if made.empty and not any(news):
                return number
        raise AssertionError(f"not settled after {rounds} rounds: {made}")

    # Looking.

    def orders(self, name: str) -> dict[str, Object]:
        return {entry["address"]: entry for entry in self.states[name]["spec"].get("devices", [])}

    def intents(self, name: str = "node-0") -> dict[str, str]:
        return {place: order["intent"] for place, order in self.orders(name).items()}

    def bound(self) -> list[str]:
        """Devices that npufleet has on a VFIO driver, as `node/address`."""
        return sorted(f"{name}/{at}" for name, found in self.cards.items() for at, card in found.items() if card.bound)

    def conditions(self, policy: str) -> dict[str, tuple[str, str]]:
        found = (self.policies[policy].get("status") or {}).get("conditions", [])
        return {c["type"]: (c["status"], c["reason"]) for c in found}

    def status(self, policy: str) -> Object:
        found: Object = self.policies[policy]["status"]
        return found

    def rollout(self, name: str) -> dict[str, tuple[str, str]]:
        found = self.states[name]["status"]["rollout"]["conditions"]
        return {c["type"]: (c["status"], c["reason"]) for c in found}

    def moving(self, policy: str) -> set[str]:
        """Nodes on which an order of the policy is not carried out, by the daemons' answers to the present orders.

        Blocked is calm, unless it is for a user: such an order may go on at any moment. Held is calm. A node that is
        drained or cordoned for the policy is away.
        """
        found = set()
        for name, state in self.states.items():
            if self._emptied_for(name) == policy:
                found.add(name)
            bindings = state.get("status", {}).get("bindings", {})
            current = bindings.get("observedGeneration") == state["metadata"]["generation"]
            said = {d["address"]: d for d in bindings.get("devices", [])} if current else {}
            for entry in state["spec"].get("devices", []):
                answer = said.get(entry["address"], {"state": "", "reason": ""})
                waits = answer["state"] == "Blocked" and answer["reason"] in USERS
                calm = answer["state"] in ("Ready", "Released", "Blocked") and not waits
                if entry["decidedBy"]["policy"] == policy and entry["intent"] != "Hold" and not calm:
                    found.add(name)
        return found

    def _emptied_for(self, name: str) -> str:
        """The policy for which the node is cordoned or drained, "" when it is not."""
        rollout = self.states[name].get("status", {}).get("rollout", {})
        drained = rollout.get("drain", {}).get("policy", "") if rollout.get("admitted") == "Draining" else ""
        marks = self.nodes[name]["metadata"].get("annotations", {}) if name in self.nodes else {}
        return str(marks.get("npufleet.io/cordoned-by") or drained)


def fleet_of(nodes: int = 1, cards: int = 1, **labels: str) -> PaperFleet:
    """Nodes of the pool x, and no policy yet."""
    fleet = PaperFleet()
    for number in range(nodes):
        fleet.add_node(f"node-{number}", cards, labels={"pool": "x", **labels})
    return fleet


def fleet_of_policies(count: int) -> PaperFleet:
    """A policy with a node of its own for each number, all settled."""
    fleet = PaperFleet()
    for number in range(count):
        fleet.add_node(f"node-{number}", 1, labels={"pool": str(number)})
        fleet.add_policy(objects.node_policy(f"p{number}", nodes={"pool": str(number)}))
    fleet.settle()
    return fleet
