"""CDI files in their directory: whole, only those of the claim, and left alone where they are right."""

from pathlib import Path

import pytest

from dra_publisher.cdi.files import CDIFiles
from dra_publisher.cdi.specs import CDIFile
from node_host.host.kernel_files import KernelFiles

DRIVER, UID = "npufleet.io", "0a"
FILES = (CDIFile("k8s.npufleet.io-vfio_0a.json", b"{1}"), CDIFile("npufleet.io_metadata_0a_npu.json", b"{2}"))


@pytest.fixture
def files(tmp_path: Path) -> CDIFiles:
    return CDIFiles(KernelFiles(tmp_path))


def test_files_are_made_with_their_directory_and_left_alone_when_they_are_right(
    files: CDIFiles, tmp_path: Path
) -> None:
    files.write(FILES)
    directory = tmp_path / "var/run/cdi"
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {one.name: one.content for one in FILES}
    inode = (directory / FILES[0].name).stat().st_ino
    (directory / FILES[1].name).write_bytes(b"damaged")
    files.write(FILES)
    assert (directory / FILES[0].name).stat().st_ino == inode
    assert (directory / FILES[1].name).read_bytes() == b"{2}"
    assert (directory / FILES[1].name).stat().st_mode & 0o777 == 0o644


def test_only_what_is_of_the_claim_and_the_driver_is_taken_away(files: CDIFiles, tmp_path: Path) -> None:
    strange = (
        "k8s.npufleet.io-vfio_0b.json",
        "k8s.npufleet.io.example.com-vfio_0a.json.bak",
        "k8s.npufleet.io-east-vfio_0a.json",
        "k8s.npu.rebellions.ai-vfio_0a.json",
        "npu.rebellions.ai_metadata_0a_npu.json",
        "npufleet.io_metadata_0ab_npu.json",
        "vendor.json",
    )
    files.put([*FILES, *(CDIFile(name, b"x") for name in strange)])
    directory = tmp_path / "var/run/cdi"
    (directory / ".k8s.npufleet.io-npu_0a.json.new").write_bytes(b"half")
    files.remove(DRIVER, UID)
    assert sorted(path.name for path in directory.iterdir()) == sorted(strange)
    files.remove(DRIVER, UID)


def test_no_directory_is_nothing_to_take_away(files: CDIFiles) -> None:
    files.remove(DRIVER, UID)


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(files: CDIFiles, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    directory = tmp_path / "var/run/cdi"
    directory.mkdir(parents=True)
    (directory / FILES[0].name).symlink_to(victim)
    files.write(FILES)
    assert victim.read_bytes() == b"untouched"
    assert not (directory / FILES[0].name).is_symlink()
