"""The samples and the rules: good ones are clean, each other one breaks just what its header says."""

from typing import Any

import pytest

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.samples import INVALID, VALID, WARNED, InvalidSample
from webhooks.rules import RULES, KnownView, Layer, Severity, Subject, Violation
from webhooks.rules.examples import NOW, view_of
from webhooks.rules.judge import ALL_LAYERS, SERVER_LAYERS, judge, judge_change

CATALOGUE = load_catalogue()
BEFORE_LINT = tuple(layer for layer in ALL_LAYERS if layer is not Layer.LINT)
# What a file alone cannot show: it needs an earlier version, live Nodes, a status, a known user, or a namespace.
NOT_IN_A_FILE = {
    "NPF-PM-121",
    "NPF-NP-112",
    "NPF-NP-121",
    "NPF-NP-142",
    "NPF-NP-143",
    "NPF-VQ-121",
    "NPF-VQ-122",
    "NPF-ALL-902",
}


def named(sample: dict[str, Any]) -> str:
    return f"{sample['kind']}-{sample['metadata']['name']}"


def judged(sample: InvalidSample) -> list[Violation]:
    view = view_of(list(sample.others), CATALOGUE)
    return judge(Subject.of(BY_NAME[sample.object["kind"]], sample.object), view, layers=BEFORE_LINT)


@pytest.mark.parametrize("sample", VALID, ids=named)
def test_a_good_sample_breaks_no_rule_neither_alone_nor_beside_the_others(sample: dict[str, Any]) -> None:
    subject = Subject.of(BY_NAME[sample["kind"]], sample)
    for view in (KnownView(CATALOGUE, NOW), view_of(VALID, CATALOGUE)):
        assert [violation.line for violation in judge(subject, view)] == []


@pytest.mark.parametrize("sample", [*INVALID, *WARNED], ids=lambda sample: sample.name)
def test_a_sample_breaks_the_rules_of_its_header_at_its_field(sample: InvalidSample) -> None:
    found = judged(sample)
    assert {violation.rule for violation in found} == set(sample.rules)
    told = [violation for violation in found if violation.field == sample.field]
    assert any(sample.message in violation.text for violation in told)
    is_refused = any(violation.severity is Severity.ERROR for violation in found)
    assert is_refused == (sample in INVALID)


@pytest.mark.parametrize("sample", [*INVALID, *WARNED], ids=lambda sample: sample.name)
def test_what_stands_beside_a_sample_is_good(sample: InvalidSample) -> None:
    for other in sample.others:
        assert judge(Subject.of(BY_NAME[other["kind"]], other), KnownView(CATALOGUE, NOW)) == []


@pytest.mark.parametrize("sample", INVALID, ids=lambda sample: sample.name)
def test_the_server_finds_what_the_linter_finds_of_its_layer(sample: InvalidSample) -> None:
    subject = Subject.of(BY_NAME[sample.object["kind"]], sample.object)
    view = view_of(list(sample.others), CATALOGUE)
    of_layer = [violation for violation in judged(sample) if RULES[violation.rule].layer in SERVER_LAYERS]
    assert judge_change(subject, view) == of_layer


def test_every_rule_of_the_webhook_has_a_sample() -> None:
    shown = {rule for sample in (*INVALID, *WARNED) for rule in sample.rules}
    wanted = {rule.id for rule in RULES.values() if rule.layer is Layer.WEBHOOK}
    assert wanted - shown == NOT_IN_A_FILE


def test_every_rule_between_fields_has_a_sample() -> None:
    shown = {rule for sample in INVALID for rule in sample.rules}
    assert {rule.id for rule in RULES.values() if rule.layer is Layer.CEL} <= shown
