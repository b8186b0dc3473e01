"""The documents are those that the recorded results make, and a stale one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import __main__ as command
from tests.contract.documents import LIMITS, TABLE, stale, table, with_limits
from tests.contract.statement import Statement, all_statements

ROWS = [
    Statement("one.row", 'header, `<id> : <name>` and "*"', run=lambda _machine: ""),
    Statement("two.lacking", "a phrase", run=lambda _machine: "", not_on_linux="no such card"),
    Statement("two.unshown", "a phrase", not_on_linux="no such card"),
]


def test_the_documents_are_current() -> None:
    assert stale(command.pages()) == []


def test_a_stale_document_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert stale({page: "text"}) == [page]
    page.write_text("text")
    assert stale({page: "text"}) == []
    assert stale({page: "another"}) == [page]


def test_the_table_shows_what_each_host_showed() -> None:
    page = table(ROWS, {"one.row": "EBUSY | <BDF>", "two.lacking": "ok"}, {"one.row": "EBUSY | <BDF>"}, "6.12.1")
    assert '| `one.row` | header, `<id> : <name>` and "\\*" | `EBUSY \\| <BDF>` | `EBUSY \\| <BDF>` |' in page
    assert "| `two.lacking` | a phrase | `ok` | – |" in page  # noqa: RUF001
    assert "| `two.unshown` | a phrase | – | – |" in page  # noqa: RUF001
    assert "3 statements: 1 shown alike on both hosts, 1 on the simulated kernel alone, 1 on neither" in page
    assert "Linux is 6.12.1." in page


def test_the_limits_name_each_statement_that_linux_lacks_with_its_reason() -> None:
    page = with_limits(LIMITS.read_text(), ROWS)
    assert "- `two.lacking`, `two.unshown`: no such card." in page
    assert "one.row" not in page.replace(LIMITS.read_text(), "")


def test_limits_without_the_place_for_the_list_are_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        with_limits("# Limits\n", ROWS)


def test_every_statement_stands_in_the_table() -> None:
    text = TABLE.read_text()
    assert [one.id for one in all_statements() if f"| `{one.id}` |" not in text] == []
