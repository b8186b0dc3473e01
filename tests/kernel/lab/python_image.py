"""The host's Python library and packages as a disk image for the guest: starting Python reads hundreds of files, and
each costs several round trips over the shared file system, where a disk is read ahead and cached by the guest's kernel.

Made once per content; what stands in the image is what stands in the folders, less what no guest runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.locks import locked
from tests.kernel.lab.commands import run
from tests.kernel.lab.kernel_packages import lab_cache

# Entries at the top of a folder: linters, installers, and parts of the standard library that nobody imports.
UNUSED = re.compile(
    r"(mypy|mypyc|.*__mypyc\..*|ruff|grimp|importlinter|pip|setuptools|pkg_resources|site-packages|dist-packages"
    r"|test|idlelib|lib2to3|tkinter|turtledemo|ensurepip|config-.*)"
)
KEPT_IMAGES = 2
SECONDS = 300.0
BLOCK = 4096


@dataclass(frozen=True, slots=True)
class PythonImage:
    """`folders`: name in the image by the folder of the guest that it covers."""

    path: Path
    folders: Mapping[str, Path]


def python_folders() -> dict[str, Path]:
    """The standard library, and the packages of the environment that this process runs in."""
    return {"library": Path(sysconfig.get_path("stdlib")), "packages": Path(sysconfig.get_path("purelib"))}


def contents(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All files that go into the image, in a fixed order."""
    pending = [entry for entry in sorted(folder.iterdir()) if not UNUSED.fullmatch(entry.name)]
    while pending:
        entry = pending.pop()
        if entry.is_dir() and not entry.is_symlink():
            pending += sorted(entry.iterdir())
        else:
            yield entry, entry.lstat()


def content_key(folders: Mapping[str, Path]) -> str:
    """Changes when a file is added, changed or removed. Compiled files do not count: they appear by themselves."""
    digest = hashlib.sha256(UNUSED.pattern.encode())
    for name, folder in folders.items():
        digest.update(f"{name} {folder}\n".encode())
        for path, status in contents(folder):
            if path.parent.name != "__pycache__":
                digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def ensure_python_image(folders: Mapping[str, Path] | None = None, cache: Path | None = None) -> PythonImage:
    """The image of this Python, made now if the cache has none. Raises LabError."""
    folders = folders if folders is not None else python_folders()
    cache = cache if cache is not None else lab_cache() / "python"
    target = cache / f"{content_key(folders)}.img"
    with locked(cache / "lock", "making the image of Python"):
        if target.exists():
            os.utime(target)
        else:
            scratch = Path(tempfile.mkdtemp(prefix="image-", dir=cache))
            try:
                _make(folders, scratch / "tree", scratch / "image")
                (scratch / "image").rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            for old in sorted(cache.glob("*.img"), key=lambda path: path.stat().st_mtime)[:-KEPT_IMAGES]:
                old.unlink()
    return PythonImage(target, folders)


def _make(folders: Mapping[str, Path], tree: Path, image: Path) -> None:
    blocks = 0
    for name, folder in folders.items():
        for path, status in contents(folder):
            copy = tree / name / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(path, copy)
            blocks += status.st_size // BLOCK + 2
        (tree / name / "site-packages").mkdir(parents=True, exist_ok=True)  # a place for the packages of a bare Python
    # The file is sparse: what is too much costs nothing.
    size = max(blocks * BLOCK * 3 // 2 // 2**20 + 64, 64)
    options = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-b", str(BLOCK)]
    run(["mke2fs", *options, "-d", str(tree), str(image), f"{size}M"], what="the image of Python", seconds=SECONDS)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or a file of somebody else's
        shutil.copy2(source, target, follow_symlinks=False)
