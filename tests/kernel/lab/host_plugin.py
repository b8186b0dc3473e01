"""The pytest plug-in of the host: tests below tests/kernel/guest run in the guest, and their reports are replayed here
as if they had run in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.capture import CaptureManager

from tests.kernel.lab.boot import Boot, Run
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.guest import LabGuest
from tests.kernel.lab.run import LabRun
from tests.kernel.lab.watch import evidence

GUEST_TESTS = Path(__file__).parents[1] / "guest"
# Many times what a test needs: the disk of a busy host has been seen to stand still for most of a minute.
TEST_SECONDS = 120.0
PHASES = ("setup", "call", "teardown")


def boot_number(item: pytest.Item) -> int:
    """1, or 2 for what is to run after the reboot."""
    return 2 if item.get_closest_marker("after_reboot") else 1


def guest_of(item: pytest.Item) -> str:
    """The name of the guest that runs it."""
    marker = item.get_closest_marker("guest")
    return str(marker.args[0]) if marker else ""


def place_of(item: pytest.Item) -> tuple[str, int, bool]:
    """Where it runs: on which guest, in which boot, and whether last there, because the reboot is to forget what it
    leaves behind."""
    return guest_of(item), boot_number(item), item.get_closest_marker("before_reboot") is not None


def deadline_of(item: pytest.Item) -> float:
    """Seconds that the test may take in the guest."""
    marker = item.get_closest_marker("guest_deadline")
    return float(marker.args[0]) if marker else TEST_SECONDS


class KernelLab:
    """Boots its guests, all of them side by side and beside the tests of the host, and each once per boot number."""

    def __init__(
        self, config: pytest.Config, new_run: Callable[[str], Run] = LabRun, guest_tests: Path = GUEST_TESTS
    ) -> None:
        self.config = config
        self.new_run = new_run
        self.guest_tests = guest_tests
        self.items: dict[str, dict[int, list[pytest.Item]]] = {}
        self.guests: dict[str, LabGuest] = {}
        self.unusable: str | None = None

    def is_guest_test(self, item: pytest.Item) -> bool:
        return item.path.is_relative_to(self.guest_tests)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: place_of(item) if self.is_guest_test(item) else ("", 0, False))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if self.is_guest_test(item):
                self.items.setdefault(guest_of(item), {}).setdefault(boot_number(item), []).append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        self._start_guests()
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
        for guest in self.guests.values():
            if not stopped:
                guest.finish()
            guest.stop()

    def pytest_unconfigure(self) -> None:
        for guest in self.guests.values():
            guest.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for guest in self.guests.values():
            terminalreporter.write_line(f"kernel lab: {guest.summary}")
            for failed in guest.failed_starts:
                terminalreporter.write_line(f"kernel lab: a start was repeated; its logs: {failed}", yellow=True)
            for lost in guest.lost:
                said = "a guest's kernel lost its timer, and the rest of its tests ran in a new one; the logs"
                terminalreporter.write_line(f"kernel lab: {said}: {lost}", yellow=True)

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        if self.unusable is not None:
            return [failed_report(item, "setup", f"the kernel lab cannot run: {self.unusable}")]
        try:
            boot = self.guests[guest_of(item)].boot(boot_number(item), self._go_on)
            sent = boot.reports(item.nodeid, meanwhile=self._go_on)
        except (LabError, OSError) as error:  # OSError: no room, or no right, in the cache or the run's directory
            self.unusable = str(error)
            return self._reports(item)
        reports = [replayed(self.config, data) for data in sent]
        if item.nodeid not in boot.watch.finished:
            reports.append(failed_report(item, missing_phase(reports), self._why_missing(item, boot)))
        return reports

    def _why_missing(self, item: pytest.Item, boot: Boot) -> str:
        reason = boot.watch.verdict or "the guest's pytest ended without running it"
        if boot.watch.running not in {None, item.nodeid}:
            reason = f"did not run: {reason}"
        errors = "\n".join(boot.watch.collect_errors)
        return f"{reason}\n{errors}\n{evidence(boot.directory)}"

    def _start_guests(self) -> None:
        if self.guests or self.unusable is not None:
            return
        capture = cast(CaptureManager, self.config.pluginmanager.getplugin("capturemanager"))
        try:
            for name, by_boot in self.items.items():
                with capture.global_and_fixture_disabled():  # a first download takes a while: show that it goes on
                    run = self.new_run(name)
                tests = {number: {item: deadline_of(item) for item in items} for number, items in by_boot.items()}
                self.guests[name] = LabGuest(run, self.config, tests)
                self.guests[name].boot(1)
        except (LabError, OSError) as error:  # OSError: no room, or no right, in the cache or the run's directory
            self.unusable = str(error)

    def _go_on(self) -> None:
        """A guest that is through with a boot goes on with its next one, while the tests of another are waited for."""
        for guest in self.guests.values():
            guest.go_on()


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
