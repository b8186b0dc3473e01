"""The machine of the kernel lab is the one that its roles promise."""

from __future__ import annotations

from pathlib import Path

from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.roles import ROLES

PCI = Path("/sys/bus/pci/devices")


def test_every_role_has_its_device(lab: Lab) -> None:
    assert set(lab.by_role) == set(ROLES)
