"""The pytest plug-in of the host: tests below tests/kernel/guest run in the guest, and their reports are replayed here
as if they had run in this process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.capture import CaptureManager

from tests.kernel.lab.errors import LabError
from tests.kernel.lab.guest_process import GuestProcess
from tests.kernel.lab.run import LabRun
from tests.kernel.lab.share import GUEST_SHARE, write_atomically
from tests.kernel.lab.watch import ROUND_SECONDS, Watch, evidence

GUEST_TESTS = Path(__file__).parents[1] / "guest"
TEST_SECONDS = 60.0
STOP_SECONDS = 10.0
# Named, because looking for plug-ins reads the metadata of every installed package, which takes seconds in the guest.
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "tests.kernel.lab.guest_plugin")
PHASES = ("setup", "call", "teardown")


def is_guest_test(item: pytest.Item) -> bool:
    return item.path.is_relative_to(GUEST_TESTS)


def boot_number(item: pytest.Item) -> int:
    """1, or 2 for what is to run after the reboot."""
    return 2 if item.get_closest_marker("after_reboot") else 1


def deadline_of(item: pytest.Item) -> float:
    """Seconds that the test may take in the guest."""
    marker = item.get_closest_marker("guest_deadline")
    return float(marker.args[0]) if marker else TEST_SECONDS


class Boot:
    """One running boot with its watch in a thread."""

    def __init__(self, run: LabRun, number: int, items: Sequence[pytest.Item], options: Sequence[str]) -> None:
        deadlines = {item.nodeid: deadline_of(item) for item in items}
        files = list(dict.fromkeys(str(item.path) for item in items))
        python = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-u", "-m", "pytest"]
        directory = run.prepare_boot(number, [*python, *options, "--", *files], wait_for_roles=False)
        tests = [{"id": identity, "deadline": seconds} for identity, seconds in deadlines.items()]
        write_atomically(directory.request, {"tests": tests})
        self.directory = directory
        self.process: GuestProcess = run.start(directory)
        self.watch = Watch(self.process, directory, deadlines, time.monotonic)
        self.thread = threading.Thread(target=self._follow, name=f"kernel-lab-boot-{number}", daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        while not self.watch.over:
            try:
                self.watch.step()
            except Exception as error:  # a message that nobody can read: the run must say so, not hang
                self.watch.cancel(f"the lab cannot follow the guest: {error!r}")
                return
            time.sleep(ROUND_SECONDS)

    def reports(self, nodeid: str, seen: int) -> tuple[list[dict[str, Any]], bool]:
        """Wait for reports of a test beyond the first `seen`; the flag says that no more will come."""
        watch = self.watch
        with watch.changed:
            watch.changed.wait_for(
                lambda: (
                    len(watch.reports.get(nodeid, ())) > seen or nodeid in watch.finished or watch.verdict is not None
                )
            )
            return watch.reports.get(nodeid, [])[seen:], nodeid in watch.finished or watch.verdict is not None

    def finish(self) -> None:
        """Let the guest end its pytest and switch itself off; its watch knows how long that may take."""
        with self.watch.changed:
            self.watch.changed.wait_for(lambda: self.watch.over)
        self.stop()

    def stop(self) -> None:
        self.process.kill()
        self.thread.join(STOP_SECONDS)


class KernelLab:
    """Boots when the first guest test is due, once per boot number."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.items: dict[int, list[pytest.Item]] = {}
        self.run: LabRun | None = None
        self.boots: dict[int, Boot] = {}
        self.unusable: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: boot_number(item) if is_guest_test(item) else 0)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if is_guest_test(item):
                self.items.setdefault(boot_number(item), []).append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not is_guest_test(item):
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
            where, how = self.run.directory, self.run.accelerator
            terminalreporter.write_line(f"kernel lab: {self.run.kernel.release} under {how}; logs in {where}")

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        try:
            boot = self._boot(boot_number(item))
        except LabError as error:
            self.unusable = str(error)
        if self.unusable is not None:
            return [failed_report(item, "setup", f"the kernel lab cannot run: {self.unusable}")]
        seen: list[dict[str, Any]] = []
        through = False
        while not through:
            new, through = boot.reports(item.nodeid, len(seen))
            seen += new
        hook = self.config.hook.pytest_report_from_serializable
        reports: list[pytest.TestReport] = [hook(config=self.config, data=data) for data in seen]
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
                self.run = LabRun()
        for wanted in range(1, number + 1):  # the second boot is one only after a first
            if wanted not in self.boots:
                for boot in self.boots.values():
                    boot.finish()
                self.boots[wanted] = Boot(self.run, wanted, self.items.get(wanted, []), self._options(wanted))
        return self.boots[number]

    def _options(self, number: int) -> list[str]:
        junit = GUEST_SHARE / f"boot-{number}" / "junit.xml"
        passed_on = [f"--tb={self.config.option.tbstyle}", *(["-l"] if self.config.option.showlocals else [])]
        fixed = ["-p", "no:cacheprovider", *PLUGINS, "-v"]
        return [*fixed, f"--junitxml={junit}", f"--rootdir={self.config.rootpath}", *passed_on]


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
