"""A journal that is damaged, of another version, or cannot be written, at every stage of a device's life.

A device is then as it was, or on VFIO, or reported with one reason; none is taken for never having been ours, and what
the file said is kept for a person.
"""

import asyncio
import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from node_host.acting.journal import JOURNAL
from tests.builders.binder import NPU, condition_of, npu, order, verdict
from tests.builders.fault_scenes import BYSTANDER, Scene, Stage
from tests.builders.strikes import Strike

Damage = Callable[[bytes], bytes | None]

DAMAGES: dict[str, Damage] = {
    "empty": lambda _: b"",
    "cut in half": lambda whole: whole[: len(whole) // 2],
    "cut by its last byte but one": lambda whole: whole[:-3],
    "a flipped digit": lambda whole: whole.replace(b"rebellions", b"rebellionz"),
    "zeros, as after a power loss": lambda whole: bytes(len(whole)),
    "not JSON": lambda _: b"npufleet was here",
    "another JSON": lambda _: b"[]",
    "of the future": lambda whole: whole.replace(b'"version": ', b'"version": 9'),
    "of no version": lambda whole: whole.replace(b'"version"', b'"Version"'),
    "huge": lambda whole: whole + b" " * (5 << 20),
}
MOVE = Scene("a move", (npu(),), (order(),), {NPU: "vfio-pci"})
# After how many of its steps (journal, override, unbind, probe) the former binder died; None: it did not.
STAGES = (0, 1, 2, 3, None)
ORDERS = {"Apply": order(), "Release": order(intent="Release"), "Hold": order(intent="Hold"), "none": None}


async def damaged(damage: Damage, died_after: int | None, then: dict[str, object] | None) -> bool:
    """Whether the device was already changed when the journal was damaged."""
    stage = Stage(MOVE)
    bench = stage.bench
    try:
        await stage.begin()
        strikes = {} if died_after is None else {died_after + 1: Strike(crash=True, before=False)}
        await stage.struck_pass(strikes)
        journal = bench.kernel.host().local(JOURNAL)
        whole = journal.read_bytes()
        broken = damage(whole)
        assert broken is not None
        assert broken != whole
        journal.write_bytes(broken)
        moved = stage.place(NPU) != stage.former[NPU]
        was = stage.place(NPU)
        bench.mark()
        bench.order(*([then] if then else []), order(BYSTANDER))
        stage.restart({})
        done = await bench.run()
        aside = journal.with_name(f"{journal.name}.corrupt-1")
        assert aside.read_bytes() == broken
        status, reason, message = condition_of(done.bindings, "JournalIntact")
        assert (status, reason) == ("False", "JournalUnreadable")
        assert aside.name in message
        assert verdict(done, BYSTANDER)[0] == "Ready"
        stage.check_strangers()
        reports = [report for report in done.bindings.devices if report.address == NPU]
        assert len(reports) == (then is not None)
        if then is None or then["intent"] != "Apply" or moved:
            assert NPU not in bench.touched()
            assert stage.place(NPU) == was
        if then is not None and then["intent"] == "Release":
            assert verdict(done) == (("Blocked", "JournalUnreadable") if moved else ("Released", "Released"))
        if then is not None and then["intent"] == "Apply":
            half = moved and was[0] != "vfio-pci"
            assert verdict(done)[0] == ("Blocked" if half else "Ready")
            assert half or bench.driver() == "vfio-pci"
        written = len(bench.kernel.writes)
        again = await bench.run()
        assert again.planned.is_empty
        assert len(bench.kernel.writes) == written
        return moved
    finally:
        stage.close()


def test_whatever_is_wrong_with_a_journal_at_whatever_stage_one_condition_says_so_and_the_rest_goes_on() -> None:
    cases = moved = 0
    for (name, damage), died_after, (intent, then) in itertools.product(DAMAGES.items(), STAGES, ORDERS.items()):
        try:
            moved += asyncio.run(damaged(damage, died_after, then))
        except AssertionError as error:
            error.add_note(f"journal {name}, died after step {died_after}, then {intent}")
            raise
        cases += 1
    print(f"cases: {cases}, of them with a changed device: {moved}")
    assert cases == len(DAMAGES) * len(STAGES) * len(ORDERS) >= 200
    assert moved >= 100


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
async def test_on_a_disk_that_stays_full_nothing_is_changed_and_each_device_says_so(number: int) -> None:
    stage = Stage(MOVE)
    bench = stage.bench
    try:
        await stage.begin()
        struck = stage.restart({})
        strike = Strike(errno=number)
        struck.strikes = dict.fromkeys(range(1, 50), strike)
        done = await bench.run()
        assert verdict(done) == ("Blocked", "JournalUnreadable")
        assert verdict(done, BYSTANDER) == ("Ready", "Bound")
        assert NPU not in bench.touched()
        struck.strikes = {}
        bench.clock.advance(400)
        assert verdict(await bench.run()) == ("Ready", "Bound")
    finally:
        stage.close()


async def test_a_directory_that_is_no_directory_holds_everything(tmp_path: Path) -> None:
    stage = Stage(MOVE)
    try:
        await stage.begin()
        journal = stage.bench.kernel.host().local(JOURNAL)
        journal.parent.rmdir() if journal.parent.is_dir() else None
        journal.parent.parent.mkdir(parents=True, exist_ok=True)
        journal.parent.write_text("a file")
        done = await stage.bench.run()
        for address in (NPU, BYSTANDER):
            assert verdict(done, address) == ("Blocked", "JournalUnreadable")
        assert stage.bench.sysfs_writes == []
    finally:
        stage.close()
