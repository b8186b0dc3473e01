"""What the lab keeps is keyed by what went into it: the same content is found again, any change is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.lab import extra_modules, kernel_packages, python_image
from tests.kernel.lab.errors import LabError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("os.py", "json/decoder.py", "json/__pycache__/decoder.pyc", "mypy/main.py", "test/big.py"):
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(name)
    return tmp_path / "lib"


def key(folder: Path) -> str:
    return python_image.content_key({"library": folder})


def test_the_image_leaves_out_what_no_guest_runs(folder: Path) -> None:
    names = {str(path.relative_to(folder)) for path, _ in python_image.contents(folder)}
    assert names == {"os.py", "json/decoder.py", "json/__pycache__/decoder.pyc"}


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new.py").touch(),
        lambda folder: (folder / "os.py").unlink(),
        lambda folder: (folder / "os.py").write_text("longer than it was"),
        lambda folder: os.utime(folder / "json/decoder.py", (1, 1)),
    ],
    ids=["added", "removed", "changed", "touched"],
)
def test_another_python_is_another_image(folder: Path, change: Callable[[Path], object]) -> None:
    before = key(folder)
    change(folder)
    assert key(folder) != before


@pytest.mark.parametrize("name", ["json/__pycache__/encoder.pyc", "mypy/new.py"])
def test_what_does_not_matter_changes_no_image(folder: Path, name: str) -> None:
    before = key(folder)
    (folder / name).touch()
    assert key(folder) == before


def test_modules_are_keyed_by_names_and_bytes_of_their_sources(tmp_path: Path) -> None:
    def now() -> str:
        return extra_modules.content_key(extra_modules.source_files(tmp_path), tmp_path)

    (tmp_path / "a").mkdir()
    (tmp_path / "a/a.c").write_text("int x;")
    (tmp_path / "Makefile").write_text("all:")
    first = now()
    (tmp_path / "notes.md").write_text("no part of the build")
    assert now() == first
    (tmp_path / "a/a.c").write_text("int y;")
    second = now()
    (tmp_path / "a/a.c").rename(tmp_path / "a/b.c")
    assert len({first, second, now()}) == 3


def test_packages_are_keyed_by_names_and_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "linux-image_1.deb", tmp_path / "linux-image_2.deb"
    one.write_bytes(b"x")
    other.write_bytes(b"x")
    assert kernel_packages.content_key([one]) != kernel_packages.content_key([other])
    before = kernel_packages.content_key([one])
    one.write_bytes(b"y")
    assert kernel_packages.content_key([one]) != before


def test_modules_are_built_by_the_kernels_compiler_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "CCACHE = ccache\nCC = $(if $(USE_CCACHE),$(CCACHE)) $(CROSS_COMPILE)gcc-12\n"
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert extra_modules.compiler(text) == "gcc-12"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert extra_modules.compiler(text) == "gcc"


def test_a_cached_kernel_is_used_without_any_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUFLEET_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_packages, "SCRIPT", tmp_path / "would-fail")
    kernel = kernel_packages.Kernel("6.12.1+deb12-amd64", tmp_path / "kernel-lab/0123")
    for file in (kernel.image, kernel.modules / "modules.dep", kernel.headers / "Makefile"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    pointer = tmp_path / "kernel-lab/current.json"
    pointer.write_text(f'{{"layout": {kernel_packages.LAYOUT}, "release": "{kernel.release}", "directory": "0123"}}')
    assert kernel_packages.prepare() == kernel
    kernel.image.unlink()
    with pytest.raises(LabError, match="would-fail is missing"):
        kernel_packages.prepare()
