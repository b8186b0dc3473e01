"""A pytest plug-in: a skipped test fails the run unless its id stands in allowed-skips.txt; under CI none is allowed.

A skip that nobody listed is a check that silently stopped running.
"""

import os
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("allowed-skips.txt")


def allowed_ids(text: str) -> set[str]:
    """Test ids of the list: one ``id  reason`` a line, ``#`` starts a comment."""
    lines = (line.split("#", 1)[0].split(maxsplit=1) for line in text.splitlines())
    return {line[0] for line in lines if line}


class SkipWatch:
    """Collects the ids of skipped tests and turns unlisted ones into a failed run."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and report.nodeid not in self.allowed:
            self.unlisted.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped and report.nodeid not in self.allowed:
            self.unlisted.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.unlisted:
            terminalreporter.write_line(f"skipped and not in tests/{LIST.name}: {test}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    in_ci = os.environ.get("CI", "").lower() not in {"", "0", "false"}
    config.pluginmanager.register(SkipWatch(set() if in_ci else allowed_ids(LIST.read_text())), "npufleet-skip-watch")
