"""How many nodes a number or a percentage allows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crds.models.int_or_percent import scaled
from crds.models.rollout import Rollout
from tests.builders.examples import at_least

FLOOR = 2000


@pytest.mark.parametrize(
    ("value", "total", "allowed"),
    [
        (1, 0, 1),
        (1, 100, 1),
        (7, 3, 7),
        ("1%", 0, 1),
        ("1%", 1, 1),
        ("1%", 99, 1),
        ("1%", 100, 1),
        ("1%", 101, 2),
        ("10%", 5, 1),
        ("10%", 10, 1),
        ("10%", 11, 2),
        ("25%", 4, 1),
        ("25%", 5, 2),
        ("33%", 3, 1),
        ("34%", 3, 2),
        ("50%", 3, 2),
        ("99%", 100, 99),
        ("99%", 101, 100),
        ("100%", 7, 7),
        ("100%", 0, 1),
    ],
)
def test_percentages_are_rounded_up_and_allow_at_least_one(value: int | str, total: int, allowed: int) -> None:
    assert scaled(value, total) == allowed


def test_more_percent_or_more_nodes_never_allow_fewer() -> None:
    @settings(max_examples=FLOOR, deadline=None)
    @given(st.integers(1, 99), st.integers(0, 100_000))
    def monotonic(percent: int, total: int) -> None:
        examples.one()
        allowed = scaled(f"{percent}%", total)
        assert 1 <= allowed <= max(1, total)
        assert allowed * 100 >= percent * total
        assert scaled(f"{percent + 1}%", total) >= allowed
        assert scaled(f"{percent}%", total + 1) >= allowed

    with at_least(FLOOR, "percentages") as examples:
        monotonic()


@pytest.mark.parametrize("value", [1, 100_000, "1%", "50%", "100%"])
def test_a_value_in_range_is_kept_as_written(value: int | str) -> None:
    assert Rollout.model_validate({"maxUnavailable": value}).to_object() == {"maxUnavailable": value}


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        100_001,
        "0%",
        "00%",
        "01%",
        "101%",
        "50",
        "50 %",
        "50%\n",
        "\u0665\u0660%",
        "%",
        "",
        True,
        1.0,
        None,
        [],
        "1.5%",
    ],
)
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        Rollout.model_validate({"maxUnavailable": value})
