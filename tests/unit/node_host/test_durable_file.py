"""A file that is there whole after a crash, whatever step of its replacement fails or is the last one."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node_host.acting.journal import Journal, JournalEntry, JournalError
from node_host.durable_file import write_durably

OLD, NEW = b"old\n", b"the new one\n"
REFUSALS = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES)
ADDRESS = "0000:23:00.0"


class Death(BaseException):
    """Nothing of the program runs after this, not even its clean-up."""


class Steps:
    """The calls that a replacement makes, each counted before it is made."""

    def __init__(self, patch: pytest.MonkeyPatch, fails_at: int, error: BaseException) -> None:
        self.names: list[str] = []
        self._fails_at = fails_at
        self._error = error
        self.dead = False
        for owner, name in ((os, "open"), (os, "fsync"), (Path, "replace")):
            patch.setattr(owner, name, self._struck(name, getattr(owner, name)))
        patch.setattr(Path, "unlink", self._no_cleaning(Path.unlink))

    def _struck(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.names.append(name)
            if len(self.names) - 1 == self._fails_at:
                self.dead = isinstance(self._error, Death)
                raise self._error
            return real(*arguments, **more)

        return call

    def _no_cleaning(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def unlink(*arguments: Any, **more: Any) -> Any:
            return None if self.dead else real(*arguments, **more)

        return unlink


def struck_at_each_step(
    tmp_path: Path, error: Callable[[], BaseException], act: Callable[[Path], None]
) -> Iterator[tuple[Path, str]]:
    """Directories in which a replacement was struck, with the call that was."""
    for number in itertools.count():
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "file").write_bytes(OLD)
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, number, error())
            try:
                act(directory / "file")
            except (OSError, Death):
                pass
            else:
                return
        yield directory, steps.names[number]


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
def test_a_step_that_is_refused_leaves_the_old_file_or_the_new_one_whole_and_nothing_beside_it(
    tmp_path: Path, number: int
) -> None:
    struck = list(struck_at_each_step(tmp_path, lambda: OSError(number, ""), lambda path: write_durably(path, NEW)))
    assert [name for _, name in struck] == ["open", "fsync", "replace", "open", "fsync"]
    for place, (directory, name) in enumerate(struck):
        assert (directory / "file").read_bytes() == (OLD if place < 3 else NEW), name
        assert [path.name for path in directory.iterdir()] == ["file"]


def test_a_death_at_any_step_leaves_a_whole_file_and_the_next_replacement_works(tmp_path: Path) -> None:
    struck = list(struck_at_each_step(tmp_path, Death, lambda path: write_durably(path, NEW)))
    assert len(struck) == 5
    for place, (directory, name) in enumerate(struck):
        assert (directory / "file").read_bytes() == (OLD if place < 3 else NEW), name
        write_durably(directory / "file", b"after\n")
        assert (directory / "file").read_bytes() == b"after\n"


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
def test_a_journal_that_cannot_be_written_says_so_and_still_knows_what_it_knew(tmp_path: Path, number: int) -> None:
    entry = JournalEntry("rebellions", "vfio-pci", "boot-1", "1eff:1250")
    tried = 0
    for step in itertools.count():
        path = tmp_path / str(step) / "journal.json"
        journal = Journal(path)
        journal.load()
        journal.put(ADDRESS, entry)
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, step, OSError(number, os.strerror(number)))
            try:
                journal.drop(ADDRESS)
            except JournalError as error:
                assert os.strerror(number) in str(error)
            else:
                break
        tried += 1
        state = Journal(path).load()
        assert (state.problem, state.writable) == (None, True)
        # Not on disk for certain, so the caller takes it for not done; a restart finds one or the other, whole.
        was_renamed = "replace" in steps.names[:-1]
        assert dict(state.entries) == ({} if was_renamed else {ADDRESS: entry})
    assert tried == 6  # its lock, then the five steps of the file
