"""CEL rules are evaluated as the API server does it: transition rules on changes only, items of lists by their keys."""

from typing import Any

import pytest

from webhooks.rules.between_fields import broken_rules, told_id

GROWS = {"rule": "self >= oldSelf", "message": "may only grow [NPF-NP-099]"}


def rules(schema: dict[str, Any], value: Any, *old: Any) -> list[tuple[str, str]]:
    return [(broken.id, broken.pointer) for broken in broken_rules(schema, value, *old)]


def test_a_rule_about_a_change_holds_where_nothing_was_before() -> None:
    schema = {"properties": {"size": {"type": "integer", "x-kubernetes-validations": [GROWS]}}}
    assert rules(schema, {"size": 1}) == []
    assert rules(schema, {"size": 1}, {}) == []
    assert rules(schema, {"size": 2}, {"size": 1}) == []
    assert rules(schema, {"size": 1}, {"size": 2}) == [("NPF-NP-099", "/size")]


def test_a_rule_with_an_optional_old_value_is_asked_on_creation_too() -> None:
    rule = {"rule": "oldSelf.hasValue() || self == 1", "message": "begins with 1", "optionalOldSelf": True}
    schema = {"properties": {"size": {"type": "integer", "x-kubernetes-validations": [rule]}}}
    assert rules(schema, {"size": 1}) == []
    assert rules(schema, {"size": 2}) == [("", "/size")]
    assert rules(schema, {"size": 2}, {"size": 1}) == []


def test_items_of_a_list_of_type_map_are_compared_by_key_and_others_not_at_all() -> None:
    item = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer", "x-kubernetes-validations": [GROWS]}},
    }
    old, new = (
        [{"name": "a", "size": 5}, {"name": "b", "size": 1}],
        [{"name": "b", "size": 2}, {"name": "a", "size": 4}],
    )
    keyed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    assert rules(keyed, new, old) == [("NPF-NP-099", "/1/size")]
    assert rules({"type": "array", "items": item, "x-kubernetes-list-type": "atomic"}, new, old) == []


def test_a_value_of_another_type_breaks_no_rule() -> None:
    rule = {"rule": "size(self.a) > 0 && self.b > 1", "message": "x"}
    schema = {"type": "object", "properties": {}, "x-kubernetes-validations": [rule]}
    assert rules(schema, {"a": 1, "b": "x"}) == []
    assert rules(schema, "text") == []
    assert rules(schema, {"a": "x", "b": 1}) == [("", "")]


def test_the_fault_is_told_at_the_path_that_the_rule_names() -> None:
    rule = {"rule": "false", "message": "no [NPF-VQ-002]", "fieldPath": ".a.b"}
    schema = {"properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule]}}}
    assert rules(schema, {"spec": {}}) == [("NPF-VQ-002", "/spec/a/b")]


@pytest.mark.parametrize(
    ("message", "expected"),
    [("no [NPF-NP-001]", ("NPF-NP-001", "no")), ("no", ("", "no")), ("[NPF-NP-001] no", ("", "[NPF-NP-001] no"))],
)
def test_the_id_stands_at_the_end_of_a_message(message: str, expected: tuple[str, str]) -> None:
    assert told_id(message) == expected
