"""The pytest plug-in of the guest's pytest: runs what the host asked for, in its order, and sends every report."""

from __future__ import annotations

import faulthandler
import json
import time
from typing import TextIO

import pytest

from tests.kernel.lab.share import BootDirectory, MessageWriter, guest_directory

# Before the host's patience ends, so that the stacks are there when it does.
STACKS_AT = 0.8
READY_SECONDS = 120.0


class GuestRun:
    """`deadlines`: seconds by node id."""

    def __init__(self, directory: BootDirectory, config: pytest.Config) -> None:
        self.config = config
        self.directory = directory
        self.writer = MessageWriter(directory.messages)
        request = json.loads(directory.request.read_text())
        self.deadlines: dict[str, float] = {test["id"]: test["deadline"] for test in request["tests"]}
        self.stacks: TextIO = directory.stacks.open("a")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {identity: place for place, identity in enumerate(self.deadlines)}
        unwanted = [item for item in items if item.nodeid not in order]
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
        if unwanted:
            self.config.hook.pytest_deselected(items=unwanted)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self.directory.ready.exists():
            if time.monotonic() > deadline:
                raise pytest.UsageError(f"the guest's devices are not ready after {READY_SECONDS:g} s")
            time.sleep(0.05)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.writer.write("collect-error", text=report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.writer.write("start", id=nodeid)
        self.stacks.write(f"{nodeid}\n")
        self.stacks.flush()
        faulthandler.dump_traceback_later(self.deadlines[nodeid] * STACKS_AT, file=self.stacks)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.writer.write("report", id=report.nodeid, data=data)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        faulthandler.cancel_dump_traceback_later()
        self.writer.write("finish", id=nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.writer.write("end", status=int(exitstatus))


@pytest.hookimpl(tryfirst=True)  # before the plug-in that writes the JUnit file looks for its name
def pytest_configure(config: pytest.Config) -> None:
    directory = guest_directory()
    if directory is not None:
        config.option.xmlpath = str(directory.junit)
        config.pluginmanager.register(GuestRun(directory, config), "npufleet-guest-run")
