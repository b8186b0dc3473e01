"""For tests inside the guest: asking the host, which owns the machine's plugs and its monitor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kernel.lab.share import CallRefusedError, call, guest_directory

__all__ = ["RESULTS", "STATE", "CallRefusedError", "ask_host"]

# Lives over the reboot of the guest; and what stays for people to look at afterwards.
STATE = Path("/state")
RESULTS = Path("/results")


def ask_host(execute: str, arguments: Mapping[str, Any] | None = None, *, seconds: float = 30) -> Any:
    """Run a QMP command on this guest's own machine, e.g. `ask_host("device_del", {"id": "pf"})`; a device's id is its
    role. Returns QMP's "return" value (usually {}). Raises CallRefusedError with QEMU's words, TimeoutError, and
    RuntimeError outside the guest."""
    directory = guest_directory()
    if directory is None:
        raise RuntimeError("ask_host works inside the guest of the kernel lab only")
    return call(directory, execute, arguments or {}, seconds=seconds)
