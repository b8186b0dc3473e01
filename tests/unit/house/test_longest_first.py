"""The longest tests are begun first, and none is lost by that."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.longest_first import LONGEST, in_order

ROOT = Path(__file__).parents[3]


def test_longest_stand_first_and_all_others_stay_in_their_order() -> None:
    ids = ["a.py::x", "b.py::quick", "b.py::slow[two]", "b.py::slow[one]", "c.py::y", "a.py::z[1::2]"]
    found = in_order([(id, id) for id in ids], ("c.py", "b.py::slow"))
    assert found == ["c.py::y", "b.py::slow[two]", "b.py::slow[one]", "a.py::x", "b.py::quick", "a.py::z[1::2]"]


@pytest.mark.parametrize("name", LONGEST)
def test_what_is_listed_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    body = ast.parse((ROOT / file).read_text()).body
    tests = {one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not test or test in tests


def test_nothing_is_listed_twice() -> None:
    assert len(set(LONGEST)) == len(LONGEST)
