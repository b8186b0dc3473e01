"""bind and unbind of the simulated kernel: what is taken, what is refused and with which errno, what sleeps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_node.description import WhenOpen
from simulated_node.description_files import known_drivers
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import AUDIO, DRIVERS, GRAPHICS, LATE, NOBODY, NPU, SICK, TWIN, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.waiting import eventually

UNBIND = f"{DRIVERS}/rebellions/unbind"
BIND = f"{DRIVERS}/rebellions/bind"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@shows("unbind.succeeds", "bind.succeeds")
@allows("bind.no-such-device", "bind.no-match", "bind.already-bound", "unbind.not-bound-to-driver", "bind.probe-error")
def test_device_leaves_its_driver_and_comes_back(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(UNBIND, f"{NPU}\n".encode())
    assert hosts.driver_of(host, NPU) is None
    assert not host.exists(f"{DRIVERS}/rebellions/{NPU}")
    assert not host.exists("/dev/rbln0")
    assert "DRIVER=" not in hosts.text(host, hosts.attribute(NPU, "uevent"))
    host.write(BIND, NPU.encode())
    assert hosts.driver_of(host, NPU) == "rebellions"
    assert host.resolve(f"{DRIVERS}/rebellions/{NPU}") == host.resolve(f"{hosts.DEVICES}/{NPU}")
    assert host.exists("/dev/rbln0")
    assert "DRIVER=rebellions\n" in hosts.text(host, hosts.attribute(NPU, "uevent"))


@shows("bind.no-such-device")
@pytest.mark.parametrize("name", [NOBODY, "", " ", "nonsense", f" {NPU}", f"{NPU}\n\n", f"{NPU}\n{TWIN}"])
def test_bind_of_what_is_no_device_is_refused(kernel: SimulatedKernel, name: str) -> None:
    kernel.host().write(UNBIND, NPU.encode())
    with hosts.refused("ENODEV"):
        kernel.host().write(BIND, name.encode() or b"\n")
    assert hosts.driver_of(kernel.host(), NPU) is None


@shows("bind.no-match")
def test_bind_to_a_driver_that_does_not_match_is_refused(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    host.write(UNBIND, NPU.encode())
    with hosts.refused("ENODEV"):
        host.write(f"{DRIVERS}/vfio-pci/bind", NPU.encode())
    assert hosts.driver_of(host, NPU) is None


@shows("bind.no-match")
def test_match_is_judged_before_whether_the_device_is_busy(kernel: SimulatedKernel) -> None:
    with hosts.refused("ENODEV"):
        kernel.host().write(f"{DRIVERS}/nvidia/bind", NPU.encode())


@shows("bind.already-bound")
def test_bind_of_a_bound_device_is_refused_even_to_the_same_driver(kernel: SimulatedKernel) -> None:
    with hosts.refused("EBUSY"):
        kernel.host().write(BIND, NPU.encode())


@shows("bind.probe-error")
def test_error_of_the_driver_comes_through_and_leaves_the_device_driverless(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    with hosts.refused("EIO"):
        host.write(BIND, SICK.encode())
    assert hosts.driver_of(host, SICK) is None
    assert not host.exists("/dev/rbln2")


@shows("bind.deferred-shows-as-eagain")
def test_deferred_probe_shows_as_eagain(kernel: SimulatedKernel) -> None:
    with hosts.refused("EAGAIN"):
        kernel.host().write(BIND, LATE.encode())
    assert hosts.driver_of(kernel.host(), LATE) is None


@allows("bind.deferred-shows-as-eagain", "bind.probe-error")
def test_driver_that_was_not_ready_takes_the_device_later(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(UNBIND, NPU.encode())
    host.write(BIND, NPU.encode())
    assert hosts.driver_of(host, NPU) == "rebellions"


@shows("unbind.not-bound-to-driver")
@pytest.mark.parametrize("name", [NOBODY, GRAPHICS, SICK, "nonsense"])
def test_unbind_of_what_the_driver_does_not_hold_is_refused(kernel: SimulatedKernel, name: str) -> None:
    with hosts.refused("ENODEV"):
        kernel.host().write(UNBIND, name.encode())


@shows("unbind.succeeds")
def test_unbind_through_the_devices_own_link_to_its_driver(kernel: SimulatedKernel) -> None:
    kernel.host().write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
    with hosts.refused("ENOENT"):
        kernel.host().write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())


@shows("unbind.waits-for-vfio-user", "device.one-operation-at-a-time", "probe.leaves-bound-device")
def test_unbind_of_a_device_in_a_vm_sleeps_until_the_vm_lets_go(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, NPU)
    kernel.open_device("/dev/vfio/20")
    unbind = Sleeper(lambda: host.write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode()))
    eventually(lambda: kernel.sleeping == [f"{DRIVERS}/vfio-pci/unbind"], every=0.005)
    override = Sleeper(lambda: host.write(hosts.attribute(NPU, "driver_override"), b"\n"))
    bind = Sleeper(lambda: host.write(f"{DRIVERS}/vfio-pci/bind", NPU.encode()))
    eventually(lambda: len(kernel.sleeping) == 3, every=0.005)
    host.write(hosts.PROBE, NPU.encode())
    host.write(UNBIND, TWIN.encode())
    assert hosts.driver_of(host, TWIN) is None, "nobody else waits"
    assert unbind.asleep and override.asleep and bind.asleep
    kernel.close_device("/dev/vfio/20")
    assert (unbind.result(), override.result()) == ("ok", "ok")
    assert bind.result() in ("ok", "ENODEV"), "whichever woke first"
    assert hosts.text(host, hosts.attribute(NPU, "driver_override")) == "(null)\n"
    assert kernel.sleeping == []


@shows("unbind.links-go-first")
def test_device_looks_driverless_while_its_unbind_sleeps(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, NPU)
    kernel.open_device("/dev/vfio/20")
    orders = [Sleeper(lambda: host.write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode())) for _ in range(2)]
    eventually(lambda: len(kernel.sleeping) == 2, every=0.005)
    assert hosts.driver_of(host, NPU) is None
    assert not host.exists(f"{DRIVERS}/vfio-pci/{NPU}")
    assert host.exists("/dev/vfio/20")
    with hosts.refused("ENOENT"):
        host.write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
    kernel.close_device("/dev/vfio/20")
    assert [order.result() for order in orders] == ["ok", "ok"], "the second was past its check"
    host.write(hosts.attribute(NPU, "driver_override"), b"\n")
    host.write(BIND, NPU.encode())
    assert hosts.driver_of(host, NPU) == "rebellions"


@shows("unbind.vfio-device-goes-before-its-user")
def test_node_of_the_device_is_gone_while_its_user_still_holds_it(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, NPU)
    kernel.open_device("/dev/vfio/devices/vfio0", pid=500)
    unbind = Sleeper(lambda: host.write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode()))
    eventually(lambda: kernel.sleeping, every=0.005)
    assert not host.exists(hosts.attribute(NPU, "vfio-dev"))
    assert host.list("/dev/vfio") == ["20", "vfio"]
    assert host.read_link("/proc/500/fd/3") == "/dev/vfio/devices/vfio0 (deleted)"
    with hosts.refused("ENOENT"):
        kernel.open_device("/dev/vfio/devices/vfio0", pid=600)
    kernel.close_device("/dev/vfio/devices/vfio0")
    assert unbind.result() == "ok"
    assert host.list("/dev/vfio") == ["vfio"]


@shows("unbind.group-merely-open-holds-nothing-up")
def test_group_that_is_merely_open_holds_no_unbind_up(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    for address in (GRAPHICS, AUDIO):
        hosts.give_to_vfio(host, address)
    kernel.open_device("/dev/vfio/24", pid=500, takes_device=False)
    with hosts.refused("EBUSY"):
        kernel.open_device("/dev/vfio/24", pid=600)
    host.write(f"{DRIVERS}/vfio-pci/unbind", GRAPHICS.encode())
    assert host.read_link("/proc/500/fd/3") == "/dev/vfio/24"
    host.write(f"{DRIVERS}/vfio-pci/unbind", AUDIO.encode())
    assert host.read_link("/proc/500/fd/3") == "/dev/vfio/24 (deleted)"
    kernel.close_device("/dev/vfio/24")


@shows("override.later-kernels-take-no-lock")
def test_later_kernel_writes_and_reads_the_override_while_an_unbind_sleeps(tmp_path: Path) -> None:
    with hosts.running(tmp_path, kernel={"overrideTakesLock": False}) as kernel:
        host = kernel.host()
        hosts.give_to_vfio(host, NPU)
        kernel.open_device("/dev/vfio/20")
        unbind = Sleeper(lambda: host.write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode()))
        eventually(lambda: kernel.sleeping, every=0.005)
        host.write(hosts.attribute(NPU, "driver_override"), b"\n")
        assert hosts.text(host, hosts.attribute(NPU, "driver_override")) == "(null)\n"
        assert unbind.asleep
        kernel.close_device("/dev/vfio/20")
        assert unbind.result() == "ok"


@shows("unbind.waits-for-vfio-user")
def test_open_device_node_keeps_its_device_and_no_other_of_the_group(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    for address in (GRAPHICS, AUDIO):
        hosts.give_to_vfio(host, address)
    kernel.open_device("/dev/vfio/devices/vfio0")
    host.write(f"{DRIVERS}/vfio-pci/unbind", AUDIO.encode())
    unbind = Sleeper(lambda: host.write(f"{DRIVERS}/vfio-pci/unbind", GRAPHICS.encode()))
    eventually(lambda: kernel.sleeping, every=0.005)
    kernel.close_device("/dev/vfio/devices/vfio0")
    assert unbind.result() == "ok"


@allows("unbind.waits-for-vfio-user")
def test_unbind_of_an_idle_vfio_device_does_not_wait(kernel: SimulatedKernel) -> None:
    hosts.give_to_vfio(kernel.host(), NPU)
    kernel.host().write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode())
    assert not kernel.host().exists("/dev/vfio/20")


@shows("unbind.native-driver-ignores-user")
def test_native_driver_leaves_its_user_with_a_deleted_node(kernel: SimulatedKernel) -> None:
    kernel.open_device("/dev/rbln0", pid=777, comm="trainer")
    kernel.host().write(UNBIND, NPU.encode())
    assert kernel.host().read_link("/proc/777/fd/3") == "/dev/rbln0 (deleted)"
    kernel.close_device("/dev/rbln0")
    assert not kernel.host().exists("/proc/777")


@shows("unbind.native-driver-waits-for-user")
def test_native_driver_may_wait_for_its_user(tmp_path: Path) -> None:
    known = next(driver for driver in known_drivers().drivers if driver.name == "rebellions")
    patient = known.model_copy(update={"unbind_when_open": WhenOpen.BLOCKS})
    with hosts.running(tmp_path, drivers=[patient]) as kernel:
        kernel.open_device("/dev/rbln0")
        unbind = Sleeper(lambda: kernel.host().write(UNBIND, NPU.encode()))
        eventually(lambda: kernel.sleeping == [UNBIND], every=0.005)
        assert kernel.host().exists("/dev/rbln0")
        kernel.close_device("/dev/rbln0")
        assert unbind.result() == "ok"


@shows("native.lowest-free-index")
def test_nodes_are_numbered_from_the_lowest_free_index(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert host.exists(hosts.attribute(TWIN, "rebellions/rbln1/dev"))
    for address in (NPU, TWIN):
        host.write(UNBIND, address.encode())
    assert not host.exists("/dev/rsd0"), "the driver's shared node goes with its last device"
    for address in (TWIN, NPU):
        host.write(BIND, address.encode())
    assert host.exists(hosts.attribute(TWIN, "rebellions/rbln0/dev"))
    assert host.exists(hosts.attribute(NPU, "rebellions/rbln1/dev"))
    assert host.exists("/dev/rsd0")


@shows("bind.group-owned-by-user")
def test_native_driver_is_not_bound_beside_a_vm(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    for address in (GRAPHICS, AUDIO):
        hosts.give_to_vfio(host, address)
    host.write(f"{DRIVERS}/vfio-pci/unbind", AUDIO.encode())
    host.write(hosts.attribute(AUDIO, "driver_override"), b"\n")
    kernel.open_device("/dev/vfio/24")
    with hosts.refused("EBUSY"):
        host.write(f"{DRIVERS}/snd_hda_intel/bind", AUDIO.encode())
    host.write(hosts.PROBE, AUDIO.encode())
    assert hosts.driver_of(host, AUDIO) is None


@allows("bind.group-owned-by-user")
def test_group_without_a_user_takes_native_drivers_again(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, AUDIO)
    host.write(f"{DRIVERS}/vfio-pci/unbind", AUDIO.encode())
    host.write(hosts.attribute(AUDIO, "driver_override"), b"\n")
    host.write(f"{DRIVERS}/snd_hda_intel/bind", AUDIO.encode())
    assert hosts.driver_of(host, AUDIO) == "snd_hda_intel"
