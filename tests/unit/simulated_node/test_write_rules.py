"""Writing to the simulated kernel's files: what is no attribute, what is not supported, what is logged; ordered
faults.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_node.kernel import SimulatedKernel
from simulated_node.records import read_records
from simulated_node.root import PRIVATE
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NPU, TWIN, Sleeper
from tests.builders.kernel_rules import allows, shows

OVERRIDE = hosts.attribute(NPU, "driver_override")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@shows("write.no-such-file")
@pytest.mark.parametrize(
    "path", ["/sys/bus/pci/nothing", f"{DRIVERS}/vfio-pci/bind", "/var/lib/x", "", "/../x", "sys/bus/pci/drivers_probe"]
)
def test_write_to_what_is_not_there_creates_nothing(kernel: SimulatedKernel, path: str) -> None:
    with hosts.refused("ENOENT"):
        kernel.host().write(path, b"x")
    assert not (kernel.root / "var/lib/x").exists()


@shows("write.directory")
@pytest.mark.parametrize("path", [f"{hosts.DEVICES}/{NPU}", hosts.DEVICES, "/", "/../.."])
def test_directory_is_not_written(kernel: SimulatedKernel, path: str) -> None:
    with hosts.refused("EISDIR"):
        kernel.host().write(path, b"x")


@shows("write.read-only")
@pytest.mark.parametrize("name", ["vendor", "modalias", "class"])
def test_read_only_attribute_is_refused_even_to_root(kernel: SimulatedKernel, name: str) -> None:
    with hosts.refused("EACCES"):
        kernel.host().write(hosts.attribute(NPU, name), b"x")


@shows("write.not-simulated")
@pytest.mark.parametrize("name", ["numa_node", "enable", "config"])
def test_attribute_beyond_the_simulation_says_so(kernel: SimulatedKernel, name: str) -> None:
    with hosts.refused("EPERM"):
        kernel.host().write(hosts.attribute(NPU, name), b"1")
    assert kernel.writes[-1].rule == "write.not-simulated"


@allows("write.no-such-file", "write.directory", "write.read-only", "write.not-simulated")
def test_every_path_that_leads_to_an_attribute_is_good(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    for path in (
        OVERRIDE,
        host.resolve(OVERRIDE),
        f"{DRIVERS}/rebellions/{NPU}/driver_override",
        f"/sys/./bus/../bus{OVERRIDE[8:]}",
    ):
        host.write(path, b"vfio-pci")
        assert hosts.text(host, OVERRIDE) == "vfio-pci\n"
        host.write(OVERRIDE, b"\n")


def test_log_tells_who_wrote_what_and_what_came_of_it(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(OVERRIDE, b"vfio-pci\n")
    with hosts.refused("ENODEV"):
        host.write(f"{DRIVERS}/rebellions/bind", b"\xff")
    host.load_module("vfio-pci")
    first, second, third = kernel.writes
    assert (first.seq, first.pid, first.parent, first.path, first.data) == (
        1,
        os.getpid(),
        os.getppid(),
        OVERRIDE,
        "vfio-pci\n",
    )
    assert (first.result, first.rule) == ("ok", None)
    assert (second.data, second.result, second.rule) == ("\xff", "ENODEV", "bind.no-such-device")
    assert (third.path, third.result) == ("module:vfio_pci", "ok")
    assert first.comm == Path("/proc/self/comm").read_text().strip()
    log = kernel.root / PRIVATE / "writes.jsonl"
    assert read_records(log) == kernel.writes
    with log.open("a") as file:
        file.write('{"half a li')
    assert read_records(log) == kernel.writes
    assert json.loads(log.read_text().splitlines()[0])["comm"] == first.comm


def test_refusal_has_the_words_of_the_system_and_none_of_ours(kernel: SimulatedKernel) -> None:
    with pytest.raises(OSError, match="No such device") as caught:
        kernel.host().write(f"{DRIVERS}/rebellions/bind", b"nonsense")
    assert caught.value.strerror == os.strerror(caught.value.errno or 0)


def test_ordered_failure_strikes_so_often_and_does_nothing(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.fail_next(f"{DRIVERS}/rebellions/unbind", "EIO", times=2)
    for _ in range(2):
        with hosts.refused("EIO"):
            host.write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
    assert hosts.driver_of(host, NPU) == "rebellions"
    host.write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
    assert [record.result for record in kernel.writes] == ["EIO", "EIO", "ok"]


def test_ordered_lie_reports_success_and_does_nothing(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.swallow_next(hosts.PROBE)
    host.write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
    host.write(hosts.PROBE, NPU.encode())
    assert hosts.driver_of(host, NPU) is None
    host.write(hosts.PROBE, NPU.encode())
    assert hosts.driver_of(host, NPU) == "rebellions"


def test_ordered_faults_strike_modules_probes_and_reads_too(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.fail_next("module:vfio_pci", "ENOMEM")
    with hosts.refused("ENOMEM"):
        host.load_module("vfio-pci")
    kernel.fail_next(f"probe:vfio-pci:{NPU}", "ENOTTY")
    hosts.give_to_vfio(host, NPU)
    assert hosts.driver_of(host, NPU) is None
    kernel.fail_next(f"read:{OVERRIDE}", "ENODEV")
    with hosts.refused("ENODEV"):
        host.read(OVERRIDE)
    assert host.read(OVERRIDE) == b"vfio-pci\n"


def test_read_hangs_until_it_is_released(kernel: SimulatedKernel) -> None:
    hold = kernel.block(f"read:*/{NPU}/vendor")
    read = Sleeper(lambda: kernel.host().read(hosts.attribute(NPU, "vendor")))
    assert hold.wait_until_blocked()
    assert hosts.text(kernel.host(), hosts.attribute(TWIN, "vendor")) == "0x1eff\n"
    hold.release()
    assert read.result() == "ok"


@pytest.mark.parametrize(("pattern", "name"), [("/sys/*", "ENONSENSE"), ("/sys/*", "EPROBE_DEFER")])
def test_fault_with_an_impossible_errno_is_refused(kernel: SimulatedKernel, pattern: str, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        kernel.fail_next(pattern, name)


def test_closed_kernel_takes_no_orders_and_wakes_what_sleeps(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        hold = kernel.block("/sys/*")
        write = Sleeper(lambda: kernel.host().write(OVERRIDE, b"x"))
        assert hold.wait_until_blocked()
        kernel.close()
        assert write.result() == "ESHUTDOWN"
        with hosts.refused("ESHUTDOWN"):
            kernel.host().write(OVERRIDE, b"x")
