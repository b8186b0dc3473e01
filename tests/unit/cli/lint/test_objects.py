"""Objects of our kinds: all faults of all layers at once, each at its place, and the order in which a server tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.lint.report import orders, steps
from tests.builders.linting import POLICY, found_in, options, places_in, rules_in
from tests.builders.samples import FOLDER, INVALID, InvalidSample
from webhooks.rules import Layer

VALID = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", VALID, ids=[path.stem for path in VALID])
def test_a_valid_sample_has_no_faults(path: Path) -> None:
    assert rules_in(path.read_text(encoding="utf-8"), asked=options(is_whole=False)) == []


@pytest.mark.parametrize("sample", INVALID, ids=lambda sample: sample.name)
def test_an_invalid_sample_is_refused_at_the_field_that_it_names(sample: InvalidSample) -> None:
    text = sample.path.read_text(encoding="utf-8")
    errors = [one for one in found_in(text, asked=options(is_whole=False)) if one.is_error]
    assert errors
    # The field, or what is nearest to it: a server that checks a map's keys names the map.
    named = re.sub(r"\[[^\]]*[^\]\d][^\]]*\]$", "", sample.field)
    assert any(one.violation.field.startswith(named) or named.startswith(one.violation.field) for one in errors)
    for one in errors:
        assert 0 < one.spot.line <= text.count("\n") + 1
        assert one.spot.column > 0


@pytest.mark.parametrize("sample", INVALID, ids=lambda sample: sample.name)
def test_an_invalid_sample_breaks_the_rules_that_it_names_and_no_others(sample: InvalidSample) -> None:
    text = sample.path.read_text(encoding="utf-8")
    told = re.search(r"^# rules: (.+)$", text, re.MULTILINE)
    assert told, "the sample's header names the rules that it breaks"
    errors = {one.rule for one in found_in(text, asked=options(is_whole=False)) if one.is_error}
    assert errors == set(told[1].split(", "))


FAULTY = """\
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata:
  name: atoms
  labels:
    team: 7
spec:
  prioritty: 5
  devices:
  - name: cards
    match:
      products: [RBLN-CA2]
    limit: 0
    mode: passthrough
  - name: cards
    match:
      products: [RBLN-CA25]
    mode: Passthrough
    vgpu:
      profileMapRef: {name: gone}
"""


def test_faults_of_all_layers_are_told_at_once_with_their_places() -> None:
    assert [place for place in places_in(FAULTY) if "NPF-NP-1" not in place or "NPF-NP-101" in place] == [
        "6:11 NPF-ALL-002",
        "7:1 NPF-ALL-003",
        "8:3 NPF-ALL-001",
        "9:3 NPF-NP-008",
        "12:18 NPF-NP-101",
        "13:12 NPF-ALL-006",
        "14:11 NPF-ALL-004",
        "19:5 NPF-NP-002",
    ]


def test_the_order_in_which_a_server_reveals_them_is_told() -> None:
    told = steps(found_in(FAULTY))
    assert [(step.number, step.layer) for step in told] == [
        (1, Layer.FIELDS),
        (2, Layer.SCHEMA),
        (3, Layer.CEL),
        (4, Layer.WEBHOOK),
    ]
    (order,) = orders(found_in(FAULTY))
    assert order.startswith(
        "NPUNodePolicy/atoms: the API server would show these one step at a time: step 1: unknown fields (8:3), "
        "step 2: schema (6:11, 7:1, 13:12, 14:11), step 3: rules between fields (9:3, 19:5), step 4: webhook (12:18"
    )


def test_one_layer_needs_no_order() -> None:
    assert orders(found_in(POLICY.replace("Passthrough", "passthrough"))) == []


def test_a_missing_field_stands_where_its_parent_does() -> None:
    assert places_in(POLICY.replace("  nodeSelector: {}\n", "")) == ["5:1 NPF-ALL-003"]
    assert places_in(POLICY.replace("    mode: Passthrough\n", "")) == ["8:5 NPF-ALL-003"]
    assert places_in(POLICY[: POLICY.index("spec:")] + "spec: {}\n") == ["5:1 NPF-ALL-003", "5:1 NPF-ALL-003"]
    assert places_in(POLICY[: POLICY.index("spec:")]) == ["1:1 NPF-ALL-003"]


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("metadata:\n  name: atoms\n", "", "1:1 NPF-YML-009"),
        ("  name: atoms\n", "  labels: {a: b}\n", "3:1 NPF-YML-009"),
        ("  name: atoms\n", "  generateName: atoms-\n", ""),
        ("  name: atoms\n", "  name: Atoms\n", "4:9 NPF-ALL-005"),
        ("  name: atoms\n", "  name: 5\n", "4:9 NPF-ALL-002"),
        ("  name: atoms\n", "  name: atoms\n  nmae: x\n", "5:3 NPF-ALL-001"),
        ("  name: atoms\n", "  name: atoms\n  namespace: team\n", "5:14 NPF-ALL-113"),
        ("  name: atoms\n", "  name: atoms\n  labels: {a b: c}\n", "5:17 NPF-YML-009"),
        ("  name: atoms\n", "  name: atoms\n  annotations: {x/y/z: c}\n", "5:24 NPF-YML-009"),
    ],
)
def test_metadata_is_checked_as_the_api_server_does(old: str, new: str, place: str) -> None:
    assert places_in(POLICY.replace(old, new)) == ([place] if place else [])


@pytest.mark.parametrize(
    ("old", "new", "place", "fix"),
    [
        ("kind: NPUNodePolicy", "kind: NPUNodePolcy", "2:7 NPF-YML-015", "did you mean NPUNodePolicy"),
        ("kind: NPUNodePolicy", "kind: Teapot", "2:7 NPF-YML-015", "there are NPUNodePolicy, VGPUProfileMap"),
        ("v1alpha1", "v1", "1:13 NPF-YML-015", "write npufleet.io/v1alpha1"),
        ("npufleet.io/v1alpha1", "npufleet.io", "2:7 NPF-K8S-001", ""),
    ],
)
def test_unknown_kinds_and_versions_of_the_group_are_refused(old: str, new: str, place: str, fix: str) -> None:
    (found,) = found_in(POLICY.replace(old, new))
    assert f"{found.spot.line}:{found.spot.column} {found.rule}" == place
    assert fix in found.violation.fix


@pytest.mark.parametrize(
    ("items", "found"), [("", "is missing"), ("items: null\n", "is missing"), ("items: {}\n", "is no list")]
)
def test_a_list_without_objects_is_told(items: str, found: str) -> None:
    (one,) = found_in(f"apiVersion: v1\nkind: List\n{items}")
    assert one.violation.message == f"a List without objects: items {found}"


def test_the_same_object_twice_in_a_file_is_an_error_that_names_the_first() -> None:
    (found,) = found_in(f"{POLICY}---\n{POLICY}")
    assert (found.rule, found.is_error, found.spot.line) == ("NPF-YML-008", True, 16)
    assert found.violation.fix == "it is in file.yaml:4:9 first"


def test_nothing_is_said_of_an_object_that_is_right() -> None:
    assert found_in(POLICY) == []
