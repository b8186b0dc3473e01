"""A fleet on paper in which pods use devices: they come, are evicted or refuse, and a publisher hands devices over.

What drainers, publishers and people do here follows the API's documentation alone.
"""

from __future__ import annotations

from typing import Any

from controllers.node_policy.plan import (
    NodeView,
    Plan,
    PolicyView,
    StateView,
    World,
    read_node,
    read_policy,
    read_state,
)
from controllers.node_policy.plan.read import read_map
from controllers.node_policy.plan.view import DrainFacts
from tests.builders import objects
from tests.builders.paper_fleet import USERS, Object, PaperFleet

CORDONED_BY, DRAIN_REQUEST = "npufleet.io/cordoned-by", "npufleet.io/drain-request"
DRAIN_DONE = "npufleet.io/drain-done"
CALM = ("Ready", "Released")


class DrainedFleet(PaperFleet):
    """`refusing`: pods that no eviction moves. `loose`: pods that only a cordon keeps from coming back.

    `claims`: by `node/address`, pods that have a device and do not use it; only the publisher and the drainer see them.
    `publishers`: nodes that have one; there a device is handed over before it changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refusing: set[str] = set()
        self.loose: set[str] = set()
        self.claims: dict[str, set[str]] = {}
        self.publishers: set[str] = set()
        self.facts: dict[str, DrainFacts] = {}
        self.evicted: list[str] = []
        self.counted = Unavailable()
        self._views: dict[str, Any] = {}

    # The cluster's part.

    def world(self, **extra: Any) -> World:
        return World(
            policies={name: self._policy(name) for name in self.policies},
            nodes={name: self._node(name) for name in self.nodes},
            states={name: self._state(name) for name in self.states},
            maps=None if self.maps is None else {name: read_map(one) for name, one in self.maps.items()},
            drains=dict(self.facts),
            **{**self.world_extra, **extra},
        )

    def _policy(self, name: str) -> PolicyView:
        found: PolicyView = self._views.get(f"p/{name}") or read_policy(self.policies[name])
        self._views[f"p/{name}"] = found
        return found

    def _node(self, name: str) -> NodeView:
        return read_node(self.nodes[name])

    def _state(self, name: str) -> StateView:
        found: StateView = self._views.get(f"s/{name}") or read_state(self.states[name])
        self._views[f"s/{name}"] = found
        return found

    def forget(self, *names: str) -> None:
        """The NPUNodeStates of these nodes were changed from outside."""
        for name in names:
            self._views.pop(f"s/{name}", None)

    def add_policy(self, policy: Object) -> Object:
        self._views.pop(f"p/{policy['metadata']['name']}", None)
        return super().add_policy(policy)

    def write(self, made: Plan) -> None:
        before = {name: state["spec"] for name, state in self.states.items()}
        super().write(made)
        for name in (*made.creations, *made.deletions, *made.rollouts, *(n for n, c in made.specs.items() if c)):
            self._views.pop(f"s/{name}", None)
        for name in made.policy_statuses:
            self._views.pop(f"p/{name}", None)
        for name, marks in made.marks.items():
            node = self.nodes[name]
            assert marks.node_uid == node["metadata"]["uid"]
            if marks.unschedulable is not None:
                node["spec"]["unschedulable"] = marks.unschedulable
            wanted = {CORDONED_BY: marks.cordoned_by, DRAIN_REQUEST: marks.drain_request}
            if marks.drain_done is not None:
                wanted[DRAIN_DONE] = marks.drain_done
            annotations = node["metadata"].setdefault("annotations", {})
            for key, value in wanted.items():
                annotations.pop(key, None)
                if value:
                    annotations[key] = value
        for name, state in self.states.items():
            if state["spec"] is not before.get(name):
                self.counted.written(name, state)

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.nodes[name]["metadata"].get("annotations", {})
        return found

    def schedulable(self, name: str) -> bool:
        return not self.nodes[name]["spec"].get("unschedulable", False)

    # The drainer's part.

    def drain(self, made: Plan) -> bool:
        """Evict whom the plan wants evicted, and tell what is seen; True when that is news."""
        before = self.facts
        self.facts = {}
        for name, order in made.drains.items():
            gone: set[str] = set()
            blockers: list[str] = []
            loose = False
            for device in order.devices:
                for place in sorted(device.addresses & self.cards[name].keys()):
                    card, claims = self.cards[name][place], self.claims.get(f"{name}/{place}", set())
                    for pod in sorted({*card.pods, *claims}):
                        loose = loose or pod in self.loose
                        if pod in self.refusing:
                            blockers.append(f"pod {pod}: a disruption budget forbids it")
                        elif device.withheld and (pod not in self.loose or order.cordoned) and name not in made.marks:
                            gone.add(pod)
            self.evicted += sorted(gone)
            for pod in gone:
                self.pod_ends(pod)
            seen = tuple(sorted(blockers))
            self.facts[name] = DrainFacts(order.revision, loose, seen, (), frozenset(gone))
        return self.facts != before

    def pod_ends(self, pod: str) -> None:
        for found in self.cards.values():
            for card in found.values():
                card.pods = [uid for uid in card.pods if uid != pod]
        for claims in self.claims.values():
            claims.discard(pod)

    # The daemons' part.

    def report(self, name: str) -> bool:
        published = name in self.publishers and name in self.states and self._publish(name)
        bound = super().report(name)
        if bound or published:
            self.counted.answered(name, self.states[name])
            self.forget(name)
        return bound or published

    def _publish(self, name: str) -> bool:
        """Hand over what has to change and nobody has; publish what stands as it should. True when that is news."""
        state = self.states[name]
        found = []
        for place, order in self.orders(name).items():
            card = self.cards[name].get(place)
            if card is None:
                continue
            wanted = order["mode"] == "Passthrough" and order["intent"] != "Release"
            changes = order["intent"] != "Hold" and card.bound != wanted
            holders = sorted({*card.pods, *self.claims.get(f"{name}/{place}", ())})
            if changes:
                card.published = card.published and bool(holders)
            else:
                card.published = order["intent"] != "Release"
            if card.published and changes:
                words = f"claims of {', '.join(holders)} are still allocated"
                found.append(objects.device_report(place, "Pending", "HandOver", message=words))
            elif not changes:
                found.append(objects.device_report(place, "Ready", "Published"))
            else:
                found.append(objects.device_report(place, "Pending", "HandedOver"))
        boot = self.nodes[name]["status"]["nodeInfo"]["bootID"]
        said = objects.report(found, generation=state["metadata"]["generation"], boot_id=boot)
        status = state.setdefault("status", {})
        if status.get("publication") == said:
            return False
        status["publication"] = said
        self.forget(name)
        return True

    def reboot(self, name: str) -> None:
        super().reboot(name)
        for card in self.cards[name].values():
            card.pods, card.published = [], False  # claims outlive a boot, what is published does not

    # Looking.

    def away(self, policy: str) -> set[str]:
        """Nodes that count against the limits of a policy, by the contract of the API alone."""
        return self.counted.nodes(policy, self)


class Unavailable:
    """Which devices move: from the write that changed what they become until the binder says that they are so, and the
    publisher, where the node has one, that pods can have them.

    A change of limits alone moves nothing, and neither does an order to hold.
    """

    def __init__(self) -> None:
        self._moves: dict[str, dict[str, int]] = {}
        self._keys: dict[str, dict[str, tuple[Any, ...]]] = {}

    def written(self, name: str, state: Object) -> None:
        """The spec of a node was written."""
        orders = {entry["address"]: entry for entry in state["spec"].get("devices", [])}
        known, moves = self._keys.setdefault(name, {}), self._moves.setdefault(name, {})
        for place in known.keys() - orders.keys():
            del known[place]
            moves.pop(place, None)
        for place, order in orders.items():
            block = {key: value for key, value in order.items() if isinstance(value, dict) and key != "decidedBy"}
            key = (order["mode"], order["driverName"], str(block), order["intent"] == "Release")
            if known.get(place) != key:
                known[place] = key
                moves[place] = state["metadata"]["generation"]

    def answered(self, name: str, state: Object) -> None:
        """A daemon of a node reported: what is as ordered does not move any more."""
        status, moves = state["status"], self._moves.get(name, {})
        if "bindings" not in status:
            return
        for device in status["bindings"]["devices"]:
            place = device["address"]
            since = moves.get(place)
            if since is None or device["state"] not in CALM or status["bindings"]["observedGeneration"] < since:
                continue
            if device["state"] == "Released" or "publication" not in status or _is_offered(place, since, status):
                del moves[place]

    def nodes(self, policy: str, fleet: DrainedFleet) -> set[str]:
        """The nodes that count against the limits of the policy now."""
        return {name for name, state in fleet.states.items() if self._counts(name, policy, state, fleet)}

    def _counts(self, name: str, policy: str, state: Object, fleet: DrainedFleet) -> bool:
        if fleet.annotations(name).get(CORDONED_BY) == policy:
            return True
        rollout = state.get("status", {}).get("rollout", {})
        if rollout.get("admitted") == "Draining" and rollout.get("drain", {}).get("policy") == policy:
            return True
        bindings, moves = state.get("status", {}).get("bindings", {}), self._moves.get(name, {})
        said = {device["address"]: device for device in bindings.get("devices", [])}
        for order in state["spec"].get("devices", []):
            place = order["address"]
            if order["decidedBy"]["policy"] != policy or order["intent"] == "Hold" or place not in moves:
                continue
            answer = said.get(place) if bindings.get("observedGeneration", 0) >= moves[place] else None
            if answer is None or answer["state"] != "Blocked" or answer["reason"] in USERS:
                return True
        return False


def _is_offered(place: str, since: int, status: Object) -> bool:
    said = {device["address"]: device["state"] for device in status["publication"]["devices"]}
    return status["publication"]["observedGeneration"] >= since and said.get(place) == "Ready"
