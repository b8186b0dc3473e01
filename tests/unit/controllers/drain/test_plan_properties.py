"""Whatever commits, users, drains, reboots, people and new controllers do: limits hold, and in the end all is quiet.

The oracles here are written from the API's documentation alone and share nothing with the planner.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controllers.node_policy.plan import Cache, Plan, plan
from tests.builders.examples import at_least
from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_drains import CORDONED_BY, DRAIN_DONE, DRAIN_REQUEST, DrainedFleet
from tests.builders.paper_fleet import Object

FLOOR = 2000
T = TypeVar("T")
POLICIES, PODS = ("a", "b"), ("pod-0", "pod-1", "pod-2")
TRIES = settings(
    max_examples=FLOOR,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Digits:
    """Choices read off one drawn number."""

    def __init__(self, number: int) -> None:
        self.rest = number

    def pick(self, choices: Sequence[T]) -> T:
        self.rest, index = divmod(self.rest, len(choices))
        return choices[index]


def policy_of(name: str, digits: Digits) -> Object:
    limit = digits.pick((None, None, None, 1))
    rule = device_rule("r", mode=digits.pick(("Passthrough", "Container", "Passthrough")))
    rollout = {
        "maxUnavailable": digits.pick((1, 2, "50%")),
        "drain": digits.pick(("IfInUse", "IfInUse", "Never")),
        "drainTimeoutSeconds": digits.pick((60, 90)),
    }
    state: Object = {"state": "Paused"} if digits.pick((False,) * 7 + (True,)) else {}
    rules = [rule | ({"limit": limit} if limit else {})]
    return node_policy(name, rules=rules, priority=1 if name == "a" else 2, rollout=rollout, **state)


class Story:
    """A fleet and what happens to it, step by step; the same plans are made with a cache and without."""

    def __init__(self, number: int) -> None:
        digits = Digits(number)
        self.fleet = fleet = DrainedFleet()
        fleet.world_extra = {"confirmation": "all"}
        for index in range(digits.pick((2, 3, 1))):
            fleet.add_node(f"n{index}", digits.pick((1, 2)))
            if digits.pick((True, False)):
                fleet.publishers.add(f"n{index}")
        fleet.refusing = {digits.pick(PODS)} if digits.pick((True, False)) else set()
        self.cache = Cache()
        self.by_people: set[str] = set()
        self.seen: Counter[str] = Counter()
        fleet.add_policy(policy_of("a", digits))

    def happen(self, number: int) -> None:
        digits, fleet = Digits(number), self.fleet
        name = digits.pick(sorted(fleet.nodes))
        place = digits.pick(sorted(fleet.cards[name]))
        card, pod = fleet.cards[name][place], digits.pick(PODS)
        match digits.pick(
            ("commit", "commit", "come", "come", "go", "host", "rule", "time", "boot", "time", "new", "hand")
        ):
            case "commit":
                policy = digits.pick(POLICIES)
                if digits.pick((False, False, False, True)):
                    fleet.policies.pop(policy, None)
                else:
                    fleet.add_policy(policy_of(policy, digits))
            case "come":
                fleet.pod_ends(pod)
                # With a claim that is not used yet, with a claim, without one.
                if digits.pick((True, False, False)) and name in fleet.publishers:
                    fleet.claims.setdefault(f"{name}/{place}", set()).add(pod)
                else:
                    card.pods.append(pod)
                    fleet.loose ^= {pod} if digits.pick((True, False, False)) else set()
            case "go":
                fleet.pod_ends(pod)
                card.users = []
            case "host":
                card.users = digits.pick((["vllm"], []))
            case "rule":
                fleet.refusing ^= {pod}
            case "boot":
                fleet.reboot(name)
            case "time":
                fleet.pass_time(digits.pick((70, 20, 200)))
            case "new":
                self.cache = Cache()
                fleet.facts = {}
            case "hand":
                self.people(name, digits)
        self.step()
        for other in fleet.nodes:
            fleet.report(other)
        self.step(twice=False)

    def people(self, name: str, digits: Digits) -> None:
        spec = self.fleet.nodes[name]["spec"]
        if self.fleet.schedulable(name):
            spec["unschedulable"] = True
            self.by_people.add(name)
        elif digits.pick((True, False)):
            spec["unschedulable"] = False
            self.by_people.discard(name)
        elif self.fleet.annotations(name).pop(CORDONED_BY, None):
            self.by_people.add(name)

    def step(self, *, twice: bool = True) -> bool:
        """One plan, carried out; True when it wanted something, or the drainer saw something new.

        `twice`: made without the cache as well.
        """
        fleet = self.fleet
        world = fleet.world()
        made = plan(world, fleet.now, self.cache)
        if twice:
            assert content(made) == content(plan(world, fleet.now)), "a cache changes no plan"
        limits = {policy: self.limit(policy) for policy in (*POLICIES, "orphaned.npufleet.io")}
        before = {policy: fleet.away(policy) for policy in limits}
        specs = {name: state["spec"] for name, state in fleet.states.items()}
        fleet.write(made)
        for policy, limit in limits.items():
            after = fleet.away(policy)
            assert not after - before[policy] or len(after | before[policy]) <= limit, policy
        for name, change in made.specs.items():
            if change is not None:
                self.check_orders(name, specs[name])
        for name in self.by_people:
            assert not fleet.schedulable(name), "a cordon of somebody else"
            assert CORDONED_BY not in fleet.annotations(name)
        self.seen.update(event.reason for event in made.events)
        news = fleet.drain(made)
        return not made.empty or news

    def limit(self, policy: str) -> int:
        """maxUnavailable in force, or the widest that the orders remember of a deleted policy."""
        if policy in self.fleet.policies:
            values = [self.fleet.policies[policy]["spec"]["rollout"]["maxUnavailable"]]
        else:
            specs = [state["spec"] for state in self.fleet.states.values()]
            rollouts = [limits for spec in specs for limits in spec.get("rollouts", [])]
            values = [limits["maxUnavailable"] for limits in rollouts if limits["policy"] == policy] or [1]
        total = len(self.fleet.nodes)
        return max(v if isinstance(v, int) else -(-int(v.rstrip("%")) * total // 100) for v in values)

    def check_orders(self, name: str, before: Object) -> None:
        """No new order for a device that is seen in use, unless its users are pods and the policy lets them go."""
        fleet = self.fleet
        status = fleet.states[name].get("status", {})
        used = {d["address"]: d["usedBy"] for d in status.get("inventory", {}).get("devices", []) if d["usedBy"]}
        said = {d["address"]: d for d in status.get("bindings", {}).get("devices", [])}
        drains = {limits["policy"]: limits["drain"] for limits in fleet.states[name]["spec"].get("rollouts", [])}
        old = {entry["address"]: entry for entry in before.get("devices", [])}
        for place, order in fleet.orders(name).items():
            shape = ("mode", "driverName", "passthrough")
            was = old.get(place)
            kept = was is not None and all(was.get(key) == order.get(key) for key in shape)
            kept = kept and was is not None and (was["intent"] == order["intent"] != "Release")
            done = kept and said.get(place, {}).get("state") == "Ready"
            if order["intent"] == "Hold" or kept or done or place not in used:
                continue
            answer = said.get(place, {})
            if was is not None and was["intent"] == "Hold" and answer.get("state") == "Ready":
                continue  # it is as ordered already
            if order["intent"] == "Release" and "formerDriver" not in answer:
                continue  # there is nothing to give back
            if was is not None and was["intent"] == order["intent"] == "Release":
                continue
            assert all("podUID" in user for user in used[place]), f"{name} {place}: {order} while {used[place]}"
            assert drains[order["decidedBy"]["policy"]] == "IfInUse", f"{name} {place}: {order}"

    def end(self) -> None:
        """Everybody leaves, and nobody refuses any more: all ends at the policies, with nothing of ours left."""
        fleet = self.fleet
        fleet.refusing.clear()
        fleet.claims.clear()
        for found in fleet.cards.values():
            for card in found.values():
                card.users, card.pods = [], []
        quiet = 0
        for _ in range(80):
            busy = self.step(twice=False)
            for name in fleet.nodes:
                busy = fleet.report(name) or busy
            if not busy:
                quiet += 1
                fleet.pass_time(100)  # what waits for a time goes on
            else:
                quiet = 0
            if quiet == 3:
                break
        assert quiet == 3, "it never comes to an end"
        for name in fleet.nodes:
            marks = fleet.annotations(name)
            assert not marks.keys() & {CORDONED_BY, DRAIN_REQUEST, DRAIN_DONE}
            assert fleet.schedulable(name) or name in self.by_people
            rollout = fleet.states[name].get("status", {}).get("rollout", {})
            assert rollout.get("admitted") in (None, "Admitted")
            assert "drain" not in rollout
        paused = {name for name, policy in fleet.policies.items() if policy["spec"].get("state") == "Paused"}
        for name in fleet.nodes:
            for order in fleet.orders(name).values():
                held = order["decidedBy"]["policy"] in paused
                assert order["intent"] == ("Hold" if held else "Apply")
            if not paused:
                self.check_end(name)

    def check_end(self, name: str) -> None:
        ranked = sorted(self.fleet.policies.values(), key=lambda policy: -policy["spec"]["priority"])
        if any("limit" in policy["spec"]["devices"][0] for policy in ranked):
            return
        wanted = ranked[0]["spec"]["devices"][0]["mode"] if ranked else None
        for place, card in self.fleet.cards[name].items():
            order = self.fleet.orders(name).get(place)
            assert (order["mode"] if order else None) == wanted
            assert card.bound == (wanted == "Passthrough")


def content(made: Plan) -> Object:
    """Everything that the plan says, as plain data."""
    return {
        "specs": {name: (change.orders, change.charged) if change else None for name, change in made.specs.items()},
        "rollouts": made.rollouts,
        "statuses": made.policy_statuses,
        "rest": (made.creations, made.deletions, made.events, made.waiting, made.next_check, made.holds, made.blocked),
        "drains": (made.drains, made.marks, made.drain_seconds),
    }


def test_limits_hold_and_all_ends_quiet_whatever_happens() -> None:
    seen: Counter[str] = Counter()
    with at_least(FLOOR, "drains") as examples:

        @TRIES
        @given(st.integers(0, 2**32), st.integers(0, 9))
        def check(seed: int, events: int) -> None:
            examples.one()
            chance = random.Random(seed)
            story = Story(chance.getrandbits(32))
            story.step()
            for name in story.fleet.nodes:
                story.fleet.report(name)
            for _ in range(events):
                story.happen(chance.getrandbits(48))
            story.end()
            seen.update(story.seen)

        check()
    print(dict(seen))
    for reason in ("DrainStarted", "Drained", "DrainAborted", "DrainWithdrawn"):
        assert seen[reason] >= FLOOR // 200, f"the stories told say too little of {reason}: {seen}"


def test_copies_of_the_fleet_share_nothing() -> None:
    """The stories above must not depend on each other: what one does to its objects stays there."""
    first, second = Story(1), Story(1)
    before = copy.deepcopy(second.fleet.policies)
    first.happen(123456)
    assert second.fleet.policies == before
