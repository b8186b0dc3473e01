"""Reading a host below a root: links stay inside, errors are the kernel's."""

import errno
import os
from pathlib import Path

import pytest

from node_host.host import KernelFiles, SimulatedHost, open_host
from tests.builders import hosts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small host: an absolute link, a relative one, one that tries to leave, a loop, a dangling one."""
    root = tmp_path / "host"
    (root / "sys/devices/pci0000:20").mkdir(parents=True)
    (root / "sys/bus").mkdir()
    (root / "sys/devices/pci0000:20/vendor").write_text("0x1eff\n")
    (root / "sys/bus/relative").symlink_to("../devices/pci0000:20")
    (root / "run/lock").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    (root / "var/escape").symlink_to("../../../../../outside")
    (root / "var/loop").symlink_to("loop")
    (root / "var/dangling").symlink_to("/nowhere/at/all")
    (tmp_path / "outside").write_text("secret")
    return root


def test_reads_follow_relative_and_absolute_links_inside_the_root(root: Path) -> None:
    host = KernelFiles(root)
    (root / "run/lock/x").write_text("held")
    assert host.read("/sys/bus/relative/vendor") == b"0x1eff\n"
    assert host.read("/var/run/lock/x") == b"held"
    assert host.resolve("/sys/bus/relative") == "/sys/devices/pci0000:20"
    assert host.resolve("/var/run/lock") == "/run/lock"
    assert host.read_link("/sys/bus/relative") == "../devices/pci0000:20"
    assert host.list("/var") == ["dangling", "escape", "loop", "run"]
    assert host.list("/") == ["run", "sys", "var"]
    assert host.stat("/sys/bus/relative/vendor").st_size == 7


@pytest.mark.parametrize(
    "path", ["/var/escape", "/../outside", "/var/../../outside", "/sys/bus/relative/../../../../outside"]
)
def test_nothing_leads_out_of_the_root(root: Path, path: str) -> None:
    host = KernelFiles(root)
    with pytest.raises(FileNotFoundError):
        host.read(path)
    with pytest.raises(FileNotFoundError):
        host.write(path, b"x")
    assert (root.parent / "outside").read_text() == "secret"
    assert str(host.local(path)).startswith(f"{root}/")


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/sys/none", errno.ENOENT),
        ("/sys/devices/pci0000:20/vendor/deeper", errno.ENOTDIR),
        ("/var/loop", errno.ELOOP),
        ("/var/dangling", errno.ENOENT),
        ("/sys", errno.EISDIR),
        ("sys/bus", errno.EINVAL),
        ("", errno.EINVAL),
        ("/sys/\0", errno.EINVAL),
    ],
)
def test_what_cannot_be_read_is_an_os_error(root: Path, path: str, number: int) -> None:
    with pytest.raises(OSError, match=r".+") as caught:
        KernelFiles(root).read(path)
    assert caught.value.errno == number


def test_existence_is_of_the_name_not_of_what_it_leads_to(root: Path) -> None:
    host = KernelFiles(root)
    assert host.exists("/var/dangling")
    assert host.exists("/var/loop")
    assert host.exists("/var/run/lock")
    assert host.exists("/")
    assert host.exists("/sys/bus/")
    assert not host.exists("/var/dangling/x")
    assert not host.exists("/sys/devices/pci0000:20/vendor/x")
    assert not host.exists("/none/at/all")


def test_place_of_a_file_that_is_not_there_yet(root: Path) -> None:
    host = KernelFiles(root)
    assert host.local("/var/lib/npufleet/journal.json") == root / "var/lib/npufleet/journal.json"
    assert host.local("/var/run/npufleet/locks") == root / "run/npufleet/locks"
    assert host.local("/var/dangling") == root / "nowhere/at/all"
    assert KernelFiles("/").local("/var/lib/npufleet/x") == Path("/var/lib/npufleet/x")


def test_real_root_is_read_as_it_is() -> None:
    host = KernelFiles("/")
    assert host.read("/proc/self/comm").decode().strip() == Path("/proc/self/comm").read_text().strip()
    assert host.resolve("/proc/self") == f"/proc/{os.getpid()}"
    assert host.list("/proc/self/fd")


def test_root_decides_which_kernel_it_is(tmp_path: Path) -> None:
    assert isinstance(open_host("/"), KernelFiles)
    assert isinstance(open_host(tmp_path), KernelFiles)
    with hosts.served(tmp_path) as machine:
        assert isinstance(open_host(machine.root), SimulatedHost)
        assert isinstance(open_host(str(machine.root)), SimulatedHost)


def test_below_the_root_itself_links_are_followed_by_the_kernel_with_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("seen")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "loop").symlink_to("loop")
    whole, below = KernelFiles("/"), KernelFiles(tmp_path)
    assert whole.read(f"{tmp_path}/link") == b"seen"
    assert whole.read_link(f"{tmp_path}/link") == f"{tmp_path}/target"
    assert whole.resolve(f"{tmp_path}/link") == str((tmp_path / "target").resolve())
    assert whole.stat(f"{tmp_path}/link").st_size == 4
    assert whole.list(str(tmp_path)) == below.list("/") == ["link", "loop", "target"]
    assert whole.exists(f"{tmp_path}/loop")
    for host, path in ((whole, f"{tmp_path}/loop"), (below, "/loop")):
        with pytest.raises(OSError, match="symbolic links") as caught:
            host.read(path)
        assert caught.value.errno == errno.ELOOP
    for path in ("relative", "/nul\0"):
        with pytest.raises(OSError, match="absolute") as caught:
            whole.read(path)
        assert caught.value.errno == errno.EINVAL
