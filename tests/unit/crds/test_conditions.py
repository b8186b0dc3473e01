"""Conditions keep to the API conventions: transition times move with the status only, messages are bounded."""

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
