"""The demo's Git repository: HEAD is what counts, and git's failures are told in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.demo.repository import PolicyRepository
from cli.errors import CommandError


def test_only_what_was_committed_is_exported(tmp_path: Path) -> None:
    repository = PolicyRepository(tmp_path / "policies")
    repository.commit({"a.yaml": "limit: 16\n"}, "Take all")
    repository.commit({"a.yaml": "limit: 8\n"}, "Give half back")
    (repository.directory / "a.yaml").write_text("limit: 1\n")
    assert repository.change_of_head() == "-limit: 16\n+limit: 8"
    assert (repository.export_head(tmp_path / "out") / "a.yaml").read_text() == "limit: 8\n"


def test_failure_of_git_ends_the_command_in_its_own_words(tmp_path: Path) -> None:
    repository = PolicyRepository(tmp_path / "policies")
    repository.commit({"a.yaml": "limit: 16\n"}, "Take all")
    (repository.directory / ".git/HEAD").write_text("ref: refs/heads/none\n")
    with pytest.raises(CommandError, match=r"git archive: .*HEAD"):
        repository.export_head(tmp_path / "out")


def test_missing_git_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="git is not installed"):
        PolicyRepository(tmp_path / "policies")
