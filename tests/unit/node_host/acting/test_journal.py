"""The journal: whole or not at all, whatever moment the writer dies at, and never silently empty."""

import fcntl
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_host.acting.journal import Journal, JournalChangedError, JournalEntry, JournalError, decode, encode

EXAMPLES = 2000
CARD, TWIN = "0000:23:00.0", "0000:24:00.0"
ENTRY = JournalEntry("rebellions", "vfio-pci", "boot-1", "1eff:1250:s")
COMPANION = JournalEntry("", "vfio-pci", "boot-1", "10de:22ba", "none", (CARD,))


def test_what_was_put_is_there_for_the_next_process_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "binder/journal.json")
    assert journal.load().entries == {}
    journal.put(CARD, ENTRY)
    journal.put(TWIN, COMPANION)
    state = Journal(tmp_path / "binder/journal.json").load()
    assert (dict(state.entries), state.problem, state.writable) == ({CARD: ENTRY, TWIN: COMPANION}, None, True)
    journal.drop(CARD)
    journal.drop(CARD)
    assert dict(Journal(tmp_path / "binder/journal.json").load().entries) == {TWIN: COMPANION}
    assert (tmp_path / "binder").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "binder/journal.json").stat().st_mode & 0o777 == 0o600


def test_what_another_process_has_put_since_is_kept(tmp_path: Path) -> None:
    one, other = Journal(tmp_path / "journal.json"), Journal(tmp_path / "journal.json")
    one.load()
    other.load()
    one.put(CARD, ENTRY)
    other.put(TWIN, COMPANION)
    one.drop(TWIN)
    other.put(TWIN, ENTRY)
    assert dict(one.load().entries) == {CARD: ENTRY, TWIN: ENTRY}


def test_an_entry_that_another_process_has_changed_is_not_exchanged(tmp_path: Path) -> None:
    one, other = Journal(tmp_path / "journal.json"), Journal(tmp_path / "journal.json")
    one.load()
    other.load()
    one.put(CARD, ENTRY)
    other.put(CARD, COMPANION)
    for entry in (None, ENTRY):
        with pytest.raises(JournalChangedError, match=CARD):
            one.exchange(CARD, ENTRY, entry)
    assert dict(one.load().entries) == {CARD: COMPANION}
    one.exchange(CARD, COMPANION, ENTRY)
    one.exchange(CARD, ENTRY, None)
    assert dict(one.load().entries) == {}


def test_a_change_waits_for_the_process_that_is_at_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.load()
    taken = (tmp_path / "journal.lock").open("w")
    fcntl.flock(taken, fcntl.LOCK_EX)
    waiting = threading.Thread(target=journal.put, args=(CARD, ENTRY), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert not (tmp_path / "journal.json").exists()
    taken.close()
    waiting.join(10)
    assert dict(journal.load().entries) == {CARD: ENTRY}


def test_a_journal_that_broke_since_it_was_read_is_not_written_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.load()
    (tmp_path / "journal.json").write_bytes(b"broken")
    with pytest.raises(JournalError, match="not JSON"):
        journal.put(CARD, ENTRY)
    assert (tmp_path / "journal.json").read_bytes() == b"broken"


def test_a_change_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.load()
    journal.put(CARD, ENTRY)
    before = (tmp_path / "journal.json").stat()
    journal.put(CARD, ENTRY)
    journal.drop(TWIN)
    assert (tmp_path / "journal.json").stat().st_mtime_ns == before.st_mtime_ns
    assert (tmp_path / "journal.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_writer_that_dies_leaves_the_old_journal_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.load()
    journal.put(CARD, ENTRY)

    def dies(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os if step == "fsync" else Path, step, dies)
        with pytest.raises(JournalError, match="No space left"):
            journal.put(TWIN, COMPANION)
    assert dict(Journal(tmp_path / "journal.json").load().entries) == {CARD: ENTRY}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.json", "journal.lock"]
    journal.put(TWIN, COMPANION)
    assert len(Journal(tmp_path / "journal.json").load().entries) == 2


def test_a_broken_journal_is_set_aside_once_each_and_none_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    for number in (1, 2):
        path.write_bytes(b"broken %d" % number)
        state = Journal(path).load()
        assert dict(state.entries) == {}
        assert state.writable
        assert state.problem is not None
        assert f"journal.json.corrupt-{number}" in state.problem
        assert (tmp_path / f"journal.json.corrupt-{number}").read_bytes() == b"broken %d" % number


def test_a_look_that_may_not_change_anything_leaves_a_broken_journal_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    path.write_bytes(b"broken")
    journal = Journal(path)
    state = journal.load(set_aside=False)
    assert (state.writable, path.read_bytes()) == (False, b"broken")
    with pytest.raises(JournalError):
        journal.put(CARD, ENTRY)


def test_a_journal_that_cannot_be_read_is_neither_empty_nor_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    path.mkdir()
    journal = Journal(path)
    state = journal.load()
    assert not state.writable
    assert state.problem is not None
    with pytest.raises(JournalError):
        journal.put(CARD, ENTRY)


def test_too_many_broken_journals_stop_the_work_until_somebody_looks(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    for number in range(1, 17):
        (tmp_path / f"journal.json.corrupt-{number}").write_bytes(b"old")
    path.write_bytes(b"broken")
    state = Journal(path).load()
    assert not state.writable
    assert state.problem is not None
    assert "remove them" in state.problem
    assert path.read_bytes() == b"broken"


def test_a_journal_of_a_link_is_not_followed_when_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    (tmp_path / "journal.json.new").symlink_to(target)
    journal = Journal(tmp_path / "journal.json")
    journal.load()
    with pytest.raises(JournalError):
        journal.put(CARD, ENTRY)
    assert target.read_text() == "precious"


def test_every_cut_and_every_flipped_byte_is_noticed() -> None:
    whole = encode({CARD: ENTRY, TWIN: COMPANION})
    assert decode(whole) == {CARD: ENTRY, TWIN: COMPANION}
    ran = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(st.integers(0, len(whole) - 3), st.integers(1, 255), st.booleans())
    def check(position: int, change: int, cut: bool) -> None:
        nonlocal ran
        ran += 1
        damaged = (
            whole[:position] if cut else bytes([*whole[:position], whole[position] ^ change, *whole[position + 1 :]])
        )
        try:
            found = decode(damaged)
        except ValueError:
            return
        assert found == {CARD: ENTRY, TWIN: COMPANION}

    check()
    print(f"examples: {ran}")
    assert ran >= EXAMPLES
