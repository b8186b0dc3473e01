"""What tests in the guest share: the machine's devices by role."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.lab import roles


@dataclass(frozen=True)
class Lab:
    """`lab["pf"]` is a BDF; roles are those of tests/kernel/lab/roles.py."""

    by_role: Mapping[str, str]

    def __getitem__(self, role: str) -> str:
        return self.by_role[role]

    @staticmethod
    def plugged() -> str | None:
        """The BDF of what is now in the empty port, in whatever state of coming or going."""
        return roles.below(roles.ROLES["empty_port"])

    @classmethod
    def ready(cls) -> str | None:
        """The same once it can be found on the bus, which is a moment after its directory is there."""
        address = cls.plugged()
        return address if address and Path(f"/sys/bus/pci/devices/{address}/vendor").exists() else None

    @staticmethod
    def load(module: str) -> None:
        """Load a kernel module, one of tests/kernel/modules or of the kernel's own, with what it needs."""
        subprocess.run(["modprobe", module], check=True, timeout=30, capture_output=True)


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab(roles.find_all())
