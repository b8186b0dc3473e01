"""Quantities are counted as the API server counts them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.models.quantity import QUANTITY_PATTERN, parse_quantity
from tests.builders.examples import at_least
from tests.builders.quantities import KNOWN
from tests.builders.schema_judge import Judge

FLOOR = 2000
_DIGITS = st.text("0123456789", max_size=10)
_SUFFIXES = st.sampled_from(["", "n", "u", "m", "k", "K", "M", "Mi", "mi", "E", "Ei", "e", "e3", "E-30", "e+31", "i"])
_TEXTS = st.builds(
    "".join, st.tuples(st.sampled_from(["", "+", "-"]), _DIGITS, st.sampled_from(["", "."]), _DIGITS, _SUFFIXES)
)


@pytest.mark.parametrize(("text", "amount"), KNOWN)
def test_a_quantity_is_this_amount(text: str, amount: Fraction) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "Ki", "-", "+", "1 Gi", "1GB", "1gi", "1K", "1KI", "1kB", "0x10", "1e", "1e+", "1e1.5", "1,5",
        "1.2.3", "1Gi\n", " 1Gi", "٣", "NaN", "inf", "1_000", "--1", "1e31", "1" * 65, "1mm", "1Mim",
    ],
)  # fmt: skip
def test_a_text_that_is_no_quantity_is_refused_with_an_example_of_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity"):
        parse_quantity(text)


def test_every_text_that_the_schema_takes_is_an_amount_and_no_amount_is_negative() -> None:
    judge = Judge({"type": "string", "pattern": QUANTITY_PATTERN, "maxLength": 32})

    taken: list[str] = []

    @settings(max_examples=FLOOR, deadline=None)
    @given(st.one_of(_TEXTS, st.text("0123456789.+-eEKMGTPinumk", max_size=8)))
    def sound(text: str) -> None:
        examples.one()
        if not judge.faults(text):
            taken.append(text)
            assert parse_quantity(text) >= 0

    with at_least(FLOOR, "schema and parser") as examples:
        sound()
    assert len(taken) > FLOOR // 10


def test_amounts_below_a_nano_are_rounded_up_and_never_lost() -> None:
    @settings(max_examples=FLOOR, deadline=None)
    @given(st.integers(1, 10**25))
    def rounded(digits: int) -> None:
        examples.one()
        exact = Fraction(digits, 10**25)
        found = parse_quantity(f"0.{digits:025}" if digits < 10**25 else "1")
        assert exact <= found < exact + Fraction(1, 10**9)
        assert (found * 10**9).denominator == 1

    with at_least(FLOOR, "rounding to a nano") as examples:
        rounded()
