"""The pytest plug-in of the host: tests below tests/kernel/guest run in the guest, and their reports are replayed here
as if they had run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.capture import CaptureManager

from tests.kernel.lab.boot import Boot, Run
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.run import LabRun
from tests.kernel.lab.watch import evidence

GUEST_TESTS = Path(__file__).parents[1] / "guest"
TEST_SECONDS = 60.0
# Named, because looking for plug-ins reads the metadata of every installed package, which takes seconds in the guest.
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "tests.kernel.lab.guest_plugin")
PHASES = ("setup", "call", "teardown")


def boot_number(item: pytest.Item) -> int:
    """1, or 2 for what is to run after the reboot."""
    return 2 if item.get_closest_marker("after_reboot") else 1


def place_of(item: pytest.Item) -> tuple[int, bool]:
    """Where it runs: in which boot, and whether last there, because the reboot is to forget what it leaves behind."""
    return boot_number(item), item.get_closest_marker("before_reboot") is not None


def deadline_of(item: pytest.Item) -> float:
    """Seconds that the test may take in the guest."""
    marker = item.get_closest_marker("guest_deadline")
    return float(marker.args[0]) if marker else TEST_SECONDS


class KernelLab:
    """Boots when the first guest test is due, once per boot number."""

    def __init__(
        self, config: pytest.Config, new_run: Callable[[], Run] = LabRun, guest_tests: Path = GUEST_TESTS
    ) -> None:
        self.config = config
        self.new_run = new_run
        self.guest_tests = guest_tests
        self.items: dict[int, list[pytest.Item]] = {}
        self.run: Run | None = None
        self.boots: dict[int, Boot] = {}
        self.unusable: str | None = None

    def is_guest_test(self, item: pytest.Item) -> bool:
        return item.path.is_relative_to(self.guest_tests)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: place_of(item) if self.is_guest_test(item) else (0, False))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if self.is_guest_test(item):
                self.items.setdefault(boot_number(item), []).append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not self.is_guest_test(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        stopped = session.shouldstop or session.shouldfail or session.exitstatus == pytest.ExitCode.INTERRUPTED
        for boot in self.boots.values():
            if not stopped:
                boot.finish()
            boot.stop()

    def pytest_unconfigure(self) -> None:
        for boot in self.boots.values():
            boot.stop()
        if self.run is not None:
            self.run.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.run is not None:
            terminalreporter.write_line(f"kernel lab: {self.run.summary}")
            for failed in (path for boot in self.boots.values() for path in boot.failed_starts):
                terminalreporter.write_line(f"kernel lab: a start was repeated; its logs: {failed}", yellow=True)

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        try:
            boot = self._boot(boot_number(item))
        except (LabError, OSError) as error:  # OSError: no room, or no right, in the cache or the run's directory
            self.unusable = str(error)
        if self.unusable is not None:
            return [failed_report(item, "setup", f"the kernel lab cannot run: {self.unusable}")]
        reports = [replayed(self.config, data) for data in boot.reports(item.nodeid)]
        if item.nodeid not in boot.watch.finished:
            reports.append(failed_report(item, missing_phase(reports), self._why_missing(item, boot)))
        return reports

    def _why_missing(self, item: pytest.Item, boot: Boot) -> str:
        reason = boot.watch.verdict or "the guest's pytest ended without running it"
        if boot.watch.running not in {None, item.nodeid}:
            reason = f"did not run: {reason}"
        errors = "\n".join(boot.watch.collect_errors)
        return f"{reason}\n{errors}\n{evidence(boot.directory)}"

    def _boot(self, number: int) -> Boot:
        if self.unusable is not None:
            raise LabError(self.unusable)
        if self.run is None:
            capture = cast(CaptureManager, self.config.pluginmanager.getplugin("capturemanager"))
            with capture.global_and_fixture_disabled():  # a first download takes a while: show that it goes on
                self.run = self.new_run()
        for wanted in range(1, number + 1):  # the second boot is one only after a first
            if wanted not in self.boots:
                for boot in self.boots.values():
                    boot.finish()
                items = self.items.get(wanted, [])
                deadlines = {item.nodeid: deadline_of(item) for item in items}
                files = list(dict.fromkeys(str(item.path) for item in items))
                self.boots[wanted] = Boot(self.run, wanted, deadlines, self._command(files))
        return self.boots[number]

    def _command(self, files: Sequence[str]) -> list[str]:
        if not files:
            return ["true"]  # pytest without files would look for all there are
        python = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-u", "-m", "pytest"]
        fixed = ["-p", "no:cacheprovider", *PLUGINS, "-v", f"--rootdir={self.config.rootpath}"]
        passed_on = [f"--tb={self.config.option.tbstyle}", *(["-l"] if self.config.option.showlocals else [])]
        return [*python, *fixed, *passed_on, "--", *files]


def replayed(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """The report that the guest sent. JSON has no tuples, and pytest looks for one in a skip's reason."""
    if isinstance(data["longrepr"], list):
        data = data | {"longrepr": tuple(data["longrepr"])}
    return cast(pytest.TestReport, config.hook.pytest_report_from_serializable(config=config, data=data))


def missing_phase(reports: Sequence[pytest.TestReport]) -> str:
    """The phase that a test was in when its guest went away."""
    return PHASES[min(len(reports), len(PHASES) - 1)]


def failed_report(item: pytest.Item, phase: str, text: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=phase,  # type: ignore[arg-type]
    )
