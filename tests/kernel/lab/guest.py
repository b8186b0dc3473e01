"""One of the lab's guests over its boots: what it runs in which of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.kernel.lab.boot import Boot, Run

# Named, because looking for plug-ins reads the metadata of every installed package, which takes seconds in the guest.
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "tests.kernel.lab.guest_plugin")


class LabGuest:
    """`tests`: by boot number what runs in it, with its deadline in seconds. Call from the main thread alone: QEMU ends
    with the thread that started it."""

    def __init__(self, run: Run, config: pytest.Config, tests: Mapping[int, Mapping[pytest.Item, float]]) -> None:
        self.run = run
        self.config = config
        self.tests = tests
        self.boots: dict[int, Boot] = {}

    @property
    def summary(self) -> str:
        return self.run.summary

    @property
    def failed_starts(self) -> list[Path]:
        return [path for boot in self.boots.values() for path in boot.failed_starts]

    @property
    def lost(self) -> list[Path]:
        """The directories of tries that were repeated because the guest's kernel had lost a timer."""
        return [path for boot in self.boots.values() for path in boot.lost]

    def boot(self, number: int, meanwhile: Callable[[], None] = lambda: None) -> Boot:
        """This boot, started when the ones before it have ended: the second is one only after a first. Raises
        LabError."""
        for wanted in range(1, number + 1):
            if wanted not in self.boots:
                for earlier in self.boots.values():
                    earlier.finish(meanwhile)
                if wanted not in self.boots:  # `meanwhile` may have started it
                    self._start(wanted)
        return self.boots[number]

    def go_on(self) -> None:
        """Start the next boot, if there is one and the last has ended; or that one again, if it has lost its timer.
        Raises LabError."""
        for boot in self.boots.values():
            boot.repeat_if_lost()
        wanted = max(self.boots, default=0) + 1
        if wanted <= max(self.tests) and all(boot.over for boot in self.boots.values()):
            self._start(wanted)

    def finish(self) -> None:
        for boot in self.boots.values():
            boot.finish()

    def stop(self) -> None:
        """End what still runs."""
        for boot in self.boots.values():
            boot.stop()

    def close(self) -> None:
        self.stop()
        self.run.close()

    def _start(self, number: int) -> None:
        for earlier in self.boots.values():
            earlier.stop()
        tests = self.tests.get(number, {})
        files = list(dict.fromkeys(str(item.path) for item in tests))
        deadlines = {item.nodeid: seconds for item, seconds in tests.items()}
        self.boots[number] = Boot(self.run, number, deadlines, self._command(files))

    def _command(self, files: Sequence[str]) -> list[str]:
        if not files:
            return ["true"]  # pytest without files would look for all there are
        python = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-u", "-m", "pytest"]
        fixed = ["-p", "no:cacheprovider", *PLUGINS, "-v", f"--rootdir={self.config.rootpath}"]
        passed_on = [f"--tb={self.config.option.tbstyle}", *(["-l"] if self.config.option.showlocals else [])]
        return [*python, *fixed, *passed_on, "--", *files]
