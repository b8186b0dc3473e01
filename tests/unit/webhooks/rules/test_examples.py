"""Every rule is shown by its own examples: what is called bad breaks it and no other rule, what is good breaks none."""

import re

import pytest

from crds.catalogue import load_catalogue
from webhooks.rules import RULES, Layer, Rule, Severity
from webhooks.rules.examples import staged
from webhooks.rules.judge import ALL_LAYERS, judge, judge_change
from webhooks.rules.rule import Example
from webhooks.rules.subject import Operation
from webhooks.rules.violation import Violation

CATALOGUE = load_catalogue()
EXAMPLES = [(rule, example) for rule in RULES.values() for example in rule.bad]
GOOD = [(rule, example) for rule in RULES.values() for example in rule.good]


def name(value: object) -> str:
    return value.id if isinstance(value, Rule) else ""


def found(rule: Rule, example: Example) -> list[Violation]:
    """As the layer of the rule finds it: a lint rule looks at files, the others are judged without it."""
    subject, view = staged(rule, example, CATALOGUE)
    layers = ALL_LAYERS if rule.layer is Layer.LINT else [layer for layer in ALL_LAYERS if layer is not Layer.LINT]
    if subject.operation is Operation.CREATE:
        return judge(subject, view, layers=layers)
    return judge_change(subject, view, layers=layers)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
def test_a_bad_example_breaks_its_rule_and_no_other(rule: Rule, example: Example) -> None:
    assert {violation.rule for violation in found(rule, example)} == {rule.id}


@pytest.mark.parametrize(("rule", "example"), GOOD, ids=name)
def test_a_good_example_breaks_no_rule(rule: Rule, example: Example) -> None:
    assert [violation.line for violation in found(rule, example)] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=name)
def test_a_rule_is_explained(rule: Rule) -> None:
    assert re.fullmatch(r"NPF-(NP|PM|VQ|NS|ALL)-[0-9]{3}", rule.id)
    assert rule.good
    assert rule.bad
    assert rule.title[0].islower() or rule.title.startswith("vGPU")
    assert not rule.title.endswith(".")
    assert rule.reason.endswith(".")
    assert len(rule.reason) > 40


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
def test_a_message_is_one_line_that_names_field_and_rule(rule: Rule, example: Example) -> None:
    for violation in found(rule, example):
        assert "\n" not in violation.line
        assert violation.line.startswith(f"{violation.field}: ") or not violation.field
        assert violation.line.endswith(f"[{rule.id}]")
        assert rule.id not in violation.text
        assert not violation.message.endswith(".")
        assert len(violation.line) < 400


def test_some_example_of_every_rule_has_the_severity_that_the_rule_names() -> None:
    for rule in RULES.values():
        severities = {violation.severity for example in rule.bad for violation in found(rule, example)}
        assert rule.severity in severities, rule.id
        assert rule.severity is Severity.ERROR or severities == {Severity.WARNING}, rule.id
