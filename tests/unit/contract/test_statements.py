"""Every statement of the list is shown by a row or has its reason, and each row shows one of the list."""

from __future__ import annotations

import itertools

import pytest

from simulated_node.rules.document import all_rules
from tests.contract.phrases import PHRASES
from tests.contract.statement import STATEMENTS, all_statements, statement, unshown

LISTED = list(itertools.chain.from_iterable(PHRASES.values()))


def test_every_phrase_of_the_list_has_a_row() -> None:
    quoted = {one.phrase for one in all_statements()}
    assert [phrase for phrase in LISTED if phrase not in quoted] == []


def test_every_row_quotes_a_phrase_of_the_list() -> None:
    assert [one.id for one in all_statements() if one.phrase not in LISTED] == []


def test_no_phrase_is_listed_twice() -> None:
    assert len(set(LISTED)) == len(LISTED)


def test_what_nobody_shows_has_a_reason() -> None:
    assert [one.id for one in all_statements() if not one.is_shown and not one.not_on_linux] == []


def test_ids_are_unique() -> None:
    taken = all_statements()[0]
    with pytest.raises(ValueError, match="registered twice"):
        statement(taken.id, taken.phrase)(lambda _machine: "")
    with pytest.raises(ValueError, match="registered twice"):
        unshown(taken.id, taken.phrase, "a reason")
    assert STATEMENTS[taken.id] is taken


@pytest.mark.parametrize("identifier", ["bind", "bind.", "Bind.x", "bind.no_match", "bind.a.b"])
def test_ids_are_an_area_and_a_name(identifier: str) -> None:
    with pytest.raises(ValueError, match="kebab-case"):
        unshown(identifier, "a phrase", "a reason")


def test_rules_of_the_simulated_kernel_are_shown_under_their_own_ids() -> None:
    rules = {rule.id for rule in all_rules()}
    shared = [one.id for one in all_statements() if one.id in rules]
    assert len(shared) >= 50
