"""Locks of groups and cards: exclusive across processes, and held by whoever inherited them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node_host.acting.locks import LOCKS, LockedError, Locks, lock_names
from node_host.host import KernelFiles


def locks(root: Path, *names: str) -> Locks:
    return Locks(KernelFiles(root), names, owner="npufleet-vfio-binder")


def test_a_lock_is_exclusive_and_says_who_has_it(tmp_path: Path) -> None:
    with locks(tmp_path, "group-20"):
        with (
            pytest.raises(LockedError, match=r"group-20 is locked by npufleet-vfio-binder \(pid [0-9]+\)"),
            locks(tmp_path, "group-20"),
        ):
            pass
        with locks(tmp_path, "group-21"):
            pass
    with locks(tmp_path, "group-20"):
        pass
    assert sorted(path.name for path in (tmp_path / LOCKS.lstrip("/")).iterdir()) == ["group-20.lock", "group-21.lock"]


def test_of_several_locks_all_are_taken_or_none(tmp_path: Path) -> None:
    with locks(tmp_path, "group-2"), pytest.raises(LockedError), locks(tmp_path, "group-1", "group-2"):
        pass
    with locks(tmp_path, "group-1", "group-2"):
        pass


def test_a_child_that_inherited_a_lock_holds_it_after_its_parent_let_go(tmp_path: Path) -> None:
    with locks(tmp_path, "group-20") as held:
        inherited = held.descriptors()
        program = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=inherited)
    for descriptor in inherited:
        os.close(descriptor)
    with pytest.raises(LockedError), locks(tmp_path, "group-20"):
        pass
    child.communicate()
    with locks(tmp_path, "group-20"):
        pass


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / LOCKS.lstrip("/")
    directory.mkdir(parents=True)
    (tmp_path / "precious").write_text("x")
    (directory / "group-20.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError), locks(tmp_path, "group-20"):
        pass
    assert (tmp_path / "precious").read_text() == "x"


def test_which_locks_a_device_has() -> None:
    card = "0000:23:00.0"
    assert lock_names(card, group=20) == ("group-20",)
    assert lock_names(card, group=None) == (f"pf-{card}",)
    assert lock_names(card, group=20, is_physical=True) == ("group-20", f"pf-{card}")
    assert lock_names("0000:23:00.4", group=21, physical_function=card) == ("group-21", f"pf-{card}")
