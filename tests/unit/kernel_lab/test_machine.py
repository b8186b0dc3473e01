"""The command line: each role at the place where the guest looks for it, and paths that keep QEMU's syntax whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kernel.lab.machine import Machine, devices, kernel_command_line, qemu_arguments
from tests.kernel.lab.roles import PORTS, ROLES, Role, find, find_all

MACHINE = Machine(
    kernel=Path("/c/vmlinuz"),
    initramfs=Path("/c/initramfs"),
    share=Path("/run,1/share"),
    disk=Path("/run,1/disk"),
    python=Path("/c/python.img"),
    serial=Path("/run,1/serial"),
    accelerator="tcg",
)


def options(arguments: list[str], name: str) -> list[str]:
    return [value for key, value in pairwise(arguments) if key == name]


def device(arguments: list[str], identity: str) -> dict[str, str]:
    [text] = [value for value in options(arguments, "-device") if f",id={identity}," in f"{value},"]
    model, *pairs = text.split(",")
    return {"model": model} | dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("role", [role for role in ROLES.values() if role.below is None], ids=lambda role: role.name)
def test_integrated_devices_lie_at_their_slot(role: Role) -> None:
    found = device(devices(Path("disk")), role.name)
    place = found["addr"] if "." in found["addr"] else f"{found['addr']}.0"
    assert (found["bus"], place) == ("pcie.0", f"{role.slot:#x}.{role.function}")


def test_devices_below_a_port_are_the_only_ones_there() -> None:
    arguments = devices(Path("disk"))
    for name in ("pf", "other_pf", "disk", "shared_bridge"):
        port = PORTS[ROLES[name].slot]
        assert device(arguments, name)["bus"] == port
        assert sum(f"bus={port}," in f"{value}," for value in options(arguments, "-device")) == 1
    assert not any("bus=empty_port" in value for value in options(arguments, "-device"))
    assert {device(arguments, name)["bus"] for name in ("shared_a", "shared_b")} == {"shared_bridge"}


def test_one_device_hangs_on_a_bus_that_the_iommu_does_not_see() -> None:
    arguments = devices(Path("disk"))
    assert device(arguments, "no_group")["bus"] == "port_without_iommu"
    assert device(arguments, "port_without_iommu")["bus"] == "bus_without_iommu"
    bus = device(arguments, "bus_without_iommu")
    assert (bus["bypass_iommu"], int(bus["bus_nr"])) == ("on", ROLES["no_group"].bus)


def test_commas_in_paths_are_doubled() -> None:
    arguments = qemu_arguments(MACHINE)
    assert "local,id=share9p,path=/run,,1/share,security_model=none,multidevs=remap" in options(arguments, "-fsdev")
    assert "file=/run,,1/disk,if=none,id=disk_file,format=raw,cache=writeback" in options(arguments, "-drive")
    assert "file,id=console,path=/run,,1/serial" in options(arguments, "-chardev")


def test_the_hosts_root_is_read_only_and_the_share_is_not() -> None:
    root, share = options(qemu_arguments(MACHINE), "-fsdev")
    assert "path=/," in root and root.endswith("readonly=on")
    assert "readonly" not in share


def test_the_accelerator_decides_the_processor() -> None:
    assert options(qemu_arguments(MACHINE), "-accel") == ["tcg,thread=multi"]
    arguments = qemu_arguments(replace(MACHINE, accelerator="kvm"))
    assert (options(arguments, "-accel"), options(arguments, "-cpu")) == (["kvm"], ["host"])


def test_nothing_of_the_guest_reaches_the_network_and_the_monitor_has_no_path() -> None:
    arguments = qemu_arguments(replace(MACHINE, monitor=7))
    assert options(arguments, "-netdev") == ["user,id=uplink,restrict=on"]
    assert "socket,id=qmp,fd=7" in options(arguments, "-chardev")


def test_a_shell_takes_the_terminal_and_keeps_the_log() -> None:
    arguments = qemu_arguments(replace(MACHINE, interactive=True))
    assert "stdio,id=console,signal=off,logfile=/run,,1/serial" in options(arguments, "-chardev")


def test_the_kernel_gets_an_iommu_and_ends_on_a_panic() -> None:
    words = kernel_command_line(replace(MACHINE, append="preempt=full")).split()
    assert {"intel_iommu=on", "panic=-1", "oops=panic", "preempt=full"} <= set(words)


def test_an_emulated_processor_has_a_periodic_timer() -> None:
    periodic = {"nohz=off", "highres=off"}
    assert periodic <= set(kernel_command_line(MACHINE).split())
    assert not periodic & set(kernel_command_line(replace(MACHINE, accelerator="kvm")).split())


def test_roles_are_found_by_their_places(tmp_path: Path) -> None:
    for path in (
        "0000:00:02.0",
        "0000:00:04.0",
        "0000:00:04.1",
        "0000:00:08.0/0000:07:00.0",
        "0000:00:08.0/0000:07:00.0/0000:07:10.0",
        "0000:00:0a.0/0000:0b:00.0/0000:0c:01.0",
        "0000:00:0a.0/0000:0b:00.0/0000:0c:02.0",
        "0000:00:0c.0",
        "0000:40:00.0/0000:41:00.0",
    ):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    assert find_all(tmp_path) == {
        "twin_a": "0000:00:02.0",
        "route_nic": "0000:00:04.0",
        "beside_route": "0000:00:04.1",
        "pf": "0000:07:00.0",
        "shared_bridge": "0000:0b:00.0",
        "shared_a": "0000:0c:01.0",
        "shared_b": "0000:0c:02.0",
        "empty_port": "0000:00:0c.0",
        "no_group": "0000:41:00.0",
    }
    assert find(ROLES["disk"], tmp_path) is None
