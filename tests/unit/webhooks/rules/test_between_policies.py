"""A policy that is said to lose everywhere decides nothing in the planner, on whatever node with whatever devices."""

import time
from typing import Any

from hypothesis import HealthCheck, given, settings

from controllers.node_policy.plan.decide import decide
from controllers.node_policy.plan.read import read_node, read_policy
from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from crds.models.node_policy import NPUNodePolicy
from tests.builders.devices_of_matches import draw_match, draw_wider, drawn, every_device
from tests.builders.examples import Digits, at_least
from tests.builders.objects import device_rule, node, node_policy
from webhooks.rules import RULES, KnownView, Severity, Subject, Violation
from webhooks.rules.judge import SERVER_LAYERS, judge

CATALOGUE = load_catalogue()
DEVICES = every_device(CATALOGUE)
LABELS: tuple[dict[str, str], ...] = ({}, {"x": "a"}, {"x": "b"}, {"x": "a", "y": "a"}, {"y": "a"})
SELECTORS: tuple[dict[str, Any], ...] = (
    {},
    {"matchLabels": {"x": "a"}},
    {"matchLabels": {"x": "a", "y": "a"}},
    {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
    {"matchExpressions": [{"key": "x", "operator": "In", "values": ["a", "b"]}]},
)
FLOOR = 2000


def view(*others: dict[str, Any]) -> KnownView:
    policies = {other["metadata"]["name"]: NPUNodePolicy.model_validate(other) for other in others}
    return KnownView(CATALOGUE, known_policies=policies)


def broken(rule: str, policy: dict[str, Any], *others: dict[str, Any]) -> list[Violation]:
    return list(RULES[rule].check(Subject.of(BY_NAME["NPUNodePolicy"], policy), view(*others)))


def draw_policies(digits: Digits) -> list[dict[str, Any]]:
    narrow = [draw_match(digits, frequent=digits.pick((3, 6))) for _ in range(digits.pick((1, 1, 2)))]
    wide = [draw_wider(digits, match, share) for share, match in enumerate(narrow)]
    found = []
    for name, matches in (("narrow", narrow), ("wide", wide)):
        rules = []
        for index, match in enumerate(matches):
            limit: dict[str, Any] = {"limit": 2} if digits.pick(range(6)) == 0 else {}
            mode = "Container" if name == "narrow" else digits.pick(("Passthrough", "Passthrough", "Container"))
            rules.append(device_rule(f"rule-{index}", match=match, mode=mode, **limit))
        priority, state = digits.pick((50, 100, 200)), digits.pick(("Active", "Active", "Active", "Paused"))
        selector = digits.pick(SELECTORS)
        found.append(node_policy(name, rules=rules, node_selector=selector, priority=priority, state=state))
    return found


def test_a_policy_that_is_said_to_lose_everywhere_decides_nothing() -> None:
    said = 0

    @settings(max_examples=FLOOR + 100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn())
    def hold(digits: Digits) -> None:
        nonlocal said
        examples.one()
        one, other = draw_policies(digits)
        for mine, theirs in ((one, other), (other, one)):
            loses = bool(broken("NPF-NP-111", mine, theirs))
            assert loses == bool(broken("NPF-NP-112", theirs, mine))
            if not loses:
                continue
            said += 1
            planned = sorted((read_policy(mine), read_policy(theirs)), key=lambda policy: policy.precedence)
            start = digits.pick(range(7))
            for labels in LABELS:
                there = [[device] for device in DEVICES[start::23]]
                for devices in (*there, list({device.address: device for device in DEVICES[start::5]}.values())):
                    decisions = decide(read_node(node(labels=labels)), devices, planned, frozenset(), {}, {})
                    deciding = {decision.policy for decision in decisions.decided.values()}
                    assert mine["metadata"]["name"] not in deciding

    with at_least(FLOOR, "policies that lose everywhere decide nothing") as examples:
        hold()
    print(f"{said} lose everywhere")
    assert said > 100


def test_the_winner_is_named_with_its_priority() -> None:
    loser = node_policy("b", rules=[device_rule()])
    (told,) = broken("NPF-NP-111", loser, node_policy("a", rules=[device_rule(mode="Container")]))
    assert told.line == (
        'spec.priority: policy "a" (priority 100) decides every device that this one means; raise the priority above '
        '100, or take the devices out of "a" [NPF-NP-111]'
    )
    assert told.severity is Severity.WARNING
    assert broken("NPF-NP-111", loser, node_policy("c", rules=[device_rule(mode="Container")])) == []


def test_policies_that_want_the_same_of_every_device_take_nothing_from_each_other() -> None:
    one = node_policy("one", rules=[device_rule()])
    same = node_policy("same", rules=[device_rule("other-name", match={"vendors": ["1eff"]})], priority=200)
    assert broken("NPF-NP-111", one, same) == broken("NPF-NP-112", same, one) == []
    assert broken("NPF-NP-111", one, node_policy("mode", rules=[device_rule(mode="Container")], priority=200))


def test_many_large_policies_are_compared_in_no_time() -> None:
    def large(number: int) -> dict[str, Any]:
        def ids(start: int) -> list[str]:
            return [f"{(start + one) % 65536:04x}" for one in range(16)]

        starts = [16 * rule for rule in range(31)] + [20000 + 16 * number]
        rules = [
            device_rule(f"rule-{rule}", match={"vendors": ["1eff"], "devices": ids(start)})
            for rule, start in enumerate(starts)
        ]
        return node_policy(f"policy-{number:03}", rules=rules, mode="Container")

    policies = [large(number) for number in range(100)]
    around = view(*policies)
    before = time.process_time()
    for policy in policies[:20]:
        subject = Subject.of(BY_NAME["NPUNodePolicy"], policy)
        for rule in ("NPF-NP-111", "NPF-NP-112", "NPF-NP-113"):
            assert list(RULES[rule].check(subject, around)) == []
    assert time.process_time() - before < 4


def test_a_policy_is_never_beside_itself_and_a_paused_one_takes_nothing() -> None:
    policy, other = node_policy("a", rules=[device_rule()]), device_rule(mode="Container")
    assert broken("NPF-NP-111", policy, node_policy("b", rules=[other], priority=200))
    assert broken("NPF-NP-111", policy, node_policy("a", rules=[other], priority=200)) == []
    assert broken("NPF-NP-111", policy, node_policy("b", rules=[other], priority=200, state="Paused")) == []


def test_nodes_that_are_there_count_where_selectors_alone_do_not_tell() -> None:
    mine = node_policy("mine", rules=[device_rule()], nodes={"rack": "7"})
    other = node_policy("other", rules=[device_rule(mode="Container")], nodes={"pool": "atom"}, priority=200)
    alone = view(other)
    subject = Subject.of(BY_NAME["NPUNodePolicy"], mine)

    def beside(nodes: dict[str, dict[str, str]]) -> list[str]:
        known = KnownView(CATALOGUE, known_policies=alone.known_policies, known_nodes=nodes)
        return [found.rule for found in judge(subject, known, layers=SERVER_LAYERS)]

    assert judge(subject, alone, layers=SERVER_LAYERS) == []
    assert beside({"n": {"rack": "7", "pool": "atom"}}) == ["NPF-NP-111"]
    assert beside({"n": {"rack": "7", "pool": "atom"}, "m": {"rack": "7"}}) == []
