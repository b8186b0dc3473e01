"""driver_override, drivers_probe and run-time ids of the simulated kernel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, LATE, NOBODY, NPU, PROBE, SICK, TWIN, VARIANT
from tests.builders.kernel_rules import allows, shows

OVERRIDE = hosts.attribute(NPU, "driver_override")
NEW_ID = f"{DRIVERS}/vfio-pci/new_id"
REMOVE_ID = f"{DRIVERS}/vfio-pci/remove_id"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@shows("override.set")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"vfio-pci", "vfio-pci\n"),
        (b"vfio-pci\n", "vfio-pci\n"),
        (b"vfio-pci\nmore", "vfio-pci\n"),
        (b"vfio-pci\0more", "vfio-pci\n"),
        (b" vfio-pci ", " vfio-pci \n"),
        (b"x" * 4094, "x" * 4094 + "\n"),
    ],
)
def test_override_takes_text_up_to_its_end(kernel: SimulatedKernel, written: bytes, read: str) -> None:
    kernel.host().write(OVERRIDE, written)
    assert hosts.text(kernel.host(), OVERRIDE) == read


@shows("override.newline-clears", "identity.override-reads-null")
def test_newline_clears_the_override(kernel: SimulatedKernel) -> None:
    kernel.host().write(OVERRIDE, b"vfio-pci")
    kernel.host().write(OVERRIDE, b"\n")
    assert hosts.text(kernel.host(), OVERRIDE) == "(null)\n"


@shows("override.nul-clears")
def test_nul_clears_the_override(kernel: SimulatedKernel) -> None:
    kernel.host().write(OVERRIDE, b"vfio-pci")
    kernel.host().write(OVERRIDE, b"\0")
    assert hosts.text(kernel.host(), OVERRIDE) == "(null)\n"


@shows("write.empty-does-nothing")
def test_empty_write_does_not_clear_the_override(kernel: SimulatedKernel) -> None:
    kernel.host().write(OVERRIDE, b"vfio-pci")
    kernel.host().write(OVERRIDE, b"")
    assert hosts.text(kernel.host(), OVERRIDE) == "vfio-pci\n"


@shows("override.too-long")
def test_override_of_almost_a_page_is_refused(kernel: SimulatedKernel) -> None:
    with hosts.refused("EINVAL"):
        kernel.host().write(OVERRIDE, b"x" * 4095)
    assert hosts.text(kernel.host(), OVERRIDE) == "(null)\n"


@shows("override.rebinds-nothing")
@allows("override.too-long")
def test_override_alone_changes_no_binding_and_loads_no_module(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(OVERRIDE, b"vfio-pci")
    assert hosts.driver_of(host, NPU) == "rebellions"
    assert not host.exists("/sys/module/vfio_pci")
    host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    host.write(OVERRIDE, b"\n")
    assert hosts.driver_of(host, NPU) is None, "clearing it gives the device back to nobody"


@shows("match.override-matches-any-id")
def test_overridden_device_goes_to_that_driver_whatever_its_ids(kernel: SimulatedKernel) -> None:
    hosts.give_to_vfio(kernel.host(), NPU)
    assert hosts.driver_of(kernel.host(), NPU) == "vfio-pci"
    assert hosts.driver_of(kernel.host(), TWIN) == "rebellions"


@shows("match.override-excludes-other-drivers", "probe.success-even-if-unclaimed")
def test_override_left_behind_keeps_the_native_driver_away(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(OVERRIDE, b"none")
    host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    host.write(PROBE, NPU.encode())
    assert hosts.driver_of(host, NPU) is None
    with hosts.refused("ENODEV"):
        host.write(f"{DRIVERS}/rebellions/bind", NPU.encode())


@shows("match.override-only-ids")
def test_variant_driver_takes_its_device_only_by_override(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("mlx5_vfio_pci")
    host.write(f"{DRIVERS}/mlx5_core/unbind", VARIANT.encode())
    with hosts.refused("ENODEV"):
        host.write(f"{DRIVERS}/mlx5_vfio_pci/bind", VARIANT.encode())
    host.write(hosts.attribute(VARIANT, "driver_override"), b"mlx5_vfio_pci")
    host.write(f"{DRIVERS}/mlx5_vfio_pci/bind", VARIANT.encode())
    assert hosts.driver_of(host, VARIANT) == "mlx5_vfio_pci"
    assert host.exists("/dev/vfio/26")


@shows("probe.no-such-device")
@pytest.mark.parametrize("name", [NOBODY, "nonsense", "\n"])
def test_probe_of_what_is_no_device_is_refused(kernel: SimulatedKernel, name: str) -> None:
    with hosts.refused("ENODEV"):
        kernel.host().write(PROBE, name.encode())


@allows("probe.no-such-device")
def test_probe_gives_a_driverless_device_to_its_driver(kernel: SimulatedKernel) -> None:
    kernel.host().write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    kernel.host().write(PROBE, f"{NPU}\n".encode())
    assert hosts.driver_of(kernel.host(), NPU) == "rebellions"


@shows("probe.success-even-if-unclaimed")
def test_probe_reports_success_although_the_driver_failed(kernel: SimulatedKernel) -> None:
    kernel.host().write(PROBE, SICK.encode())
    assert hosts.driver_of(kernel.host(), SICK) is None
    assert kernel.writes[-1].result == "ok"


@shows("probe.leaves-bound-device")
def test_probe_does_nothing_to_a_bound_device(kernel: SimulatedKernel) -> None:
    kernel.host().load_module("vfio_pci")
    kernel.host().write(OVERRIDE, b"vfio-pci")
    kernel.host().write(PROBE, NPU.encode())
    assert hosts.driver_of(kernel.host(), NPU) == "rebellions"


@shows("probe.next-driver-after-failure")
def test_next_matching_driver_is_tried_when_the_first_fails(tmp_path: Path) -> None:
    second = {"name": "rebellions-ng", "module": "rebellions_ng", "ids": [{"vendor": "1eff"}]}
    module = {"name": "rebellions_ng", "state": "Loaded"}
    with hosts.running(tmp_path, drivers=[second], modules=[module]) as kernel:
        assert hosts.driver_of(kernel.host(), SICK) == "rebellions-ng"
        kernel.host().write(f"{DRIVERS}/rebellions-ng/unbind", SICK.encode())
        kernel.fail_next(f"probe:rebellions-ng:{SICK}", "ENOMEM")
        kernel.host().write(PROBE, SICK.encode())
        assert hosts.driver_of(kernel.host(), SICK) is None
        kernel.fail_next(f"probe:rebellions-ng:{NPU}", "EIO")
        kernel.host().write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
        kernel.host().write(PROBE, NPU.encode())
        assert hosts.driver_of(kernel.host(), NPU) == "rebellions"


@shows("probe.deferred-is-retried")
def test_deferred_device_is_tried_again_when_another_is_bound(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    device = {
        "address": "0000:2b:00.0",
        "parent": "0000:20:01.0",
        "vendor": "1eff",
        "device": "1250",
        "class": "120000",
        "probeErrors": [{"driver": "rebellions", "errno": "EPROBE_DEFER", "times": 2}],
    }
    kernel.hot_add(parse_device(device))
    assert hosts.driver_of(host, "0000:2b:00.0") is None
    for expected in (None, "rebellions"):
        host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
        host.write(f"{DRIVERS}/rebellions/bind", NPU.encode())
        assert hosts.driver_of(host, "0000:2b:00.0") == expected
    assert hosts.driver_of(host, LATE) is None


@shows("ids.new-id-takes-twins")
@allows("ids.bad-format", "ids.exists", "ids.no-such-id")
def test_new_id_takes_every_driverless_twin(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    for address in (NPU, TWIN):
        host.write(f"{DRIVERS}/rebellions/unbind", address.encode())
    host.write(NEW_ID, b"1eff 1250\n")
    assert [hosts.driver_of(host, address) for address in (NPU, TWIN, SICK)] == ["vfio-pci"] * 3


@shows("ids.remove-keeps-bindings")
def test_remove_id_leaves_what_is_bound(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    host.write(NEW_ID, b"1eff 1250")
    host.write(REMOVE_ID, b"1eff 1250")
    assert hosts.driver_of(host, NPU) == "vfio-pci"
    host.write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode())
    host.write(PROBE, NPU.encode())
    assert hosts.driver_of(host, NPU) == "rebellions"


@shows("ids.new-id-takes-later-ones", "hotplug.add")
def test_new_id_takes_devices_that_come_later(kernel: SimulatedKernel) -> None:
    kernel.host().load_module("pci-stub")
    kernel.host().write(f"{DRIVERS}/pci-stub/new_id", b"1eff 9999")
    kernel.hot_add(
        parse_device(
            {
                "address": "0000:2b:00.0",
                "parent": "0000:20:01.0",
                "vendor": "1eff",
                "device": "9999",
                "class": "ff0000",
            }
        )
    )
    assert hosts.driver_of(kernel.host(), "0000:2b:00.0") == "pci-stub"


@shows("ids.exists")
def test_id_that_the_driver_has_is_refused(kernel: SimulatedKernel) -> None:
    kernel.host().load_module("vfio-pci")
    kernel.host().write(NEW_ID, b"1eff 1220")
    for written in (b"1EFF 1220", b"0x1eff 0x1220", b"1eff 1220 1eff 0101 0"):
        with hosts.refused("EEXIST"):
            kernel.host().write(NEW_ID, written)
    with hosts.refused("EEXIST"):
        kernel.host().write(f"{DRIVERS}/ice/new_id", b"8086 1592")
    with hosts.refused("EEXIST"):
        kernel.host().write(f"{DRIVERS}/rebellions/new_id", b"1eff 9999 0 0 120000")
    kernel.host().write(f"{DRIVERS}/rebellions/new_id", b"1eff 9999")


@allows("ids.exists", "ids.unknown-driver-data")
def test_id_with_all_seven_numbers_is_taken_twice(kernel: SimulatedKernel) -> None:
    kernel.host().load_module("vfio-pci")
    for _ in range(2):
        kernel.host().write(NEW_ID, b"1eff 1220 ffffffff ffffffff 0 0 0")


@shows("ids.unknown-driver-data")
def test_data_that_the_driver_does_not_know_is_refused(kernel: SimulatedKernel) -> None:
    kernel.host().load_module("vfio-pci")
    with hosts.refused("EINVAL"):
        kernel.host().write(NEW_ID, b"1eff 1220 ffffffff ffffffff 0 0 5")
    kernel.host().load_module("pci-stub")
    kernel.host().write(f"{DRIVERS}/pci-stub/new_id", b"1eff 1220 ffffffff ffffffff 0 0 5")


@shows("ids.bad-format")
@pytest.mark.parametrize("written", [b"1eff", b"1eff:1250", b"xyz 1250", b"\n", b"-1eff 1250", b"1eff -1"])
def test_what_is_no_id_is_refused(kernel: SimulatedKernel, written: bytes) -> None:
    kernel.host().load_module("vfio-pci")
    with hosts.refused("EINVAL"):
        kernel.host().write(NEW_ID, written)
    with hosts.refused("EINVAL"):
        kernel.host().write(REMOVE_ID, written)


@shows("ids.wide-number-matches-nothing")
def test_number_that_no_device_can_have_is_taken_and_matches_none(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    host.write(NEW_ID, b"1eff 11250")
    assert hosts.driver_of(host, NPU) is None
    host.write(REMOVE_ID, b"1eff 11250")


@pytest.mark.parametrize(
    ("written", "takes"),
    [
        (b"1eff ffffffff", True),
        (b"1eff 1250 1eff 101 120000 ff0000", True),
        (b"1eff 1250 1eff 102", False),
        (b"1eff 1250 ffffffff ffffffff 030000 ff0000", False),
        (b"1eff 1250 more", True),
    ],
)
def test_id_may_say_more_or_less_than_vendor_and_device(kernel: SimulatedKernel, written: bytes, takes: bool) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    host.write(NEW_ID, written)
    assert hosts.driver_of(host, NPU) == ("vfio-pci" if takes else None)


@shows("ids.no-such-id")
@pytest.mark.parametrize("written", [b"8086 1592", b"1eff 1220 1eff 102", b"1eff 1221"])
def test_removing_an_id_that_was_not_added_is_refused(kernel: SimulatedKernel, written: bytes) -> None:
    kernel.host().load_module("vfio-pci")
    kernel.host().write(NEW_ID, b"1eff 1220 1eff 101")
    with hosts.refused("ENODEV"):
        kernel.host().write(f"{DRIVERS}/ice/remove_id", b"8086 1592")
    with hosts.refused("ENODEV"):
        kernel.host().write(REMOVE_ID, written)
    kernel.host().write(REMOVE_ID, b"1eff 1220")
    with hosts.refused("ENODEV"):
        kernel.host().write(REMOVE_ID, b"1eff 1220")
