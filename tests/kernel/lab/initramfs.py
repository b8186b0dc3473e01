"""The guest's first file system: busybox, the few modules that mount the host's files, and the init that does it."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import tempfile
from pathlib import Path

from cli.cluster.locks import locked
from tests.kernel.lab.commands import run, system_path
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.kernel_packages import Kernel

INIT = Path(__file__).with_name("init.sh")
# What mounts the host's root and the share; everything else is loaded from there.
MODULES = ("9pnet_virtio", "9p", "overlay")
SECONDS = 60.0


def find_busybox() -> Path:
    """A statically linked busybox of this system. Raises LabError."""
    found = shutil.which("busybox", path=system_path())
    if found is None:
        raise LabError("there is no busybox; run hack/kernel-lab-packages tools")
    return Path(found)


def module_files(kernel: Kernel) -> list[Path]:
    """The files of MODULES and of what they stand on, in the order in which they load."""
    files: dict[Path, None] = {}
    for module in MODULES:
        output = run(
            ["modprobe", "-S", kernel.release, "-d", str(kernel.directory), "--show-depends", module],
            what=f"dependencies of {module}",
            seconds=SECONDS,
        )
        for line in output.splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod":
                files[Path(path.strip())] = None
    return list(files)


def plain_module(file: Path) -> bytes:
    """A module's bytes as `insmod` of busybox takes them."""
    content = file.read_bytes()
    return lzma.decompress(content) if file.suffix == ".xz" else content


def ensure_initramfs(kernel: Kernel) -> Path:
    """The initramfs for a kernel, built once per content beside it. Raises LabError."""
    busybox = find_busybox()
    digest = hashlib.sha256(INIT.read_bytes() + busybox.read_bytes() + repr(MODULES).encode()).hexdigest()[:16]
    target = kernel.directory / f"initramfs-{digest}.cpio"
    if target.exists():
        return target
    with locked(kernel.directory / "initramfs.lock", "building the initramfs"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix="initramfs-", dir=kernel.directory) as scratch:
                _build(kernel, busybox, Path(scratch) / "tree", Path(scratch) / "initramfs.cpio").rename(target)
    return target


def _build(kernel: Kernel, busybox: Path, tree: Path, archive: Path) -> Path:
    for folder in ("bin", "modules", "proc", "sys", "dev", "lower", "upper", "root"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin/busybox")
    shutil.copy(INIT, tree / "init")
    for path in (tree / "init", tree / "bin/busybox"):
        path.chmod(0o755)
    names = []
    for file in module_files(kernel):
        name = file.name.partition(".")[0] + ".ko"
        (tree / "modules" / name).write_bytes(plain_module(file))
        names.append(name)
    (tree / "modules/order").write_text("".join(f"{name}\n" for name in names))
    listing = "find . | sort | cpio --quiet -o -H newc --owner=0:0"
    run(["sh", "-c", f'{listing} >"$1"', "sh", str(archive)], what="the initramfs", seconds=SECONDS, directory=tree)
    return archive
