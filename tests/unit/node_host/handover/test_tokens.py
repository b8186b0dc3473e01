"""Tokens on the host: what either half writes and heeds, and what it makes of files that are none of theirs."""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from crds.models.node_state import DesiredDevice
from node_host.acting.locks import LockedError, Locks
from node_host.evidence.publication import PUBLISHED, read_published
from node_host.handover.binder_half import BinderHalf
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import HANDOVER, TokenFiles
from node_host.handover.tokens import WAITS, offer_name, read_tokens, taken_name
from node_host.host import KernelFiles
from tests.builders.binder import order

CARD, TWIN = "0000:23:00.0", "0000:24:00.0"
BOOT = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
ONE, TWO = "1" * 64, "2" * 64
LOCKS = ("group-20",)


class Host:
    """A root with nothing in it, and both halves."""

    def __init__(self, root: Path) -> None:
        self.files = KernelFiles(root)
        self.tokens = TokenFiles(self.files)
        self.publisher = PublisherHalf(self.files)
        self.binder = BinderHalf(self.tokens)
        self.directory = root / HANDOVER[1:]

    def take(self, *entries: str, boot: str = BOOT) -> str | None:
        return self.binder.take(CARD, boot, frozenset(entries))

    def there(self) -> dict[str, str]:
        """The entry of each file."""
        return {path.name: json.loads(path.read_text())["entry"] for path in sorted(self.directory.glob("*"))}


@pytest.fixture
def made(tmp_path: Path) -> Host:
    return Host(tmp_path)


def digest(**changes: object) -> str:
    return entry_digest(DesiredDevice.model_validate({**order(), **changes}))


def test_a_digest_is_of_the_canonical_text_of_the_entry_as_the_api_has_it() -> None:
    entry = DesiredDevice.model_validate(order(serial="A1"))
    text = json.dumps(order(serial="A1"), sort_keys=True, separators=(",", ":"))
    assert entry_digest(entry) == hashlib.sha256(text.encode()).hexdigest()
    shuffled = dict(reversed(list(order(serial="A1").items())))
    assert entry_digest(DesiredDevice.model_validate(shuffled)) == entry_digest(entry)


def test_whatever_changes_in_an_entry_changes_its_digest() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"intent": "Hold"},
        {"mode": "Container"},
        {"onRelease": "Leave"},
        {"driverName": "npu.rebellions.ai"},
        {"address": TWIN},
        {"decidedBy": {"policy": "vms", "rule": "others"}},
        {"passthrough": {"companions": "Bind"}},
    ]
    assert len({digest(**change) for change in changes}) == len(changes)


def test_an_offer_is_taken_once_for_the_orders_that_it_is_for(made: Host) -> None:
    assert made.take(ONE) == WAITS
    made.publisher.offer(CARD, BOOT, ONE)
    assert made.there() == {offer_name(CARD): ONE}
    assert json.loads((made.directory / offer_name(CARD)).read_text()) == {
        "version": 1,
        "address": CARD,
        "bootID": BOOT,
        "entry": ONE,
    }
    assert made.take(TWO) == WAITS
    assert made.there() == {offer_name(CARD): ONE}
    assert made.take(TWO, ONE) is None
    assert made.there() == {taken_name(CARD): ONE}
    assert made.take(ONE) is None
    assert made.take(TWO) == WAITS
    assert made.binder.take(TWIN, BOOT, {ONE}) == WAITS


def test_files_are_for_root_alone(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (made.directory, made.directory / offer_name(CARD))]
    assert modes == [0o700, 0o600]


def test_an_offer_for_other_orders_takes_the_place_of_the_one_before(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    made.publisher.offer(CARD, BOOT, TWO)
    assert made.there() == {offer_name(CARD): TWO}


def test_an_offer_is_withdrawn_or_taken_but_not_both(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    assert made.publisher.withdraw(CARD)
    assert not made.publisher.withdraw(CARD)
    assert made.take(ONE) == WAITS
    made.publisher.offer(CARD, BOOT, ONE)
    assert made.take(ONE) is None
    assert not made.publisher.withdraw(CARD)
    assert made.take(ONE) is None


def test_a_renewal_leaves_the_token_of_the_present_orders_alone(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    made.take(ONE)
    made.publisher.renew(CARD, BOOT, TWO, locks=LOCKS)
    assert made.there() == {offer_name(CARD): TWO}
    assert made.take(ONE) == WAITS
    assert made.take(TWO) is None
    made.publisher.renew(CARD, BOOT, TWO, locks=LOCKS)
    assert made.take(TWO) is None
    assert made.there()[taken_name(CARD)] == TWO


def test_nothing_is_taken_away_from_under_a_change(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    with Locks(made.files, LOCKS, owner="npufleet-vfio-binder"):
        assert made.take(ONE) is None
        with pytest.raises(LockedError, match="npufleet-vfio-binder"):
            made.publisher.renew(CARD, BOOT, TWO, locks=LOCKS)
        with pytest.raises(LockedError):
            made.publisher.finish(CARD, locks=LOCKS)
        assert made.there() == {offer_name(CARD): TWO, taken_name(CARD): ONE}
        with pytest.raises(LockedError):
            made.publisher.write_published({CARD}, BOOT, locks=LOCKS)
        assert read_published(made.files, BOOT).addresses == frozenset()
    made.publisher.renew(CARD, BOOT, TWO, locks=LOCKS)
    assert made.there() == {offer_name(CARD): TWO}


def test_pods_are_prepared_only_where_no_token_is(made: Host) -> None:
    publisher = made.publisher
    assert publisher.prepare_refused(CARD) is None
    publisher.offer(CARD, BOOT, ONE)
    assert publisher.prepare_refused(CARD) is not None
    assert publisher.prepare_refused(TWIN) is None
    made.take(ONE)
    assert publisher.prepare_refused(CARD) is not None
    publisher.offer(CARD, BOOT, ONE)
    publisher.finish(CARD, locks=LOCKS)
    assert publisher.prepare_refused(CARD) is None
    assert made.there() == {}


def test_the_note_of_offered_devices_is_read_by_the_binder(made: Host) -> None:
    made.publisher.write_published({TWIN, CARD}, BOOT, locks=LOCKS)
    assert read_published(made.files, BOOT).addresses == {CARD, TWIN}
    assert read_published(made.files, "another").addresses == frozenset()
    made.publisher.write_published([], BOOT)
    assert read_published(made.files, BOOT).addresses == frozenset()


def test_tokens_of_another_boot_are_not_heeded_and_cleaned_by_either(made: Host) -> None:
    made.publisher.offer(CARD, "another", ONE)
    assert made.take(ONE) == WAITS
    assert read_tokens(made.tokens).stale(BOOT) == (CARD,)
    made.binder.clean(CARD, BOOT)
    assert made.there() == {}
    made.publisher.offer(CARD, "another", ONE)
    made.take(ONE, boot="another")
    made.publisher.offer(CARD, BOOT, ONE)
    assert made.take(ONE) is None, "an offer of this boot takes the place of what is left of another"
    made.publisher.offer(CARD, "another", ONE)
    made.publisher.clean(BOOT)
    assert made.there() == {taken_name(CARD): ONE}


def test_a_cleaning_binder_loses_no_offer_of_this_boot(made: Host) -> None:
    """The publisher puts its offer between the binder's look and its rename."""

    class Late(TokenFiles):
        def rename(self, name: str, new_name: str) -> bool:
            made.publisher.offer(CARD, BOOT, ONE)
            return super().rename(name, new_name)

    made.publisher.offer(CARD, "another", TWO)
    BinderHalf(Late(made.files)).clean(CARD, BOOT)
    assert made.there() == {taken_name(CARD): ONE}
    assert made.take(ONE) is None


def test_what_a_death_of_the_publisher_left_is_cleaned_at_its_next_start(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    for name in (f".{offer_name(CARD)}.new", f".{offer_name(TWIN)}.withdrawn"):
        (made.directory / name).write_text("half")
    made.publisher.clean(BOOT)
    assert made.there() == {offer_name(CARD): ONE}


def link(path: Path) -> None:
    target = path.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target.name)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def text(content: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(content)

    return write


TOKEN = {"version": 1, "address": CARD, "bootID": BOOT, "entry": ONE}
SPOILED = {
    "a link": link,
    "a FIFO": fifo,
    "a directory": directory,
    "empty": text(""),
    "no JSON": text("{"),
    "a list": text("[]"),
    "deep": text("[" * 4000),
    "huge": text(json.dumps(TOKEN) + " " * 5000),
    "another version": text(json.dumps(TOKEN | {"version": 2})),
    "another device": text(json.dumps(TOKEN | {"address": TWIN})),
    "no entry": text(json.dumps({**TOKEN, "entry": None})),
    "a short entry": text(json.dumps(TOKEN | {"entry": ONE[:-1]})),
    "no boot": text(json.dumps(TOKEN | {"bootID": 7})),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("name", [offer_name(CARD), taken_name(CARD)], ids=["offered", "taken"])
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_a_token_that_cannot_be_read_hands_nothing_over(made: Host, spoil: Callable[[Path], None], name: str) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    if name == taken_name(CARD):
        made.take(ONE)
    spoil(made.directory / name)
    answer = made.take(ONE)
    assert answer is not None
    assert "cannot be read" in answer
    assert name in answer
    assert made.publisher.prepare_refused(CARD) is not None
    assert made.binder.take(TWIN, BOOT, {ONE}) == WAITS, "another device is not concerned"


def test_a_directory_that_is_a_link_is_not_followed(made: Host, tmp_path: Path) -> None:
    elsewhere = tmp_path / "run/npufleet/elsewhere"
    elsewhere.mkdir(parents=True)
    (elsewhere / offer_name(CARD)).write_text(json.dumps(TOKEN))
    made.directory.symlink_to("elsewhere")
    assert "cannot be read" in str(made.take(ONE))
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        made.publisher.offer(CARD, BOOT, ONE)
    assert made.publisher.prepare_refused(CARD) is not None
    assert sorted(path.name for path in elsewhere.iterdir()) == [offer_name(CARD)]


def test_a_link_in_the_place_of_a_half_written_offer_is_replaced(made: Host, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    made.publisher.offer(CARD, BOOT, ONE)
    (made.directory / f".{offer_name(CARD)}.new").symlink_to(victim)
    made.publisher.offer(CARD, BOOT, TWO)
    assert made.take(TWO) is None
    assert victim.read_text() == "untouched"


def test_names_that_are_no_devices_are_nobodys_business(made: Host) -> None:
    made.publisher.offer(CARD, BOOT, ONE)
    for name in ("README", "x.json", ".json", "0000:99:99.9.taken", f"{CARD}.json.bak"):
        (made.directory / name).write_text("x")
    tokens = read_tokens(made.tokens)
    assert (set(tokens.offered), dict(tokens.taken), dict(tokens.faults)) == ({CARD}, {}, {})


def test_the_note_is_whole_and_synced_before_it_is_there(made: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    made.publisher.write_published({CARD}, BOOT)
    assert synced == [f"{PUBLISHED.rpartition('/')[2]}.new", "npufleet"]
    synced.clear()
    made.publisher.offer(CARD, BOOT, ONE)
    assert synced == [f".{offer_name(CARD)}.new", "handover"]
    synced.clear()
    made.take(ONE)
    assert synced == ["handover"]
