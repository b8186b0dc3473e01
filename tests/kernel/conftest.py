"""Tests below guest/ run inside a real Linux guest, which the plug-in of tests/kernel/lab boots for them."""

from __future__ import annotations

import pytest

from tests.kernel.lab.host_plugin import KernelLab
from tests.kernel.lab.share import guest_directory

MARKERS = (
    "before_reboot: runs last in the first boot: what it leaves behind is for the second to forget",
    "after_reboot: runs in the second boot of the guest, with the /state of the first",
    "guest(name): which of the guests that run side by side it is for (default: the one without a name)",
    "guest_deadline(seconds): how long the test may take in the guest (default: 120)",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if guest_directory() is None:
        config.pluginmanager.register(KernelLab(config), "npufleet-kernel-lab")
