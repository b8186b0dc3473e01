"""KVM where it really works, else TCG. A /dev/kvm that opens proves nothing (nested machines offer ones that cannot
run a kernel), so the probe boots the guest's kernel; its answer is kept until the host boots again."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

from cli.cluster.locks import locked
from cli.cluster.run.launch import boot_id
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.guest_process import end, find_qemu, spawn
from tests.kernel.lab.kernel_packages import Kernel, lab_cache

VARIABLE = "NPUFLEET_LAB_ACCEL"
CHOICES = ("auto", "kvm", "tcg")
DEVICE = Path("/dev/kvm")
PROBE_SECONDS = 25.0
# What the initramfs says when it finds nothing to mount: by then the kernel has run user programs.
MARK = b"kernel-lab: cannot mount the root"
COMPLAINT = b"KVM internal error"


def choose(kernel: Kernel, initramfs: Path) -> str:
    """ "kvm" or "tcg", as $NPUFLEET_LAB_ACCEL says or as the probe finds. Raises LabError for another value."""
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in CHOICES:
        raise LabError(f"{VARIABLE}={wanted}: allowed are {', '.join(CHOICES)}")
    if wanted != "auto":
        return wanted
    return "kvm" if os.access(DEVICE, os.R_OK | os.W_OK) and _kvm_works(kernel, initramfs) else "tcg"


def _kvm_works(kernel: Kernel, initramfs: Path) -> bool:
    record = lab_cache() / "kvm.json"
    key = f"{boot_id()} {kernel.directory.name} {os.geteuid()}"
    with locked(record.with_suffix(".lock"), "trying KVM"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            known = json.loads(record.read_text())
            if known["key"] == key:
                return bool(known["works"])
        works = _boots(kernel.image, initramfs)
        new = record.with_suffix(".new")
        new.write_text(json.dumps({"key": key, "works": works}))
        new.replace(record)
        return works


def _boots(kernel: Path, initramfs: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="npufleet-kvm-") as scratch:
        serial, output = Path(scratch) / "serial", Path(scratch) / "output"
        command = [find_qemu(), *probe_arguments(kernel, initramfs, serial)]
        child = spawn(command, output)
        try:
            deadline = time.monotonic() + PROBE_SECONDS
            while time.monotonic() < deadline:
                ended = child.poll() is not None
                if serial.exists() and MARK in serial.read_bytes():
                    return True
                if ended or COMPLAINT in output.read_bytes():
                    return False
                time.sleep(0.05)
            return False
        finally:
            end(child)


def probe_arguments(kernel: Path, initramfs: Path, serial: Path) -> list[str]:
    """The lab's kernel and processor without any of its devices."""
    return [
        *("-machine", "q35,kernel-irqchip=split", "-accel", "kvm", "-cpu", "host", "-m", "512M"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-monitor", "none"),
        *("-serial", f"file:{str(serial).replace(',', ',,')}"),
        *("-kernel", str(kernel), "-initrd", str(initramfs)),
        *("-append", "console=ttyS0 quiet panic=-1"),
    ]
