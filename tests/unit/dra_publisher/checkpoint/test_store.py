"""The checkpoint's file: shared, whole, and never absent while claims are prepared."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dra_publisher.checkpoint.store import BusyError, CheckpointError, CheckpointStore
from node_host.evidence.checkpoint import (
    UNKNOWN_SHAPE,
    Checkpoint,
    CheckpointUnreadableError,
    ClaimState,
    PreparedClaim,
    encode,
)
from node_host.host.kernel_files import KernelFiles
from node_host.whole_file import write_whole
from tests.builders.checkpoints import claim

FIRST, SECOND = "0000:27:00.0", "0000:28:00.0"
SHAPE = "ab" * 32
CLAIM = PreparedClaim("0a", "team-a", "vm", "boot", ClaimState.COMPLETED, ())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(KernelFiles(tmp_path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var/lib/npufleet/publisher/checkpoint.json"


def test_no_file_is_an_empty_record(store: CheckpointStore, path: Path) -> None:
    assert store.checkpoint() == Checkpoint()
    assert not path.exists()


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_written_is_there_for_this_and_other_processes(
    store: CheckpointStore, path: Path, tmp_path: Path, durable: bool
) -> None:
    wanted = Checkpoint({"0a": CLAIM}, {FIRST: SHAPE})
    with store.locked():
        store.write(wanted, durable=durable)
    assert store.checkpoint() == CheckpointStore(KernelFiles(tmp_path)).checkpoint() == wanted
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in path.parent.iterdir()) == ["checkpoint.json", "checkpoint.lock"]


def test_it_is_read_again_when_another_process_has_written_it(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(KernelFiles(tmp_path))
    for number in range(50):
        wanted = Checkpoint({f"{number:02}": PreparedClaim(f"{number:02}", "n", "c", "b", ClaimState.STARTED, ())})
        writer, reader = (store, other) if number % 2 else (other, store)
        writer.write(wanted, durable=False)
        assert reader.checkpoint() == wanted == writer.checkpoint()


def test_a_file_that_is_gone_again_is_an_empty_record(store: CheckpointStore, path: Path) -> None:
    store.write(Checkpoint({"0a": CLAIM}))
    path.unlink()
    assert store.checkpoint() == Checkpoint()


def test_the_lock_is_one_for_all_processes_and_goes_with_its_holder(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(KernelFiles(tmp_path))
    with store.locked(), pytest.raises(BusyError, match="is locked by another publisher"), other.locked():
        raise AssertionError
    with other.locked():
        pass


def test_a_file_that_is_not_whole_is_told_apart_from_one_that_cannot_be_read(
    store: CheckpointStore, path: Path
) -> None:
    store.write(Checkpoint({"0a": CLAIM}))
    path.write_bytes(b"{}")
    with pytest.raises(CheckpointUnreadableError):
        store.checkpoint()
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
        store.checkpoint()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="not a plain file"):
        store.checkpoint()


def test_a_file_is_set_aside_without_a_moment_in_which_nothing_is_prepared(
    store: CheckpointStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir(parents=True)
    seen: list[bool] = []
    for name in ("link", "replace", "unlink", "rename"):
        real = getattr(os, name)

        def watched(*arguments: object, _real: object = real, **more: object) -> object:
            seen.append(path.exists())
            assert callable(_real)
            found = _real(*arguments, **more)
            seen.append(path.exists())
            return found

        monkeypatch.setattr(os, name, watched)
    path.write_bytes(b"broken")
    assert store.set_aside("not JSON") == "checkpoint.json.corrupt-1"
    assert seen and all(seen)
    doubt = store.checkpoint().doubt
    assert doubt == "an earlier checkpoint was lost (not JSON); it is kept as checkpoint.json.corrupt-1"
    path.write_bytes(b"again")
    assert store.set_aside("x") == "checkpoint.json.corrupt-2"
    assert (path.parent / "checkpoint.json.corrupt-1").read_bytes() == b"broken"


def test_a_death_between_the_two_steps_of_it_keeps_one_copy(store: CheckpointStore, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"broken")
    path.with_name("checkpoint.json.corrupt-1").hardlink_to(path)
    assert store.set_aside("x") == "checkpoint.json.corrupt-1"


def test_too_many_that_were_set_aside_are_an_error_and_change_nothing(store: CheckpointStore, path: Path) -> None:
    path.parent.mkdir(parents=True)
    for number in range(1, 17):
        path.with_name(f"checkpoint.json.corrupt-{number}").write_bytes(b"old")
    path.write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="16 files are set aside already, remove them"):
        store.set_aside("not JSON")
    assert path.read_bytes() == b"broken"


def test_a_write_that_fails_leaves_what_was_there(
    store: CheckpointStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(Checkpoint({"0a": CLAIM}))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.write(Checkpoint())
    assert path.read_bytes() == before
    assert store.checkpoint() == Checkpoint({"0a": CLAIM})


def test_published_devices_are_noted_and_forgotten_beside_the_claims(store: CheckpointStore, path: Path) -> None:
    store.write(Checkpoint({"0a": CLAIM}))
    store.note_published({FIRST: SHAPE, SECOND: SHAPE})
    inode = path.stat().st_ino
    store.note_published({FIRST: SHAPE})
    assert path.stat().st_ino == inode, "nothing new"
    store.forget_published({SECOND})
    assert store.checkpoint() == Checkpoint({"0a": CLAIM}, {FIRST: SHAPE})


def test_claims_of_unknown_shape_have_the_shape_that_their_device_is_noted_with(store: CheckpointStore) -> None:
    """After a lost record: in the unknown one nobody would give it to them again after a reboot."""
    (known,) = claim({FIRST: SHAPE}, boot_id="boot").devices
    (unknown,) = claim({SECOND: UNKNOWN_SHAPE}, boot_id="boot").devices
    before = replace(CLAIM, devices=(known, unknown))
    store.write(Checkpoint({"0a": before}, {FIRST: SHAPE, SECOND: UNKNOWN_SHAPE}))
    store.note_published({FIRST: "cd" * 32, SECOND: "ef" * 32})
    after = replace(before, devices=(known, replace(unknown, shape="ef" * 32)))
    assert store.checkpoint() == Checkpoint({"0a": after}, {FIRST: "cd" * 32, SECOND: "ef" * 32})


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "b.json"
    write_whole(path, b"one")
    assert path.read_bytes() == b"one"

    def torn(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one" and [one.name for one in path.parent.iterdir()] == ["b.json"]


def test_the_encoding_is_the_one_of_the_readers(store: CheckpointStore, path: Path) -> None:
    wanted = Checkpoint({"0a": CLAIM}, {FIRST: SHAPE})
    store.write(wanted)
    assert path.read_bytes() == encode(wanted)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_may_be_looked_at_while_a_thread_writes(store: CheckpointStore) -> None:
    """Each look finds one of the records that were written, whole, and no descriptor is lost or closed twice."""
    before = _descriptors()
    records = [Checkpoint({}, {FIRST: f"{number:064x}"}) for number in range(200)]
    store.write(records[0], durable=False)

    def write() -> None:
        for record in records:
            store.write(record, durable=False)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(int(store.checkpoint().published[FIRST], 16))
    writer.join()
    assert seen == sorted(seen) and store.checkpoint() == records[-1]
    store.close()
    assert _descriptors() <= before
