"""Conditions keep to the API conventions: transition times move with the status only, messages are bounded."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crds.models.conditions import (
    MESSAGE_LIMIT,
    Condition,
    Status,
    condition,
    find_condition,
    merge_conditions,
    parse_timestamp,
    same_status,
    timestamp,
    truncate_message,
)
from tests.builders.examples import at_least

FLOOR = 2000
BEFORE, NOW = "2026-11-30T12:00:00Z", "2026-11-30T13:00:00Z"


@pytest.mark.parametrize(
    ("given_status", "expected"),
    [(True, "True"), (False, "False"), (None, "Unknown"), (Status.UNKNOWN, "Unknown")],
)
def test_a_status_may_be_given_as_a_truth_value(given_status: bool | Status | None, expected: str) -> None:
    assert condition("Ready", given_status, "Because", now=NOW).status == expected


def test_the_transition_time_stays_while_only_reason_message_or_generation_change() -> None:
    old = condition("Ready", False, "RollingOut", "1 of 3", now=BEFORE, observed_generation=1)
    new = condition("Ready", False, "DevicesBlocked", "in use", now=NOW, observed_generation=2)
    (merged,) = merge_conditions([old], [new])
    assert merged == new.model_copy(update={"last_transition_time": BEFORE})


def test_the_transition_time_moves_when_the_status_flips() -> None:
    old = condition("Ready", None, "Rebooted", now=BEFORE)
    new = condition("Ready", True, "AllDevicesReady", now=NOW)
    assert merge_conditions([old], [new]) == (new,)


def test_types_that_are_not_stated_any_more_go() -> None:
    old = [condition(type, True, "Because", now=BEFORE) for type in ("Ready", "Left")]
    assert [found.type for found in merge_conditions(old, [condition("Ready", True, "Because", now=NOW)])] == ["Ready"]


def test_merging_the_same_conditions_again_changes_nothing() -> None:
    @settings(max_examples=FLOOR, deadline=None)
    @given(_conditions(), _conditions())
    def stable(old: list[Condition], new: list[Condition]) -> None:
        examples.one()
        merged = merge_conditions(old, new)
        assert merge_conditions(merged, new) == merged
        assert [found.type for found in merged] == [found.type for found in new]
        for found in merged:
            before = find_condition(old, found.type)
            kept = before is not None and before.status == found.status
            stated = find_condition(new, found.type)
            assert stated is not None
            assert found.last_transition_time == (before if kept and before else stated).last_transition_time

    with at_least(FLOOR, "merging conditions") as examples:
        stable()


def _conditions() -> st.SearchStrategy[list[Condition]]:
    # By type: absent, or (status, reason, time).
    one = st.none() | st.tuples(
        st.sampled_from(list(Status)), st.sampled_from(["A", "B"]), st.sampled_from([BEFORE, NOW])
    )
    return st.tuples(one, one, one).map(
        lambda stated: [
            condition(type, found[0], found[1], now=found[2])
            for type, found in zip(("Ready", "Accepted", "Degraded"), stated, strict=True)
            if found is not None
        ]
    )


@pytest.mark.parametrize("length", [0, 1, MESSAGE_LIMIT - 1, MESSAGE_LIMIT])
def test_a_message_that_fits_is_kept(length: int) -> None:
    assert truncate_message("m" * length) == "m" * length


@pytest.mark.parametrize("length", [MESSAGE_LIMIT + 1, 10 * MESSAGE_LIMIT])
def test_a_message_that_does_not_fit_is_cut_and_says_so(length: int) -> None:
    found = condition("Ready", True, "Because", "ü" * length, now=NOW)
    assert len(found.message) == MESSAGE_LIMIT
    assert found.message.endswith("(cut)")


def test_a_short_limit_is_kept_too() -> None:
    assert [len(truncate_message("x" * 100, limit)) for limit in (0, 1, 5, 20, 100)] == [0, 1, 5, 20, 100]


@pytest.mark.parametrize("reason", ["", "not one word", "ends:", "1st", "ü"])
def test_a_reason_that_is_no_word_is_refused(reason: str) -> None:
    with pytest.raises(ValidationError):
        condition("Ready", True, reason, now=NOW)


@pytest.mark.parametrize("time", ["", "now", "2026-11-30", "2026-11-31T12:00:00Z", "2026-11-30T12:00:00+01:00"])
def test_a_time_that_is_none_in_utc_is_refused(time: str) -> None:
    with pytest.raises(ValidationError):
        condition("Ready", True, "Because", now=time)


def test_a_condition_that_is_not_there_is_none() -> None:
    assert find_condition([], "Ready") is None


def ready(status: str, time: str = NOW) -> dict[str, str]:
    return {"type": "Ready", "status": status, "reason": "R", "message": "", "lastTransitionTime": time}


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({}, {"a": None}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}, True),
        ({"a": []}, {}, False),
        ([ready("True"), {**ready("True"), "type": "A"}], [{**ready("True"), "type": "A"}, ready("True")], True),
        ([ready("True")], [ready("False")], False),
        ([ready("True")], [ready("True", time=BEFORE)], False),
        ([{"node": "a"}, {"node": "b"}], [{"node": "b"}, {"node": "a"}], False),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        ({"a": 1}, [], False),
        (None, None, True),
        ({"a": (1, 2)}, {"a": [1, 2]}, True),
    ],
)
def test_equality_is_that_of_the_api(left: Any, right: Any, same: bool) -> None:
    assert same_status(left, right) is same
    assert same_status(right, left) is same


@pytest.mark.parametrize("text", ["2026-11-30T12:00:00Z", "2026-11-30T13:00:00.000000+01:00"])
def test_moment_is_read_with_its_zone_and_written_in_utc(text: str) -> None:
    moment = parse_timestamp(text)
    assert moment == datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert timestamp(moment) == "2026-11-30T12:00:00Z"


@pytest.mark.parametrize("text", ["", "soon", "2026-11-30T12:00:00", "2026-02-30T12:00:00Z"])
def test_text_that_tells_no_moment_is_none(text: str) -> None:
    assert parse_timestamp(text) is None
