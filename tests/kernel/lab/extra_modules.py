"""The guest's own test modules (tests/kernel/modules): built once per content, in a module directory of their own that
holds the kernel's modules too, so that modprobe finds them with what they need."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cli.checkout import ROOT
from cli.cluster.locks import locked
from tests.kernel.lab.commands import run
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.kernel_packages import UNPACK_SECONDS, Kernel

SOURCES = ROOT / "tests/kernel/modules"
BUILD_SECONDS = 300.0
KEPT_BUILDS = 4


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """`modules`: what the guest sees as /lib/modules/<release>; `built`: the test modules in its extra/."""

    modules: Path
    built: tuple[Path, ...]


def source_files(sources: Path = SOURCES) -> list[Path]:
    """What the build reads, in a fixed order."""
    return sorted(
        path for path in sources.rglob("*") if path.name in {"Kbuild", "Makefile"} or path.suffix in {".c", ".h"}
    )


def content_key(files: Iterable[Path], base: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(base)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def compiler(release_variables: str) -> str:
    """The compiler that the kernel was built with where it is installed, else the system's. `release_variables` is the
    text of the headers' .kernelvariables."""
    words = release_variables.split()
    wanted = next((word.rpartition(")")[2] for word in words if "gcc-" in word), "gcc")
    return wanted if shutil.which(wanted) else "gcc"


def ensure_modules(kernel: Kernel, sources: Path = SOURCES) -> ModuleTree:
    """The module tree with the test modules of this checkout. Raises LabError with the compiler's words."""
    key = content_key(source_files(sources), sources)
    target = kernel.directory / f"modules-{key}"
    tree = _tree(kernel, target)
    if tree is not None:
        os.utime(target)
        return tree
    with locked(kernel.directory / "modules.lock", "building the test modules"):
        tree = _tree(kernel, target)
        if tree is None:
            scratch = Path(tempfile.mkdtemp(prefix="build-", dir=kernel.directory))
            try:
                _build(kernel, sources, scratch)
                shutil.rmtree(target, ignore_errors=True)
                (scratch / "root").rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            _forget_old(kernel.directory)
            tree = _tree(kernel, target)
    if tree is None:
        raise LabError(f"the test modules were built, and are not in {target}")
    return tree


def _tree(kernel: Kernel, target: Path) -> ModuleTree | None:
    modules = target / "lib/modules" / kernel.release
    if not (modules / "modules.dep").is_file():
        return None
    return ModuleTree(modules, tuple(sorted((modules / "extra").glob("*.ko"))))


def _build(kernel: Kernel, sources: Path, scratch: Path) -> None:
    output = scratch / "output"
    variables = kernel.headers / ".kernelvariables"
    run(
        [
            "make",
            *("-C", str(sources), f"KDIR={kernel.headers}", f"OUT={output}"),
            f"CC={compiler(variables.read_text() if variables.exists() else '')}",
        ],
        what="building tests/kernel/modules",
        seconds=BUILD_SECONDS,
    )
    modules = scratch / "root/lib/modules" / kernel.release
    modules.parent.mkdir(parents=True)
    run(["cp", "-al", str(kernel.modules), str(modules)], what="the module tree", seconds=UNPACK_SECONDS)
    (modules / "extra").mkdir()
    for file in output.glob("*.ko"):
        shutil.copy(file, modules / "extra")
    # Hard links: depmod must write new files, not into those of the kernel's own tree.
    for file in modules.glob("modules.*"):
        if file.name not in {"modules.order", "modules.builtin", "modules.builtin.modinfo"}:
            file.unlink()
    run(["depmod", "-b", str(scratch / "root"), kernel.release], what="module dependencies", seconds=UNPACK_SECONDS)


def _forget_old(directory: Path) -> None:
    """Trees that nobody used lately; a guest that still runs has its modules loaded or reads them by open files."""
    trees = sorted(directory.glob("modules-*"), key=lambda path: path.stat().st_mtime)
    for old in trees[:-KEPT_BUILDS]:
        shutil.rmtree(old, ignore_errors=True)
