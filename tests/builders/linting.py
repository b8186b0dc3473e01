"""Runs the linter as a person does, and on texts alone; and makes Git repositories for it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cli.lint.findings import Finding, in_order
from cli.lint.linter import Options, lint
from cli.lint.sources import Source, read_text
from cli.main import main

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NAME = "file.yaml"

POLICY = """\
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata:
  name: atoms
spec:
  nodeSelector: {}
  devices:
  - name: cards
    match:
      products: [RBLN-CA25]
    mode: Passthrough
"""
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code and what it said."""

    code: int
    out: str
    err: str


def run_lint(*arguments: str | Path) -> Ended:
    """`npufleet lint ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["lint", *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())


def options(*, is_whole: bool = True, skip_built_in: bool = False, allowed: tuple[str, ...] = ()) -> Options:
    return Options(NOW, "1.37", is_whole=is_whole, skip_built_in=skip_built_in, allowed_groups=frozenset(allowed))


def found_in(text: str | bytes, *, base: str | None = None, asked: Options | None = None) -> list[Finding]:
    """Everything that is found in one file."""
    data = text.encode() if isinstance(text, str) else text
    read, findings = read_text(NAME, data)
    sources = [Source(NAME, read)] if read is not None else []
    before = [Source(NAME, base)] if base is not None else []
    return in_order([*findings, *lint(sources, asked or options(), base=before).findings])


def rules_in(text: str | bytes, *, base: str | None = None, asked: Options | None = None) -> list[str]:
    """The ids of everything that is found, in the order of the places."""
    return [one.rule for one in found_in(text, base=base, asked=asked)]


def places_in(text: str | bytes) -> list[str]:
    """`LINE:COLUMN RULE` of everything that is found."""
    return [f"{one.spot.line}:{one.spot.column} {one.rule}" for one in found_in(text)]


class Repository:
    """A Git repository in a directory, with commits that files are written for."""

    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir(parents=True, exist_ok=True)
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, **files: str) -> str:
        """Write files (`a__b` stands for a/b, `.yaml` is added) and commit all there is; the commit's id."""
        for name, text in files.items():
            self.write(name, text)
        self._git("add", "--all")
        self._git("-c", "user.name=t", "-c", "user.email=t@t.invalid", "commit", "--quiet", "--message", "change")
        return self._git("rev-parse", "HEAD").strip()

    def write(self, name: str, text: str) -> Path:
        path = self.top / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _git(self, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.top), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *arguments], cwd=self.top, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout
