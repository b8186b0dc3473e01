"""The guest's kernel: Debian packages, downloaded once and unpacked (never installed) into a cache keyed by content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cli.checkout import ROOT
from cli.cluster.locks import locked
from cli.cluster.programs.binaries import cache_directory
from tests.kernel.lab.commands import run
from tests.kernel.lab.errors import LabError

SCRIPT = ROOT / "hack/kernel-lab-packages"
# Raise when the same packages are to be unpacked in another way.
LAYOUT = 2
DOWNLOAD_SECONDS = 900.0
UNPACK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked kernel. `directory` is the cache entry, laid out like the file system of a host."""

    release: str
    directory: Path

    @property
    def image(self) -> Path:
        """The kernel that QEMU starts."""
        return self.directory / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        """The directory that is /lib/modules/<release> on a host; depmod has run."""
        return self.directory / "lib/modules" / self.release

    @property
    def headers(self) -> Path:
        """KDIR for out-of-tree modules."""
        return self.directory / "usr/src" / f"linux-headers-{self.release}"

    def is_complete(self) -> bool:
        return self.image.is_file() and (self.modules / "modules.dep").is_file() and self.headers.is_dir()

    def described(self) -> dict[str, str]:
        """For scripts: `release` and the three paths."""
        paths = {"kernel": self.image, "modules": self.modules, "headers": self.headers}
        return {"release": self.release} | {name: str(path) for name, path in paths.items()}


def lab_cache() -> Path:
    return cache_directory() / "kernel-lab"


def install_tools() -> None:
    """QEMU and the other tools, installed where they are missing. Raises LabError."""
    run([str(SCRIPT), "tools"], what="the tools of the kernel lab", seconds=DOWNLOAD_SECONDS, show=True)


def prepare(*, refresh: bool = False, waiting: Callable[[str], None] | None = None) -> Kernel:
    """The unpacked kernel, from the cache or downloaded: the newest 6.12 that the suite offers then, and the same one
    from then on; `refresh` looks for a newer one. Raises LabError."""
    cache = lab_cache()
    with locked(cache / "lock", "preparing the kernel of the lab", waiting=waiting):
        known = None if refresh else _current(cache)
        if known is not None:
            return known
        scratch = Path(tempfile.mkdtemp(prefix="download-", dir=cache))
        try:
            kernel = _download(cache, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        pointer = cache / "current.json.new"
        pointer.write_text(
            json.dumps({"layout": LAYOUT, "release": kernel.release, "directory": kernel.directory.name})
        )
        pointer.replace(cache / "current.json")
        return kernel


def _current(cache: Path) -> Kernel | None:
    try:
        content = json.loads((cache / "current.json").read_text())
        kernel = Kernel(str(content["release"]), cache / str(content["directory"]))
        if content["layout"] != LAYOUT:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kernel if kernel.is_complete() else None


def _download(cache: Path, scratch: Path) -> Kernel:
    packages = scratch / "packages"
    output = run([str(SCRIPT), "kernel", str(packages)], what="the guest's kernel", seconds=DOWNLOAD_SECONDS, show=True)
    release = output.strip().rpartition("\n")[2]
    files = sorted(packages.glob("*.deb"))
    if not release or not files:
        raise LabError(f"the guest's kernel: {SCRIPT.name} brought no package")
    target = Kernel(release, cache / content_key(files))
    if target.is_complete():
        return target
    unpacked = Kernel(release, scratch / "root")
    for file in files:
        run(["dpkg-deb", "-x", str(file), str(unpacked.directory)], what=file.name, seconds=UNPACK_SECONDS)
    _settle(unpacked)
    shutil.rmtree(target.directory, ignore_errors=True)
    unpacked.directory.rename(target.directory)
    return target


def content_key(files: list[Path]) -> str:
    """Names the cache entry: a digest over the packages' names and bytes and the way they are unpacked."""
    digest = hashlib.sha256(f"layout {LAYOUT}\n".encode())
    for file in files:
        with file.open("rb") as content:
            digest.update(f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _settle(kernel: Kernel) -> None:
    """Make the unpacked tree usable where it lies: one /lib, module dependencies, header includes without /usr."""
    lib, usr_lib = kernel.directory / "lib", kernel.directory / "usr/lib"
    if not lib.exists() and (usr_lib / "modules").is_dir():
        lib.symlink_to("usr/lib")
    # Unpacking them in an emulated guest would take longer than everything else that it does at start.
    packed = f'find "$1" -name "*.ko.xz" -print0 | xargs -0 -r -n 50 -P {os.cpu_count() or 1} xz -d'
    run(["sh", "-c", packed, "sh", str(kernel.modules)], what="unpacking modules", seconds=UNPACK_SECONDS)
    run(["depmod", "-b", str(kernel.directory), kernel.release], what="module dependencies", seconds=UNPACK_SECONDS)
    makefile = kernel.headers / "Makefile"
    common = kernel.release.removesuffix("-amd64") + "-common"
    makefile.unlink()
    makefile.write_text(f"include $(dir $(lastword $(MAKEFILE_LIST)))../linux-headers-{common}/Makefile\n")
    # With it, each module build would want pahole to write type information that nothing here reads.
    (kernel.headers / "vmlinux").unlink(missing_ok=True)
    if not kernel.is_complete():
        raise LabError(f"the packages of kernel {kernel.release} are laid out in an unknown way: {kernel.directory}")
