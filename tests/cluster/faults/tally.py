"""Counts the runs under faults over all test processes: what ran, what struck, what each took; and holds floors.

A sample from which runs or kinds of faults have silently gone missing is a check that has stopped checking.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from tests.builders.fault_proxy import Kind
from tests.cluster.faults.scenarios import SCENARIOS

FLOOR_VARIABLE = "FAULTS_FLOOR"


class Tally:
    """A pytest plug-in. With $FAULTS_FLOOR the session fails when fewer runs were made, or when a scenario or a kind
    of fault never came up."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.floor = int(os.environ.get(FLOOR_VARIABLE, "0"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.runs += [
                value for name, value in report.user_properties if name == "faults" and isinstance(value, dict)
            ]

    def missing(self) -> list[str]:
        """What a complete session would have had."""
        found = []
        if len(self.runs) < self.floor:
            found.append(f"{len(self.runs)} runs under faults, at least {self.floor} expected")
        scenarios = {run["scenario"] for run in self.runs}
        found += [f"scenario {each.name} never ran" for each in SCENARIOS if each.name not in scenarios]
        struck = self.struck()
        found += [f"fault {kind} never struck" for kind in Kind if not struck[str(kind)]]
        return found

    def struck(self) -> Counter[str]:
        return sum((Counter(run["struck"]) for run in self.runs), Counter())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.floor and self.missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.runs:
            return
        good = sum(run["ok"] for run in self.runs)
        idle = sum(not run["struck"] for run in self.runs)
        terminalreporter.section("runs under faults")
        terminalreporter.write_line(
            f"{len(self.runs)} runs, {good} good; in {idle} of them nothing struck; "
            f"{len({run['scenario'] for run in self.runs})} scenarios; faults that struck: "
            + ", ".join(f"{kind} {count}" for kind, count in sorted(self.struck().items()))
        )
        for run in self.runs:
            if not run["ok"]:
                terminalreporter.write_line(f"failed: {run['text']}", red=True)
        for text in self.missing() if self.floor else ():
            terminalreporter.write_line(text, red=True)
