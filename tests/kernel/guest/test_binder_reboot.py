"""The binder over a reboot of a real machine: everything is bound anew, and leftovers of the boot before are forgotten.

The journal of the first boot is kept as it was on disk in the midst of things, as a power cut would leave it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from node_host.acting.journal import Journal
from tests.builders.binder import verdict
from tests.builders.guest_binder import NPUFLEET, GuestBinder, driver, functions, traced, whole
from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.guest_side import STATE

pytestmark = pytest.mark.guest_deadline(180)

KEPT = STATE / "npufleet"
TAKEN = ("shared_a", "twin_a", "other_pf")


def orders(lab: Lab) -> list[dict[str, object]]:
    return [whole(lab["shared_a"], companions="Bind"), whole(lab["other_pf"], virtualFunctions=2)]


def test_devices_are_bound_when_the_power_goes(lab: Lab) -> None:
    binder = GuestBinder()
    try:
        done = binder.ordered(*orders(lab), whole(lab["twin_a"]))
        assert [verdict(done, lab[role])[0] for role in TAKEN] == ["Ready"] * 3
        shutil.rmtree(KEPT, ignore_errors=True)  # of a try that the lab had to repeat
        shutil.copytree(NPUFLEET, KEPT)
    finally:
        binder.release(*(lab[role] for role in TAKEN))


@pytest.mark.after_reboot
def test_after_the_reboot_what_is_ordered_is_bound_anew_and_what_is_not_is_forgotten_unwritten(lab: Lab) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    before = Journal(KEPT / "binder/journal.json").load().entries
    assert len(before) == 6
    assert boot_id not in {entry.boot_id for entry in before.values()}
    binder = GuestBinder(KEPT)
    card, members = lab["other_pf"], (lab["shared_a"], lab["shared_b"])
    assert [driver(address) for address in (*members, lab["twin_a"])] == ["e1000", "e1000", None]
    try:
        with traced() as trace:
            # The policy of the twin was deleted while the machine was down.
            done = binder.ordered(*orders(lab))
            writes = [str(write) for write in trace.writes()]
            assert verdict(done, members[0]) == ("Ready", "Bound")
            assert verdict(done, members[1]) == ("Ready", "Companion")
            assert verdict(done, card) == ("Ready", "FunctionsBound")
            assert {f"{members[0]}/driver_override", f"{card}/sriov_numvfs"} <= set(writes)
            assert not [write for write in writes if lab["twin_a"] in write]
            assert [driver(address) for address in functions(card)] == ["vfio-pci", "vfio-pci"]
            entries = binder.journal().entries
            assert {entry.boot_id for entry in entries.values()} == {boot_id}
            assert entries.keys() == {card, *functions(card), *members}
            assert {entries[address].former_driver for address in members} == {"e1000"}
            binder.restart()
            assert binder.run().planned.is_empty
            assert trace.writes() == []
    finally:
        binder.release(*(lab[role] for role in TAKEN))
    assert (driver(members[0]), functions(card)) == ("e1000", [])
