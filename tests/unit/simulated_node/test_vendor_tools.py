"""The vendor's programs on a simulated host, MIG mode, and a driver that is loaded anew."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_host.host import SimulatedHost
from simulated_node.control import Control
from simulated_node.description import VgpuType
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel
from simulated_node.server import SimulatedKernelServer
from tests.builders import hosts
from tests.builders.kernel_rules import shows

CARD, OTHER = "0000:21:00.0", "0000:22:00.0"
VF, SECOND = "0000:21:00.4", "0000:21:00.5"
MANAGE, SMI = "/usr/lib/nvidia/sriov-manage", "/usr/bin/nvidia-smi"
PROBE = "/sys/bus/pci/drivers_probe"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with SimulatedKernel(tmp_path / "host", load_description("node-l40s")) as kernel:
        yield kernel


def number(kernel: SimulatedKernel, card: str = CARD) -> int:
    return int(kernel.host().read(hosts.attribute(card, "sriov_numvfs")))


def type_of(kernel: SimulatedKernel, address: str = VF) -> int:
    return int(kernel.host().read(hosts.attribute(address, "nvidia/current_vgpu_type")))


def set_type(kernel: SimulatedKernel, address: str, type_id: int) -> None:
    kernel.host().write(hosts.attribute(address, "nvidia/current_vgpu_type"), str(type_id).encode())


def smi(kernel: SimulatedKernel, *arguments: str) -> str:
    return kernel.host().run_tool(SMI, arguments).output


@shows("tool.sriov-manage-makes-all")
def test_sriov_manage_makes_all_functions_and_takes_them_away(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert host.exists(MANAGE)
    assert host.run_tool(MANAGE, ["-e", CARD]).status == 0
    assert (number(kernel), number(kernel, OTHER)) == (16, 0)
    assert hosts.driver_of(host, CARD) == hosts.driver_of(host, VF) == "nvidia"
    assert host.run_tool(MANAGE, ["-d", CARD]).status == 0
    assert number(kernel) == 0
    assert host.run_tool(MANAGE, ["-e", "ALL"]).status == 0
    assert (number(kernel), number(kernel, OTHER)) == (16, 16)
    assert host.run_tool(MANAGE, ["-x"]).status == 1
    assert host.run_tool(MANAGE, ["-e", "0000:99:00.0"]).status == 1
    assert kernel.writes[0].path == f"tool:{MANAGE}"
    assert kernel.writes[0].data == f"-e {CARD}"


def test_host_without_the_programs_has_none(tmp_path: Path) -> None:
    with SimulatedKernel(tmp_path / "host", load_description("node-atom")) as kernel:
        assert not kernel.host().exists(MANAGE)
        with pytest.raises(FileNotFoundError):
            kernel.host().run_tool(MANAGE, ["-e", CARD])


@shows("tool.sriov-manage-needs-the-lock", "tool.sriov-manage-returns-0-without-vfs")
def test_sriov_manage_may_be_locked_out_and_may_lie(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.fail_next(f"tool:{MANAGE}", "EAGAIN", times=2)
    for _ in range(2):
        answer = host.run_tool(MANAGE, ["-e", CARD])
        assert "unbindLock" in answer.output
        assert answer.status == 1
    kernel.swallow_next(f"tool:{MANAGE}")
    assert host.run_tool(MANAGE, ["-e", CARD]).status == 0
    assert number(kernel) == 0
    assert host.run_tool(MANAGE, ["-e", CARD]).status == 0
    assert number(kernel) == 16


@shows("tool.sriov-manage-leaves-card-without-driver")
def test_card_is_left_without_its_driver_when_that_does_not_take_it_back(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.fail_next("/sys/bus/pci/drivers/nvidia/bind", "EIO")
    assert host.run_tool(MANAGE, ["-e", CARD]).status == 1
    assert hosts.driver_of(host, CARD) is None
    assert number(kernel) == 16
    host.write(PROBE, CARD.encode())
    assert hosts.driver_of(host, CARD) == "nvidia"
    kernel.fail_next("/sys/bus/pci/drivers/pci-pf-stub/unbind", "EIO")
    assert host.run_tool(MANAGE, ["-e", OTHER]).status == 1


@shows("tool.nvidia-smi-tells-modes", "tool.nvidia-smi-mixes-sizes", "vgpu.mixed-sizes-wiped-by-new-vfs")
def test_nvidia_smi_tells_and_sets_mixed_sizes(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert "Heterogeneous Mode           : Disabled" in smi(kernel, "-i", CARD, "-q")
    host.run_tool(SMI, ["vgpu", "-i", CARD, "-shm", "1"])
    assert "Heterogeneous Mode           : Enabled" in smi(kernel, "-i", CARD, "-q")
    host.run_tool(MANAGE, ["-e", CARD])
    assert "Heterogeneous Mode           : Disabled" in smi(kernel, "-i", CARD, "-q")
    set_type(kernel, VF, 1155)
    assert host.run_tool(SMI, ["vgpu", "-i", CARD, "-shm", "1"]).status != 0
    set_type(kernel, VF, 0)
    assert host.run_tool(SMI, ["vgpu", "-i", CARD, "-shm", "1"]).status == 0
    assert host.run_tool(SMI, ["-i", "0000:99:00.0", "-q"]).status != 0
    assert host.run_tool(SMI, ["-L"]).status != 0
    assert host.run_tool(SMI, ["-i", CARD]).status != 0


@shows("vgpu.mig-empties-lists")
def test_mig_mode_empties_the_lists(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.run_tool(MANAGE, ["-e", CARD])
    path = hosts.attribute(VF, "nvidia/creatable_vgpu_types")
    assert "N/A" in smi(kernel, "-i", CARD, "-q")
    kernel.set_mig(CARD, True)
    assert len(host.read(path).splitlines()) == 1
    assert "Current                           : Enabled" in smi(kernel, "-i", CARD, "-q")
    kernel.set_mig(CARD, False)
    assert len(host.read(path).splitlines()) > 1


@shows("module.unload-takes-devices-and-vfs", "module.version-tells-release")
def test_driver_that_is_loaded_anew_has_forgotten_everything_and_may_number_its_types_anew(
    kernel: SimulatedKernel,
) -> None:
    host = kernel.host()
    host.run_tool(MANAGE, ["-e", CARD])
    set_type(kernel, VF, 1155)
    assert hosts.text(host, "/sys/module/nvidia/version") == "595.58.02\n"
    kernel.reload_driver("nvidia")
    assert number(kernel) == 0
    assert hosts.driver_of(host, CARD) == "nvidia"
    host.run_tool(MANAGE, ["-e", CARD])
    assert type_of(kernel) == 0
    kernel.reload_driver(
        "nvidia", release="600.1", types={CARD: [VgpuType(id=77, name="NVIDIA L40S-24Q", frame_buffer=24)]}
    )
    host.run_tool(MANAGE, ["-e", CARD])
    assert hosts.text(host, "/sys/module/nvidia/version") == "600.1\n"
    set_type(kernel, VF, 77)
    kernel.reboot()
    assert hosts.text(kernel.host(), "/sys/module/nvidia/version") == "600.1\n"


def test_programs_run_over_the_socket_under_the_pid_of_who_runs_them(tmp_path: Path) -> None:
    description = load_description("node-l40s")
    with SimulatedKernel(tmp_path / "host", description) as kernel, SimulatedKernelServer(kernel):
        host, control = SimulatedHost(tmp_path / "host"), Control(tmp_path / "host")
        assert host.run_tool(MANAGE, ["-e", CARD]).status == 0
        assert "Host VGPU Mode" in host.run_tool(SMI, ["-i", CARD, "-q"]).output
        assert {record.pid for record in control.writes} == {control.writes[0].pid}
        control.set_mig(CARD, True)
        control.reload_driver("nvidia", release="600.2")
        assert host.read("/sys/module/nvidia/version") == b"600.2\n"
        with pytest.raises(FileNotFoundError):
            host.run_tool("/usr/bin/no-such-program", [])
