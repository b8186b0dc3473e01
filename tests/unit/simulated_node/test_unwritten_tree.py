"""A machine whose tree stays in memory answers every read as one that has written it."""

from __future__ import annotations

import errno
import itertools
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node_host.host import Host
from simulated_node.description import HostDescription
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel
from tests.builders.hosts import DRIVERS, PROBE, attribute, bench

SHIPPED = ("node-atom", "node-rebel100", "node-mixed", "node-hostile", "node-l40s", "node-ascend")
ORDERS = 40
READS = ("read", "list", "read_link", "resolve", "exists", "scan", "links", "stat")


def _answer(host: Host, read: str, path: str) -> Any:
    """What a read gives, errors as their numbers."""
    try:
        found = getattr(host, read)(path)
    except OSError as error:
        return "error", error.errno
    if read == "stat":
        # The size of a directory is the file system's own affair.
        return stat.S_IFMT(found.st_mode), found.st_size if stat.S_ISREG(found.st_mode) else None
    if read == "links":
        return {name: text.errno if isinstance(text, OSError) else text for name, text in found.items()}
    return list(found) if read == "scan" else found


def _paths(kernel: SimulatedKernel) -> set[str]:
    """Everything that is there, ways around to it, and what is not there."""
    found = {path for path in kernel._files.tree if path.startswith(("/sys", "/proc", "/dev", "/lib"))}
    tails = itertools.cycle(("/", "/.", "/..", "/missing", "/missing/..", "/../../..", "/vendor/beyond"))
    around = {f"{path}{tail}" for path, tail in zip(sorted(found), tails, strict=False)}
    return found | around | {"/sys/no", "/proc/0/comm", "/dev/..", "/sys/a\0b/c", "/sysfs", "/devices/x"}


def _same(written: SimulatedKernel, unwritten: SimulatedKernel) -> int:
    one, other = written.host(), unwritten.host()
    count = 0
    assert written._files.tree == unwritten._files.tree
    for path in sorted(_paths(written)):
        for read in READS:
            answer = _answer(one, read, path)
            if answer == ("error", errno.EACCES) or _answer(one, "resolve", path) == "/":
                continue  # an attribute that root alone may read; what is above the kernel's directories is no tree's
            assert _answer(other, read, path) == answer, f"{read} {path!r}"
            count += 1
    return count


def _order(kernel: SimulatedKernel, number: int) -> Callable[[SimulatedKernel], None]:
    """An order that makes sense of a machine, or nearly so; the same for the same number."""
    random = Random(number)
    machine = kernel._machine
    address = random.choice(sorted(machine.devices))
    driver = machine.devices[address].driver or "vfio-pci"
    writes = (
        (attribute(address, "driver_override"), b"vfio-pci"),
        (attribute(address, "driver_override"), b"\n"),
        (f"{DRIVERS}/{driver}/unbind", address.encode()),
        (PROBE, address.encode()),
        (attribute(address, "sriov_numvfs"), random.choice((b"2", b"0"))),
        (attribute(address, "no-such"), b"1"),
    )
    path, data = random.choice(writes)
    acts: tuple[Callable[[SimulatedKernel], object], ...] = (
        lambda one: one.write(path, data),
        lambda one: one.write(path, data),
        lambda one: one.write(path, data),
        lambda one: one.load_module("vfio_pci"),
    )
    goes = number % 10 == 9 and not machine.devices[address].description.is_bridge
    act = (lambda one: one.hot_remove(address)) if goes else random.choice(acts)

    def tried(one: SimulatedKernel) -> None:
        with suppress(OSError):
            act(one)

    return tried


def _open_all(kernel: SimulatedKernel) -> None:
    for number, path in enumerate(sorted(kernel._files.tree), 5000):
        if path.startswith("/dev/"):
            with suppress(OSError):
                kernel.open_device(path, pid=number)


@pytest.mark.parametrize("name", ["bench", *SHIPPED])
def test_reads_from_memory_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    description: HostDescription = bench() if name == "bench" else load_description(name)
    with ExitStack() as stack:
        written = stack.enter_context(SimulatedKernel(tmp_path / "written", description))
        unwritten = stack.enter_context(SimulatedKernel(tmp_path / "unwritten", description, in_memory=True))
        for kernel in (written, unwritten):
            kernel.reboot()  # whoever has a device open at first is gone, so no order waits for its end
        for number in range(ORDERS):
            act = _order(written, number)
            act(written)
            act(unwritten)
            assert written._files.tree == unwritten._files.tree
        for kernel in (written, unwritten):
            _open_all(kernel)
        count = _same(written, unwritten)
    print(f"{name}: {count} reads")
    assert count > 4_000


def test_a_machine_in_memory_has_the_files_of_its_disk_alone(tmp_path: Path) -> None:
    with SimulatedKernel(tmp_path, bench(), in_memory=True) as kernel:
        assert {path.name for path in tmp_path.iterdir()} == {".simulated-kernel", "run", "var", "etc", "tmp"}
        host = kernel.host()
        host.local("/var/run/lost").write_text("x")
        host.local("/var/lib/kept").write_text("y")
        assert host.read("/run/lost") == b"x"
        kernel.reboot()
        assert not host.exists("/run/lost")
        assert host.read("/var/lib/kept") == b"y"
