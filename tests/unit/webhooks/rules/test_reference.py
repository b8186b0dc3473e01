"""The rules as text: the page is fresh, has every rule, and `npufleet explain` knows each id in any spelling."""

import re
from pathlib import Path

import pytest

from cli.main import main
from crds.catalogue import load_catalogue
from webhooks.rules.reference import every_rule, page
from webhooks.rules_page.__main__ import PAGE
from webhooks.rules_page.__main__ import main as write

TEXT = page(load_catalogue())


def test_the_page_in_the_repository_is_fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(["--check"]) == 0
    assert write(["--check", "--root", str(tmp_path)]) == 1
    assert "stale" in capsys.readouterr().err
    assert write(["--root", str(tmp_path)]) == 0
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == TEXT
    assert write(["--check", "--root", str(tmp_path)]) == 0


def test_the_page_lists_and_explains_every_rule_once() -> None:
    headings = re.findall(r"^### (\S+)$", TEXT, re.MULTILINE)
    listed = re.findall(r"^\| \[(\S+)\]\(#(\S+)\) \|", TEXT, re.MULTILINE)
    assert headings == list(every_rule())
    assert sorted(id for id, _ in listed) == headings
    assert all(anchor == id.lower() for id, anchor in listed)


@pytest.mark.parametrize("id", every_rule())
def test_each_rule_is_explained_by_its_id(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    for spelling in (id, id.lower(), f"[{id}]"):
        assert main(["explain", spelling]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"{id}  {every_rule()[id].title}\n")
        assert " ".join(every_rule()[id].reason.split()) in " ".join(told.split())
        assert max(len(line) for line in told.splitlines() if not line.startswith("    ")) <= 120


def test_an_unknown_rule_is_told_with_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NPF-NP-130"]) == 2
    assert "there is no rule NPF-NP-130; did you mean NPF-NP-1" in capsys.readouterr().err
