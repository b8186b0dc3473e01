"""The machine of the kernel lab is the one that its roles promise."""

from __future__ import annotations

from pathlib import Path

from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.roles import ROLES

PCI = Path("/sys/bus/pci/devices")


def test_every_role_has_its_device(lab: Lab) -> None:
    assert set(lab.by_role) == set(ROLES)


def test_devices_have_their_drivers(lab: Lab) -> None:
    drivers = {role: (PCI / bdf / "driver") for role, bdf in lab.by_role.items()}
    found = {role: link.resolve().name if link.exists() else None for role, link in drivers.items()}
    assert found == {name: role.driver for name, role in ROLES.items()}
