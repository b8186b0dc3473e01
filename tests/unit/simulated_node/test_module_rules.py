"""Modules of the simulated kernel: absent, loadable, loaded, built in."""

from pathlib import Path

from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NPU, TWIN
from tests.builders.kernel_rules import allows, shows


@shows("module.load-registers-drivers")
@allows("module.absent")
def test_loading_brings_the_driver_and_what_it_requires(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        host = kernel.host()
        assert not host.exists(f"{DRIVERS}/vfio-pci")
        assert not host.exists("/dev/vfio")
        host.load_module("vfio-pci")
        for module in ("vfio", "vfio_iommu_type1", "vfio_pci_core", "vfio_pci"):
            assert host.exists(f"/sys/module/{module}/initstate")
        assert host.exists("/sys/module/vfio_pci_core/holders/vfio_pci")
        assert host.list(f"{DRIVERS}/vfio-pci") == ["bind", "module", "new_id", "remove_id", "uevent", "unbind"]
        assert host.exists("/dev/vfio/vfio")


@shows("module.load-registers-drivers")
def test_loaded_driver_takes_the_driverless_devices_it_matches(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        host = kernel.host()
        for address in (NPU, TWIN):
            host.write(f"{DRIVERS}/rebellions/unbind", address.encode())
        host.write(hosts.attribute(NPU, "driver_override"), b"vfio-pci")
        host.load_module("vfio_pci")
        assert hosts.driver_of(host, NPU) == "vfio-pci"
        assert hosts.driver_of(host, TWIN) is None


@shows("module.absent")
def test_module_that_the_kernel_lacks_is_not_found(tmp_path: Path) -> None:
    with hosts.running(tmp_path, modules=[{"name": "vfio_pci", "state": "Absent"}]) as kernel:
        for name in ("vfio-pci", "vfio_pci", "no_such_module"):
            with hosts.refused("ENOENT"):
                kernel.host().load_module(name)
        assert [record.result for record in kernel.writes] == ["ENOENT"] * 3
        assert "vfio_pci:v*" not in hosts.text(
            kernel.host(), f"/lib/modules/{kernel.description.kernel.release}/modules.alias"
        )


@shows("module.present-is-no-error")
def test_loading_what_is_there_changes_nothing(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        for name in ("rebellions", "pcieport"):
            before = kernel.host().list("/sys/module")
            kernel.host().load_module(name)
            assert kernel.host().list("/sys/module") == before


def test_built_in_module_has_a_driver_and_no_state(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        assert kernel.host().exists(f"{DRIVERS}/pcieport/bind")
        assert not kernel.host().exists("/sys/module/pcieport/initstate")


@shows("module.ids-parameter")
def test_ids_parameter_takes_devices_before_their_native_driver(tmp_path: Path) -> None:
    module = {"name": "vfio_pci", "state": "Loaded", "requires": ["vfio_pci_core"], "ids": ["1eff:1250"]}
    with hosts.running(tmp_path, modules=[module]) as kernel:
        host = kernel.host()
        assert hosts.driver_of(host, NPU) == hosts.driver_of(host, TWIN) == "vfio-pci"
        assert hosts.text(host, "/sys/module/vfio_pci/parameters/ids") == "1eff:1250\n"
        assert hosts.text(host, hosts.attribute(NPU, "driver_override")) == "(null)\n"


def test_aliases_tell_native_and_variant_drivers(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        lines = hosts.text(kernel.host(), "/lib/modules/6.8.0-60-generic/modules.alias").splitlines()
        assert "alias pci:v00001EFFd*sv*sd*bc12sc00i* rebellions" in lines
        assert "alias pci:v*d*sv*sd*bc01sc08i02* nvme" not in lines
        assert "alias pci:v*d*sv*sd*bc01sc08i02 nvme" in lines
        assert "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci" in lines
        assert "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci" in lines
