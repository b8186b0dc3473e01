"""Loading a module on a real host: modprobe's answer in the kernel's words."""

import errno
import os
import sys
from pathlib import Path

import pytest

from node_host.host import KernelFiles, kernel_files
from tests.builders.hosts import refused


@pytest.fixture
def modprobe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A modprobe of the test's own, found before any other; it writes down how it was called."""
    program = tmp_path / "bin/modprobe"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "with (here / 'calls').open('a') as log: print(*sys.argv[1:], file=log)\n"
        "name = sys.argv[-1]\n"
        "if name == 'absent': sys.exit('modprobe: FATAL: Module absent not found in directory /lib/modules/x')\n"
        "if name == 'broken': sys.exit('modprobe: ERROR: could not insert broken: Exec format error')\n"
        "if name == 'mute': sys.exit(1)\n"
        "if name == 'slow': time.sleep(60)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(kernel_files, "_PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def calls(modprobe: Path) -> list[str]:
    log = modprobe.parent / "calls"
    return log.read_text().splitlines() if log.exists() else []


def test_module_is_loaded_by_the_hosts_modprobe(modprobe: Path) -> None:
    KernelFiles("/").load_module("no-such-driver-here")
    assert calls(modprobe) == ["-- no-such-driver-here"]


def test_module_that_is_there_is_not_loaded_again(modprobe: Path, tmp_path: Path) -> None:
    (tmp_path / "host/sys/module/vfio_pci").mkdir(parents=True)
    KernelFiles(tmp_path / "host").load_module("vfio-pci")
    assert calls(modprobe) == []


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("absent", "ENOENT", "no such module"),
        ("broken", "EIO", "Exec format error"),
        ("mute", "EIO", "exit status 1"),
        ("--remove", "EINVAL", "not a module name"),
        ("a/b", "EINVAL", "not a module name"),
        ("", "EINVAL", "not a module name"),
    ],
)
def test_what_is_not_loaded_says_why(modprobe: Path, name: str, number: str, words: str) -> None:
    with pytest.raises(OSError, match=words) as caught:
        KernelFiles("/").load_module(name)
    assert errno.errorcode[caught.value.errno or 0] == number


def test_modprobe_that_hangs_is_given_up(modprobe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_files, "_MODPROBE_SECONDS", 0.3)
    with refused("ETIMEDOUT"):
        KernelFiles("/").load_module("slow")


def test_host_without_modprobe_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_files, "_PATH", str(tmp_path))
    with refused("ENOPKG"):
        KernelFiles("/").load_module("anything")


def test_module_of_a_mounted_host_is_loaded_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/chroot"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        f"pathlib.Path({str(tmp_path / 'call')!r}).write_text(repr(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(kernel_files, "_PATH", f"{program.parent}:{os.environ['PATH']}")
    root = tmp_path / "host"
    root.mkdir()
    KernelFiles(root).load_module("vfio-pci")
    assert (tmp_path / "call").read_text() == repr([str(root), "modprobe", "--", "vfio-pci"])
