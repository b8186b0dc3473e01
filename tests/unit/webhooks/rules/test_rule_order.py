"""A rule that is said never to match decides no device in the planner, whatever devices a node has."""

from typing import Any

from hypothesis import HealthCheck, given, settings

from controllers.node_policy.plan.decide import decide
from controllers.node_policy.plan.read import read_node, read_policy
from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.devices_of_matches import draw_match, draw_wider, drawn, every_device
from tests.builders.examples import Digits, at_least
from tests.builders.objects import device_rule, node, node_policy
from webhooks.rules import RULES, KnownView, Subject

CATALOGUE = load_catalogue()
VIEW = KnownView(CATALOGUE)
DEVICES = every_device(CATALOGUE)
NODE = read_node(node())
FLOOR = 2000


def never_matching(policy: dict[str, Any]) -> set[str]:
    subject = Subject.of(BY_NAME["NPUNodePolicy"], policy)
    places = [violation.pointer for violation in RULES["NPF-NP-103"].check(subject, VIEW)]
    return {policy["spec"]["devices"][int(place.split("/")[3])]["name"] for place in places}


def draw_rules(digits: Digits) -> list[dict[str, Any]]:
    last = draw_match(digits, frequent=digits.pick((4, 9)))
    before = [draw_wider(digits, last, share) for share in range(digits.pick((1, 2, 3)))]
    return [draw_rule(digits, f"rule-{index}", match) for index, match in enumerate([*before, last])]


def draw_rule(digits: Digits, name: str, match: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"limit": 3} if digits.pick(range(4)) == 0 else {}
    if digits.pick(range(5)) == 0 and match.get("function") != "Virtual":
        given["passthrough"] = {"virtualFunctions": 2}
        return device_rule(name, match=match, mode="Passthrough", **given)
    return device_rule(name, match=match, mode="Container", **given)


def test_a_rule_that_is_said_never_to_match_decides_nothing() -> None:
    said = 0

    @settings(max_examples=FLOOR + 100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn())
    def hold(digits: Digits) -> None:
        nonlocal said
        examples.one()
        policy = node_policy("policy", rules=draw_rules(digits))
        never = never_matching(policy)
        if not never:
            return
        said += 1
        start = digits.pick(range(len(DEVICES)))
        there = [*DEVICES[start:], *DEVICES[:start]]
        distinct = {device.address: device for device in there[:: digits.pick((1, 7, 11))]}
        planned = [read_policy(policy)]
        for devices in (*([device] for device in there[::9]), distinct.values()):
            decided = decide(NODE, devices, planned, frozenset(), {}, {}).decided
            assert not {decision.rule for decision in decided.values()} & never

    with at_least(FLOOR, "rules that never match decide nothing") as examples:
        hold()
    print(f"rules that never match in {said}")
    assert said > 200


def test_a_limit_leaves_devices_to_the_rules_after_it() -> None:
    rules = [
        device_rule("some", products=["RBLN-CA25"], mode="Container", limit=64),
        device_rule("the-rest", products=["RBLN-CA25"], mode="Passthrough"),
    ]
    assert never_matching(node_policy("policy", rules=rules)) == set()


def test_a_rule_for_functions_of_cards_leaves_virtual_functions_to_those_after_it() -> None:
    cards = device_rule("cards", match={"vendors": ["10de"], "function": "Any"}, passthrough={"virtualFunctions": 4})
    functions = device_rule("functions", match={"vendors": ["10de"], "function": "Virtual"}, mode="Container")
    physical = device_rule("physical", match={"vendors": ["10de"]}, mode="Container")
    assert never_matching(node_policy("policy", rules=[cards, functions, physical])) == {"physical"}


def test_a_rule_that_is_broken_itself_takes_nothing() -> None:
    broken = device_rule("broken", match={"vendors": ["1eff"]}, mode="Container", limit=0)
    assert never_matching(node_policy("policy", rules=[broken, device_rule("sound")])) == set()
