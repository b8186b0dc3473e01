"""vGPUs as files of a host: lists and types of functions, mediated devices, loads of the driver, names of its types."""

import errno
from pathlib import Path

import pytest

from node_host.host import KernelFiles
from node_host.vgpu.driver import DriverLoad, read_driver_load
from node_host.vgpu.functions import CREATABLE, CURRENT, read_function
from node_host.vgpu.live import live_profile
from node_host.vgpu.mdev import read_mdevs, read_parent
from node_host.vgpu.type_names import PATH, TypeNames, read_type_names, write_type_names
from node_host.vgpu.types import TypeListError, VGPUType, parse_creatable, parse_current, profile_of

VF = "0000:02:00.5"
IDS = "10de:26b9"
BOOT = "boot-1"


class Files:
    """A host of ordinary files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = KernelFiles(root)

    def put(self, path: str, text: str) -> None:
        file = self.root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, to: str) -> None:
        file = self.root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(to)

    def function(self, current: str, creatable: str | None = "ID    : vGPU Name\n") -> None:
        self.put(f"/sys/bus/pci/devices/{VF}/{CURRENT}", current)
        if creatable is not None:
            self.put(f"/sys/bus/pci/devices/{VF}/{CREATABLE}", creatable)

    def driver(self, release: str = "550.90.05") -> DriverLoad:
        self.put("/sys/module/nvidia/version", f"{release}\n")
        load = read_driver_load(self.host, "nvidia", BOOT)
        assert load is not None
        return load


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "host")


def test_a_list_is_its_lines_below_the_heading() -> None:
    text = b"ID    : vGPU Name\n1155  : NVIDIA L40S-24Q\n 1156 : NVIDIA L40S-48Q \n\n"
    assert parse_creatable(text) == (VGPUType(1155, "NVIDIA L40S-24Q"), VGPUType(1156, "NVIDIA L40S-48Q"))
    assert [kind.profile for kind in parse_creatable(text)] == ["L40S-24Q", "L40S-48Q"]
    assert parse_creatable(b"ID    : vGPU Name\n") == parse_creatable(b"") == ()


@pytest.mark.parametrize("line", [b"garbage", b"-3 : NVIDIA L40S-1Q", b"1155 :", b"0x1 : NVIDIA L40S-1Q", b"\xff\xfe"])
def test_a_line_that_is_no_type_is_told(line: bytes) -> None:
    with pytest.raises(TypeListError):
        parse_creatable(b"ID : vGPU Name\n1155 : NVIDIA L40S-24Q\n" + line)


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA L40S-24Q", "L40S-24Q"),
        ("GRID T4-16Q", "T4-16Q"),
        ("L40S-24Q", "L40S-24Q"),
        ("nvidia L40S-24Q", "nvidia L40S-24Q"),
        ("NVIDIA A100-1-5CME", "A100-1-5CME"),
    ],
)
def test_a_profile_is_the_drivers_name_without_the_vendors_word(name: str, profile: str) -> None:
    assert profile_of(name) == profile


@pytest.mark.parametrize("text", [b"", b"-1", b"0x10", b"\xd9\xa1", b"1 2", b"none"])
def test_a_type_that_is_no_number_is_told(text: bytes) -> None:
    with pytest.raises(TypeListError):
        parse_current(text)
    assert parse_current(b"1155\n") == 1155


def test_a_function_without_files_of_vgpus_is_none(files: Files) -> None:
    files.put(f"/sys/bus/pci/devices/{VF}/vendor", "0x10de\n")
    assert read_function(files.host, VF) is None
    assert read_function(files.host, "0000:02:00.6") is None


def test_a_function_is_its_type_and_its_list(files: Files) -> None:
    files.function("0\n", "ID    : vGPU Name\n1155  : NVIDIA L40S-24Q\n")
    read = read_function(files.host, VF)
    assert read is not None and (read.current, read.fault) == (0, None)
    assert read.creatable == (VGPUType(1155, "NVIDIA L40S-24Q"),)


def test_what_cannot_be_read_is_a_fault_of_that_function(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.function("what\n")
    read = read_function(files.host, VF)
    assert read is not None and read.current is None and "'what'" in (read.fault or "")
    files.function("1155\n", "ID : x\ngarbage\n")
    read = read_function(files.host, VF)
    assert read is not None and read.current == 1155 and "'garbage'" in (read.fault or "")

    def refuse(path: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(files.host, "read", refuse)
    read = read_function(files.host, VF)
    assert read is not None and read.current is None and "EIO" in (read.fault or "")


def test_a_load_of_the_driver_is_another_after_a_boot_and_with_another_release(files: Files) -> None:
    assert read_driver_load(files.host, "nvidia", BOOT) is None
    load = files.driver()
    assert load.release == "550.90.05"
    assert read_driver_load(files.host, "nvidia", BOOT) == load
    other_boot = read_driver_load(files.host, "nvidia", "boot-2")
    assert other_boot is not None and other_boot.identity != load.identity
    assert files.driver("570.10").identity != load.identity


def test_names_are_remembered_for_one_load_and_never_for_another(files: Files) -> None:
    load = files.driver()
    names = read_type_names(files.host, load).with_types(IDS, [VGPUType(1155, "NVIDIA L40S-24Q")])
    write_type_names(files.host, names)
    again = read_type_names(files.host, load)
    assert again.of(IDS) == {1155: "NVIDIA L40S-24Q"}
    assert again.of("10de:27b8") == {}
    assert again.with_types(IDS, [VGPUType(1155, "NVIDIA L40S-24Q")]) is again
    assert read_type_names(files.host, files.driver("570.10")).of(IDS) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "[" * 100_000])
def test_damaged_names_are_none(files: Files, text: str) -> None:
    load = files.driver()
    write_type_names(files.host, TypeNames(load.identity, {IDS: {1155: "NVIDIA L40S-24Q"}}))
    files.put(PATH, text)
    assert read_type_names(files.host, load).of(IDS) == {}


def test_the_live_profile_of_a_function_is_what_its_type_is_called_in_this_load(files: Files) -> None:
    assert live_profile(files.host, VF, IDS, BOOT).profile is None
    files.function("1155\n")
    files.link(f"/sys/bus/pci/devices/{VF}/driver", "../../../bus/pci/drivers/nvidia")
    load = files.driver()
    unnamed = live_profile(files.host, VF, IDS, BOOT)
    assert unnamed.profile is None and "1155" in unnamed.why
    write_type_names(files.host, TypeNames(load.identity, {IDS: {1155: "NVIDIA L40S-24Q"}}))
    assert live_profile(files.host, VF, IDS, BOOT).profile == "L40S-24Q"
    assert live_profile(files.host, VF, IDS, "boot-2").profile is None
    files.function("0\n")
    assert live_profile(files.host, VF, IDS, BOOT).profile is None


def test_parents_and_their_devices(files: Files) -> None:
    assert read_parent(files.host, "0000:3b:00.0") is None and read_mdevs(files.host) == ()
    types = "/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types"
    files.put(f"{types}/nvidia-231/name", "GRID T4-8Q\n")
    files.put(f"{types}/nvidia-231/available_instances", "1\n")
    files.put(f"{types}/nvidia-232/name", "GRID T4-16Q\n")
    files.put(f"{types}/nvidia-232/available_instances", "what\n")
    parent = read_parent(files.host, "0000:3b:00.0")
    assert parent is not None
    assert [(kind.directory, kind.profile, kind.available) for kind in parent.types] == [("nvidia-231", "T4-8Q", 1)]
    assert list(parent.faults) == ["nvidia-232"]

    uuid = "9a1c0d2e-0000-5000-8000-000000000001"
    device = f"/sys/devices/pci0000:3a/0000:3b:00.0/{uuid}"
    files.link(f"{device}/iommu_group", "../../../../kernel/iommu_groups/71")
    files.link(f"/sys/bus/mdev/devices/{uuid}", f"../../../devices/pci0000:3a/0000:3b:00.0/{uuid}")
    files.link(f"{device}/mdev_type", f"../../../../..{types}/nvidia-231")
    [mdev] = read_mdevs(files.host)
    assert (mdev.uuid, mdev.parent, mdev.profile, mdev.group) == (uuid, "0000:3b:00.0", "T4-8Q", 71)
