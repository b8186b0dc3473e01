"""Reads through the host port that fail, hang, or wait for a lock: in this process and from another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_host.host import Host
from node_host.host.simulated import READS
from simulated_node.control import Control, RemoteBlock
from simulated_node.faults import Block
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NPU, TWIN, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.waiting import eventually

VENDOR = hosts.attribute(NPU, "vendor")
OVERRIDE = hosts.attribute(NPU, "driver_override")
UNBIND = f"{DRIVERS}/vfio-pci/unbind"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@contextmanager
def in_process(directory: Path) -> Iterator[tuple[Host, SimulatedKernel]]:
    with hosts.running(directory) as kernel:
        yield kernel.host(), kernel


@contextmanager
def in_another(directory: Path) -> Iterator[tuple[Host, Control]]:
    with hosts.served(directory) as machine:
        yield machine.host, machine.control


BOTH = pytest.mark.parametrize("machine", [in_process, in_another])


@BOTH
def test_ordered_failure_of_a_read_strikes_so_often(machine: Callable[..., object], tmp_path: Path) -> None:
    with machine(tmp_path) as (host, control):  # type: ignore[attr-defined]
        control.fail_next(f"read:{VENDOR}", "EIO", times=2)
        for _ in range(2):
            with hosts.refused("EIO"):
                host.read(VENDOR)
        assert host.read(VENDOR) == b"0x1eff\n"
        assert not (Path(host.root) / READS).exists(), "nobody has to ask any more"


@BOTH
def test_read_may_fail_for_good_and_by_every_path(machine: Callable[..., object], tmp_path: Path) -> None:
    with machine(tmp_path) as (host, control):  # type: ignore[attr-defined]
        real = host.resolve(VENDOR)
        control.fail_next(f"read:{real}", "ENODEV", times=None)
        for path in (VENDOR, real, f"{DRIVERS}/rebellions/{NPU}/vendor"):
            with hosts.refused("ENODEV"):
                host.read(path)
        assert host.read(hosts.attribute(TWIN, "vendor")) == b"0x1eff\n"
        if isinstance(control, Control):
            control.clear_faults()
        else:
            control.faults.clear()
        assert host.read(VENDOR) == b"0x1eff\n"


@BOTH
def test_directories_and_links_fail_too_each_for_itself(machine: Callable[..., object], tmp_path: Path) -> None:
    with machine(tmp_path) as (host, control):  # type: ignore[attr-defined]
        control.fail_next(f"list:{hosts.DEVICES}", "EIO")
        control.fail_next(f"link:{hosts.attribute(NPU, 'driver')}", "ENOENT")
        assert host.read(VENDOR) == b"0x1eff\n"
        with hosts.refused("EIO"):
            host.list(hosts.DEVICES)
        with hosts.refused("ENOENT"):
            host.read_link(hosts.attribute(NPU, "driver"))
        assert hosts.driver_of(host, NPU) == "rebellions"


@BOTH
def test_read_hangs_until_it_is_released_and_holds_nobody_else_up(
    machine: Callable[..., object], tmp_path: Path
) -> None:
    with machine(tmp_path) as (host, control):  # type: ignore[attr-defined]
        hold: Block | RemoteBlock = control.block(f"read:*/{NPU}/vendor")
        read = Sleeper(lambda: host.read(VENDOR))
        assert hold.wait_until_blocked()
        assert host.read(hosts.attribute(TWIN, "vendor")) == b"0x1eff\n"
        host.write(OVERRIDE, b"vfio-pci")
        assert read.asleep
        hold.release()
        assert read.result() == "ok"


@shows("read.fails-or-hangs")
def test_faults_of_writes_strike_no_read(kernel: SimulatedKernel) -> None:
    kernel.fail_next("*", "EIO")
    assert kernel.host().read(OVERRIDE) == b"(null)\n"
    with hosts.refused("EIO"):
        kernel.host().write(OVERRIDE, b"x")
    kernel.fail_next("read:*", "EIO")
    kernel.host().write(OVERRIDE, b"x")
    with hosts.refused("EIO"):
        kernel.host().read(OVERRIDE)


@shows("read.device-vanished")
def test_read_of_a_device_that_goes_meanwhile_fails(kernel: SimulatedKernel) -> None:
    hold = kernel.block(f"read:{VENDOR}")
    read = Sleeper(lambda: kernel.host().read(VENDOR))
    assert hold.wait_until_blocked()
    kernel.hot_remove(NPU)
    hold.release()
    assert read.result() == "ENODEV"


@allows("read.device-vanished")
def test_read_of_what_is_not_there_finds_nothing(kernel: SimulatedKernel) -> None:
    kernel.fail_next("read:/nowhere", "EIO", times=None)
    with hosts.refused("ENOENT"):
        kernel.host().read(hosts.attribute(hosts.NOBODY, "vendor"))
    assert kernel.host().read(VENDOR) == b"0x1eff\n"


@shows("read.takes-device-lock", "unbind.asks-vfio-user")
def test_read_that_takes_the_lock_sleeps_with_the_unbind(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, NPU)
    kernel.open_device("/dev/vfio/20")
    assert kernel.requests("/dev/vfio/20") == 0
    unbind = Sleeper(lambda: host.write(UNBIND, NPU.encode()))
    eventually(lambda: kernel.sleeping == [UNBIND], every=0.005)
    assert kernel.requests("/dev/vfio/20") == 1
    read = Sleeper(lambda: host.read(OVERRIDE))
    eventually(lambda: kernel.sleeping == [UNBIND, f"read:{OVERRIDE}"], every=0.005)
    assert host.read(VENDOR) == b"0x1eff\n", "others take no lock"
    assert hosts.text(host, hosts.attribute(TWIN, "driver_override")) == "(null)\n"
    kernel.close_device("/dev/vfio/20")
    assert (unbind.result(), read.result()) == ("ok", "ok")
    assert not (kernel.root / READS).exists()


def test_lock_is_felt_in_other_processes_too(tmp_path: Path) -> None:
    with hosts.served(tmp_path) as machine:
        host, control = machine.host, machine.control
        hosts.give_to_vfio(host, NPU)
        control.open_device("/dev/vfio/20")
        unbind = Sleeper(lambda: host.write(UNBIND, NPU.encode()))
        assert control.wait_until_sleeping(UNBIND)
        assert control.requests("/dev/vfio/20") == 1
        read = Sleeper(lambda: host.read(OVERRIDE))
        assert control.wait_until_sleeping(f"read:{OVERRIDE}")
        control.close_device("/dev/vfio/20")
        assert (unbind.result(), read.result()) == ("ok", "ok")


def test_hanging_read_ends_with_the_machine(kernel: SimulatedKernel) -> None:
    hold = kernel.block(f"read:{VENDOR}")
    read = Sleeper(lambda: kernel.host().read(VENDOR))
    assert hold.wait_until_blocked()
    kernel.reboot()
    assert read.result() == "ESHUTDOWN"


def test_killed_machine_holds_no_reader_up(tmp_path: Path) -> None:
    with hosts.served(tmp_path) as machine:
        machine.control.block(f"read:{VENDOR}")
        machine.process.kill()
        machine.process.wait()
        assert (machine.root / READS).exists()
        assert machine.host.read(VENDOR) == b"0x1eff\n"
    with hosts.served(tmp_path) as again:
        assert not (again.root / READS).exists()
