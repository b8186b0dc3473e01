"""The mediated devices of a card, and who has one, from files of a host."""

from pathlib import Path

import pytest

from crds.models.profiling import ProfileReason as Reason
from node_host.host import KernelFiles
from profile_writer.mdev_looking import MdevsOfCard, look_at_mdevs

CARD = "0000:3b:00.0"
UUIDS = ("9a1c0d2e-0000-5000-8000-000000000001", "9a1c0d2e-0000-5000-8000-000000000002")
TYPES = f"sys/class/mdev_bus/{CARD}/mdev_supported_types/nvidia-231"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A T4 with two devices, in the groups 71 and 72; a process without device nodes runs."""
    root = tmp_path / "host"
    (root / TYPES).mkdir(parents=True)
    (root / TYPES / "name").write_text("GRID T4-8Q\n")
    (root / TYPES / "available_instances").write_text("0\n")
    (root / "sys/bus/mdev/devices").mkdir(parents=True)
    for number, uuid in enumerate(UUIDS):
        device = root / f"sys/devices/pci0000:3a/{CARD}/{uuid}"
        device.mkdir(parents=True)
        (device / "iommu_group").symlink_to(f"../../../../kernel/iommu_groups/{71 + number}")
        (device / "mdev_type").symlink_to(f"/{TYPES}")
        (root / "sys/bus/mdev/devices" / uuid).symlink_to(f"/sys/devices/pci0000:3a/{CARD}/{uuid}")
    runs(root, 1, "init")
    return root


def runs(root: Path, pid: int, comm: str, *nodes: str) -> None:
    (root / f"proc/{pid}/fd").mkdir(parents=True)
    (root / f"proc/{pid}/comm").write_text(f"{comm}\n")
    for number, node in enumerate(nodes):
        (root / f"proc/{pid}/fd/{number}").symlink_to(node)


def looked(root: Path) -> MdevsOfCard:
    return look_at_mdevs(KernelFiles(root), CARD, ["0000:3b:00.4"])


def test_a_card_without_mediated_devices_has_none(tmp_path: Path) -> None:
    assert looked(tmp_path) == MdevsOfCard()


def test_devices_that_nobody_has_open_are_free(root: Path) -> None:
    found = looked(root)
    [parent] = found.parents
    assert (parent.address, parent.directories, parent.available) == (CARD, {"T4-8Q": "nvidia-231"}, {"T4-8Q": 0})
    assert [(one.uuid, one.parent, one.profile, one.obstacle) for one in found.mdevs] == [
        (uuid, CARD, "T4-8Q", None) for uuid in UUIDS
    ]


def test_whoever_has_the_group_of_a_device_open_uses_it_alone(root: Path) -> None:
    runs(root, 7, "qemu", "/dev/vfio/71")
    first, second = looked(root).mdevs
    assert first.obstacle is not None and first.obstacle.reason is Reason.IN_USE
    assert first.users == ("qemu (pid 7)",)
    assert second.obstacle is None and second.users == ()


def test_an_open_vfio_device_that_may_be_any_counts_for_all(root: Path) -> None:
    runs(root, 8, "qemu", "anon_inode:[vfio-device]")
    (root / "proc/8/fdinfo").mkdir()
    (root / "proc/8/fdinfo/0").write_text(f"vfio-device-syspath:\t/sys/devices/pci0000:3a/{CARD}/{UUIDS[1]}\n")
    for mdev in looked(root).mdevs:
        assert mdev.obstacle is not None and "qemu (pid 8)" in mdev.obstacle.message


def test_an_open_vfio_device_is_explained_by_the_group_that_the_same_process_has_open(root: Path) -> None:
    runs(root, 8, "qemu", "anon_inode:[vfio-device]", "/dev/vfio/72")
    (root / "proc/8/fdinfo").mkdir()
    (root / "proc/8/fdinfo/0").write_text(f"vfio-device-syspath:\t/sys/devices/pci0000:3a/{CARD}/{UUIDS[1]}\n")
    first, second = looked(root).mdevs
    assert first.obstacle is None and second.obstacle is not None


def test_what_cannot_be_read_counts_as_use(root: Path) -> None:
    (root / f"sys/devices/pci0000:3a/{CARD}/{UUIDS[0]}/iommu_group").unlink()
    first, second = looked(root).mdevs
    assert first.obstacle is not None and second.obstacle is None
    for path in sorted((root / "proc").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "proc").rmdir()
    assert all(mdev.obstacle is not None for mdev in looked(root).mdevs)
