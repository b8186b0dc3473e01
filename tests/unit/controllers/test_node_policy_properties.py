"""Whatever the fleet and the commits: a plan is a function of the objects, keeps the limits, ends at the policies.

The oracles here are written from the API's documentation alone and share nothing with the planner. Stories of several
plans are planned with a cache, as the controller plans; that it changes no plan is a property of its own.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controllers.node_policy.plan import Cache, Plan, World, plan
from tests.builders.examples import Digits, at_least
from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet

Object = dict[str, Any]
FLOOR = 2000
NAMES = ("a", "b", "c", "d", "e")
PRODUCTS = {"RBLN-CA25": "1250", "RBLN-CA22": "1220"}
TRIES = settings(
    max_examples=FLOOR,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

MATCHES: tuple[Object, ...] = (
    {"vendors": ["1eff"]},
    *({"products": [product]} for product in sorted(PRODUCTS)),
    *({"vendors": ["1eff"], "devices": ["1250"], "addresses": [address(n)]} for n in range(3)),
)


def policy_of(number: int, *, limits: bool = True, paused: bool = True) -> Object:
    digits = Digits(number)
    name, priority = digits.pick(NAMES), digits.pick((1, 2))
    rules = []
    for index in range(digits.pick((1, 2))):
        mode = digits.pick(("Passthrough", "Container", "Unmanaged", "Passthrough"))
        rule = device_rule(f"r{index}", match=digits.pick(MATCHES), mode=mode)
        limit = digits.pick((None, None, 1, 2))
        rules.append(rule | ({"limit": limit} if limit and limits else {}))
    state: Object = {"state": "Paused"} if digits.pick((False,) * 5 + (True,)) and paused else {}
    return node_policy(
        name,
        rules=rules,
        nodes=digits.pick((None, {"pool": "x"}, {"pool": "y"})),
        priority=priority,
        on_release=digits.pick(("Restore", "Leave")),
        rollout={"maxUnavailable": digits.pick((1, 2, "50%"))},
        **state,
    )


def fleet_of(numbers: list[int], *, obstacles: bool = True) -> PaperFleet:
    """A node for each number."""
    fleet = PaperFleet()
    for index, number in enumerate(numbers):
        digits = Digits(number)
        found = {}
        labels = {"pool": digits.pick("xy"), "topology.kubernetes.io/zone": digits.pick("12")}
        for place in range(digits.pick((1, 2, 3, 0))):
            product = digits.pick(sorted(PRODUCTS))
            card = found[address(place)] = Card(product=product, device=PRODUCTS[product])
            users, vetoes = digits.pick(((), (), (), ("training",))), digits.pick(((), (), (), ("root disk",)))
            if obstacles:
                card.users, card.vetoes = list(users), list(vetoes)
        fleet.add_node(f"n{index}", found, labels=labels)
    return fleet


def policies(*, limits: bool = True, paused: bool = True) -> st.SearchStrategy[Object]:
    return st.integers(0, 10**9).map(lambda number: policy_of(number, limits=limits, paused=paused))


def fleets(*, obstacles: bool = True) -> st.SearchStrategy[PaperFleet]:
    numbers = st.lists(st.integers(0, 10**6), min_size=1, max_size=3)
    return numbers.map(lambda found: fleet_of(found, obstacles=obstacles))


commits = st.lists(policies(), max_size=4)


def commit(fleet: PaperFleet, wanted: list[Object]) -> None:
    """What is in Git is in the cluster, and nothing else."""
    names = {policy["metadata"]["name"] for policy in wanted}
    for name in fleet.policies.keys() - names:
        del fleet.policies[name]
    for policy in wanted:
        fleet.add_policy(policy)


def content(made: Plan) -> Object:
    """Everything that the plan says, as plain data."""
    return {
        "specs": {name: change.spec() if change else None for name, change in made.specs.items()},
        "creations": made.creations,
        "deletions": sorted(made.deletions),
        "rollouts": {name: rollout.to_object() for name, rollout in made.rollouts.items()},
        "statuses": {name: status.to_object() for name, status in made.policy_statuses.items()},
        "events": made.events,
        "waiting": made.waiting,
        "next_check": made.next_check,
        "holds": made.holds,
        "blocked": made.blocked,
    }


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same objects as they may arrive: maps in another order, and lists that the API treats as maps too."""
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        found = {key: shuffled(item, chance) for key, item in items}
        for key in ("conditions", "rollouts"):
            if isinstance(found.get(key), list):
                chance.shuffle(found[key])
        if isinstance(found.get("devices"), list) and all("address" in item for item in found["devices"]):
            chance.shuffle(found["devices"])
        return found
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


def reshuffled(fleet: PaperFleet, seed: int) -> PaperFleet:
    chance = random.Random(seed)
    other = PaperFleet()
    other.policies, other.nodes, other.states = (
        shuffled(objects, chance) for objects in (fleet.policies, fleet.nodes, fleet.states)
    )
    return other


def test_same_objects_in_any_order_give_the_same_plan() -> None:
    with at_least(FLOOR, "order independence") as examples:

        @TRIES
        @given(fleets(), commits, commits, st.integers(0, 3), st.integers())
        def check(fleet: PaperFleet, first: list[Object], second: list[Object], steps: int, seed: int) -> None:
            examples.one()
            commit(fleet, first)
            step(fleet, steps)
            commit(fleet, second)
            expected = content(fleet.plan())
            assert content(reshuffled(fleet, seed).plan()) == expected

        check()


def test_cache_changes_no_plan() -> None:
    with at_least(FLOOR, "cache") as examples:

        @TRIES
        @given(fleets(), commits, commits)
        def check(fleet: PaperFleet, first: list[Object], second: list[Object]) -> None:
            examples.one()
            cache = Cache()
            for wanted in (first, second, second):
                commit(fleet, wanted)
                world: World = fleet.world()
                made = plan(world, fleet.now, cache)
                assert content(made) == content(plan(world, fleet.now))
                fleet.write(made)
                for name in fleet.nodes:
                    fleet.report(name)

        check()


def step(fleet: PaperFleet, count: int) -> None:
    cache = Cache()
    for _ in range(count):
        fleet.write(fleet.plan(cache))
        for name in fleet.nodes:
            fleet.report(name)


def disrupted_policies(before: Object, after: Object) -> set[str]:
    """Policies that decide or decided a device which the step from one spec to the next may move."""
    old = {entry["address"]: entry for entry in before.get("devices", [])}
    new = {entry["address"]: entry for entry in after.get("devices", [])}
    found = set()
    for place in old.keys() | new.keys():
        was, becomes = old.get(place), new.get(place)
        if becomes is not None and becomes["intent"] == "Hold":
            quiet = True
        elif was is None or becomes is None:
            quiet = was is not None and was["intent"] == "Release"
        elif "Release" in (was["intent"], becomes["intent"]):
            quiet = was["intent"] == becomes["intent"] or becomes["intent"] == "Hold"
        else:
            told = ("mode", "driverName", "passthrough", "identity")
            quiet = all(was.get(field) == becomes.get(field) for field in told)
        if not quiet:
            found |= {entry["decidedBy"]["policy"] for entry in (was, becomes) if entry is not None}
    return found


def allowed(fleet: PaperFleet, policy: str, before: dict[str, Object]) -> int:
    """maxUnavailable of the policy, or what the orders remember of a deleted one, as a number of nodes."""
    if policy in fleet.policies:
        value = fleet.policies[policy]["spec"]["rollout"]["maxUnavailable"]
    else:
        limits = [r for spec in before.values() for r in spec.get("rollouts", []) if r["policy"] == policy]
        value = limits[0]["maxUnavailable"] if limits else 1
    if isinstance(value, int):
        return value
    return -(-int(value.rstrip("%")) * len(fleet.nodes) // 100)  # never more than of all nodes


def test_no_policy_has_more_nodes_disrupted_than_it_allows() -> None:
    with at_least(FLOOR, "limits of rollouts") as examples:

        @TRIES
        @given(fleets(), commits, commits, st.lists(st.sampled_from(["n0", "n1", "n2"]), max_size=6))
        def check(fleet: PaperFleet, first: list[Object], second: list[Object], answers: list[str]) -> None:
            examples.one()
            cache = Cache()
            for wanted in (first, second):
                commit(fleet, wanted)
                for answer in [*fleet.nodes, *answers]:
                    away = {policy: fleet.moving(policy) for policy in NAMES}
                    # A write puts another spec in its place, and leaves this one as it is.
                    before = {name: state["spec"] for name, state in fleet.states.items()}
                    fleet.write(fleet.plan(cache))
                    newly: dict[str, set[str]] = {}
                    for name, spec in before.items():
                        for policy in disrupted_policies(spec, fleet.states[name]["spec"]):
                            newly.setdefault(policy, set()).add(name)
                    for policy, nodes in newly.items():
                        fresh = nodes - away.get(policy, set())
                        if fresh:
                            assert len(away.get(policy, set()) | fresh) <= allowed(fleet, policy, before)
                    if answer in fleet.nodes:
                        fleet.report(answer)

        check()


def wish(policy: Object, card: Card, place: str) -> Object | None:
    """The first rule of the policy that matches the card."""
    for rule in policy["spec"]["devices"]:
        match = rule["match"]
        if (
            ("products" not in match or card.product in match["products"])
            and ("devices" not in match or card.device in match["devices"])
            and ("addresses" not in match or place in match["addresses"])
        ):
            found: Object = rule
            return found
    return None


def selects(policy: Object, labels: Object) -> bool:
    wanted = policy["spec"]["nodeSelector"].get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def expected_order(fleet: PaperFleet, name: str, place: str) -> tuple[str, str, str] | None:
    """Policy, rule and mode that decide a device when no rule has a limit and no policy is paused."""
    labels = fleet.nodes[name]["metadata"]["labels"]
    ranked = sorted(fleet.policies.values(), key=lambda p: (-p["spec"]["priority"], p["metadata"]["name"]))
    for policy in ranked:
        rule = wish(policy, fleet.cards[name][place], place)
        if selects(policy, labels) and rule is not None:
            if rule["mode"] == "Unmanaged":
                return None
            return policy["metadata"]["name"], rule["name"], rule["mode"]
    return None


def test_every_fleet_ends_at_its_policies_and_then_nothing_is_written() -> None:
    with at_least(FLOOR, "convergence") as examples:
        simple = st.lists(policies(limits=False, paused=False), max_size=3)

        @TRIES
        @given(fleets(), simple, simple)
        def check(fleet: PaperFleet, first: list[Object], second: list[Object]) -> None:
            examples.one()
            fleet.world_extra = {"confirmation": "all"}
            commit(fleet, first)
            step(fleet, 2)
            commit(fleet, second)
            fleet.settle()
            for name, found in fleet.cards.items():
                orders = fleet.orders(name)
                for place, card in found.items():
                    order = orders.get(place)
                    got = None if order is None else (*order["decidedBy"].values(), order["mode"])
                    # One in use keeps what it has.
                    assert card.users or got == expected_order(fleet, name, place)
                    if order is not None and not card.users and not card.vetoes:
                        assert card.bound == (order["mode"] == "Passthrough")
                assert set(orders) <= set(found), "no order for what is not there"
            fleet.pass_time(5)
            assert fleet.plan().empty

        check()


def test_limit_is_never_exceeded_and_never_spent_on_what_cannot_be_had() -> None:
    with at_least(FLOOR, "limits of rules") as examples:

        @TRIES
        @given(fleets(), st.lists(policies(paused=False), min_size=1, max_size=3))
        def check(fleet: PaperFleet, wanted: list[Object]) -> None:
            examples.one()
            commit(fleet, wanted)
            fleet.settle()
            limits = {
                (name, rule["name"]): rule.get("limit")
                for name, policy in fleet.policies.items()
                for rule in policy["spec"]["devices"]
            }
            for name in fleet.nodes:
                taken: dict[tuple[str, str], int] = {}
                for place, order in fleet.orders(name).items():
                    decided = (order["decidedBy"]["policy"], order["decidedBy"]["rule"])
                    if order["intent"] != "Apply" or limits[decided] is None:
                        continue
                    taken[decided] = taken.get(decided, 0) + 1
                    card = fleet.cards[name][place]
                    assert not card.users and not card.vetoes
                for decided, count in taken.items():
                    assert count <= (limits[decided] or 0)

        check()


def test_paused_policies_write_nothing_to_their_devices() -> None:
    with at_least(FLOOR, "pause") as examples:

        @TRIES
        @given(fleets(obstacles=False), commits, commits)
        def check(fleet: PaperFleet, first: list[Object], second: list[Object]) -> None:
            examples.one()
            commit(fleet, first)
            fleet.settle()
            held = {(name, place): order for name in fleet.nodes for place, order in fleet.orders(name).items()}
            paused = [copy.deepcopy(policy) for policy in fleet.policies.values()]
            for policy in paused:
                policy["spec"]["state"] = "Paused"
            kept = {policy["metadata"]["name"] for policy in paused}
            low = [p for p in second if p["metadata"]["name"] not in kept]
            for policy in low:
                policy["spec"]["priority"] = 0
            commit(fleet, paused + low)
            fleet.settle()
            for (name, place), order in held.items():
                assert fleet.orders(name)[place] == order | {"intent": "Hold"}

        check()


def lost(fleet: PaperFleet) -> tuple[set[tuple[str, str]], int]:
    """Devices that binders report as changed and that neither an order nor a policy names; how many are in orders."""
    found, ordered = set(), 0
    for name, state in fleet.states.items():
        orders = fleet.orders(name)
        ordered += sum(order["intent"] != "Release" for order in orders.values())
        for said in state.get("status", {}).get("bindings", {}).get("devices", []):
            place = said["address"]
            if said["reason"] == "Orphaned" and place not in orders and expected_order(fleet, name, place) is None:
                found.add((name, place))
    return found, ordered


def releases(fleet: PaperFleet) -> set[tuple[str, str]]:
    return {
        (name, place)
        for name in fleet.states
        for place, order in fleet.orders(name).items()
        if order["decidedBy"]["rule"] == "orphaned"
    }


def test_orders_that_are_gone_with_their_objects_release_nothing_while_they_outnumber_the_rest() -> None:
    held = 0
    with at_least(FLOOR, "orders that are gone") as examples:
        simple = st.lists(policies(limits=False, paused=False), min_size=1, max_size=4)

        @TRIES
        @given(fleets(obstacles=False), simple, st.integers(0, 15), st.lists(st.sampled_from("012"), max_size=8))
        def check(fleet: PaperFleet, wanted: list[Object], back: int, answers: list[str]) -> None:
            nonlocal held
            examples.one()
            commit(fleet, wanted)
            fleet.settle()
            fleet.states.clear()
            commit(fleet, [policy for index, policy in enumerate(wanted) if back >> index & 1])
            fleet.write(fleet.plan())
            for answer in [*"012", *answers]:
                fleet.report(f"n{answer}")
                gone, ordered = lost(fleet)
                before = releases(fleet)
                fleet.write(fleet.plan())
                newly = (releases(fleet) - before) & gone
                if (len(gone) >= 3 and len(gone) > ordered) or not fleet.policies:
                    held += bool(gone)
                    assert not newly
            fleet.world_extra = {"confirmation": "all"}
            fleet.settle()
            for name, found in fleet.cards.items():
                for place, card in found.items():
                    expected = expected_order(fleet, name, place)
                    assert card.bound == (expected is not None and expected[2] == "Passthrough")

        check()
    assert held >= FLOOR // 10, "the fleets drawn say too little"
