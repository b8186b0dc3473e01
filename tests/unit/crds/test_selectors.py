"""Label selectors select what the API server's select."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crds.models.selectors import LabelSelector
from tests.builders.examples import at_least

FLOOR = 2000


def selector(**given_fields: Any) -> LabelSelector:
    return LabelSelector.model_validate(given_fields)


def test_an_empty_selector_selects_everything() -> None:
    assert selector().matches({})
    assert selector(matchLabels={}, matchExpressions=[]).matches({"a": "b"})


# Labels: key absent, key with an empty value, key with a listed value, key with another value.
LABELS: tuple[dict[str, str], ...] = ({}, {"pool": ""}, {"pool": "a"}, {"pool": "c"})


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["a", "b"], [False, False, True, False]),
        ("In", [""], [False, True, False, False]),
        ("NotIn", ["a", "b"], [True, True, False, True]),
        ("NotIn", [""], [True, False, True, True]),
        ("Exists", None, [False, True, True, True]),
        ("DoesNotExist", None, [True, False, False, False]),
    ],
)
def test_operators_select_as_in_the_api_server(operator: str, values: list[str] | None, selected: list[bool]) -> None:
    requirement = {"key": "pool", "operator": operator} | ({} if values is None else {"values": values})
    chosen = selector(matchExpressions=[requirement])
    assert [chosen.matches(labels) for labels in LABELS] == selected


def test_labels_must_have_exactly_these_values() -> None:
    chosen = selector(matchLabels={"pool": ""})
    assert [chosen.matches(labels) for labels in LABELS] == [False, True, False, False]


def test_all_requirements_must_hold() -> None:
    chosen = selector(matchLabels={"pool": "a"}, matchExpressions=[{"key": "gone", "operator": "DoesNotExist"}])
    assert chosen.matches({"pool": "a", "more": "x"})
    assert not chosen.matches({"pool": "a", "gone": ""})
    assert not chosen.matches({})


def test_contradicting_requirements_select_nothing() -> None:
    chosen = selector(
        matchExpressions=[{"key": "pool", "operator": "Exists"}, {"key": "pool", "operator": "DoesNotExist"}]
    )
    assert not any(chosen.matches(labels) for labels in LABELS)


def naive(chosen: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Selection by sets of (key, value), written another way than the model."""
    pairs = set(labels.items())
    if not set(chosen.match_labels.items()) <= pairs:
        return False
    for requirement in chosen.match_expressions:
        present = any(key == requirement.key for key, _ in pairs)
        listed = bool(pairs & set(itertools.product([requirement.key], requirement.values)))
        if {"In": listed, "NotIn": not listed, "Exists": present, "DoesNotExist": not present}[requirement.operator]:
            continue
        return False
    return True


KEYS = st.sampled_from(["a", "b", "npufleet.io/c"])
VALUES = st.sampled_from(["", "x", "y"])
REQUIREMENTS = st.one_of(
    st.fixed_dictionaries(
        {"key": KEYS, "operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(VALUES, min_size=1, max_size=3)}
    ),
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)


def test_any_selector_agrees_with_a_naive_one() -> None:
    outcomes = {True: 0, False: 0}

    @settings(max_examples=FLOOR, deadline=None)
    @given(
        st.dictionaries(KEYS, VALUES, max_size=2),
        st.lists(REQUIREMENTS, max_size=3),
        st.dictionaries(KEYS, VALUES, max_size=3),
    )
    def agree(match_labels: dict[str, str], expressions: list[dict[str, Any]], labels: dict[str, str]) -> None:
        examples.one()
        chosen = selector(matchLabels=match_labels, matchExpressions=expressions)
        assert chosen.matches(labels) == naive(chosen, labels)
        outcomes[chosen.matches(labels)] += 1

    with at_least(FLOOR, "label selectors") as examples:
        agree()
    assert min(outcomes.values()) > FLOOR // 50


@pytest.mark.parametrize(
    "faulty",
    [
        {"matchLabels": {"not a key": "x"}},
        {"matchLabels": {"a": "not a value"}},
        {"matchLabels": {"/a": "x"}},
        {"matchLabels": {"A/b": "x"}},
        {"matchLabels": {"a..b/c": "x"}},
        {"matchLabels": {"a" * 64: "x"}},
        {"matchLabels": {"a": "x" * 64}},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]},
        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
    ],
)
def test_a_selector_that_the_api_server_would_refuse_is_refused(faulty: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LabelSelector.model_validate(faulty)
