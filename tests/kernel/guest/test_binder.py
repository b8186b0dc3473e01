"""The binder on a real kernel: what is bound, refused, left alone and given back, and what the kernel saw of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.builders.binder import report_of, verdict
from tests.builders.binder_process import state
from tests.builders.guest_binder import (
    NPUFLEET,
    PCI,
    GuestBinder,
    HookedWriter,
    KernelTrace,
    driver,
    functions,
    move,
    override,
    traced,
    whole,
)
from tests.builders.waiting import eventually
from tests.contract.holder import Holder
from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.guest_side import ask_host
from tests.kernel.lab.roles import ROLES, VF_TOTAL

pytestmark = pytest.mark.guest_deadline(180)

TAKEN = ("pf", "other_pf", "twin_a", "twin_b", "shared_a", "shared_b")


@pytest.fixture
def binder(lab: Lab) -> Iterator[GuestBinder]:
    """What a test has taken goes back to where it was after boot, also when the test failed half-way."""
    made = GuestBinder()
    yield made
    close_holders()
    made.release(*(lab[role] for role in TAKEN))
    assert {role: driver(lab[role]) for role in TAKEN} == {role: ROLES[role].driver for role in TAKEN}
    assert {role: override(lab[role]) for role in TAKEN} == dict.fromkeys(TAKEN, "(null)")


@pytest.fixture(scope="module")
def trace() -> Iterator[KernelTrace]:
    with traced() as found:
        yield found


HELD: list[Holder] = []


def hold(address: str) -> Holder:
    """A process that uses the device through VFIO."""
    HELD.append(Holder(address, device=True))
    return HELD[-1]


def close_holders() -> None:
    while HELD:
        HELD.pop().close()


def texts(trace: KernelTrace) -> list[str]:
    return [str(write) for write in trace.writes()]


def test_the_trace_sees_a_write_to_any_attribute_of_a_device_and_below(lab: Lab, trace: KernelTrace) -> None:
    device = PCI / lab["twin_a"]
    trace.writes()
    power = device / "power/control"
    power.write_text(power.read_text())
    with (device / "config").open("r+b", buffering=0) as config:
        # The interrupt line is a number that is kept for software alone.
        config.seek(0x3C)
        line = config.read(1)
        config.seek(0x3C)
        config.write(line)
    (device / "enable").write_text("1")
    (device / "enable").write_text("0")
    assert texts(trace) == [f"{device.name}/{name}" for name in ("power/control", "config", "enable", "enable")]


def test_seven_functions_are_bound_and_the_program_started_beside_them_leaves_them_unwritten(
    lab: Lab, binder: GuestBinder, trace: KernelTrace, tmp_path: Path
) -> None:
    card, twin = lab["pf"], lab["twin_a"]
    wanted = whole(card, virtualFunctions=VF_TOTAL)
    trace.writes()
    done = binder.ordered(wanted)
    found = functions(card)
    assert len(found) == VF_TOTAL
    assert {driver(address) for address in found} == {"vfio-pci"}
    assert driver(card) == "igb"
    assert (PCI / card / "sriov_drivers_autoprobe").read_text() == "1\n"
    assert verdict(done, card) == ("Ready", "FunctionsBound"), report_of(done, card)
    assert {part.address: part.reason for part in report_of(done, card).virtual_functions} == dict.fromkeys(
        found, "Bound"
    )
    # The kernel, not the binder's own log, says what was written.
    bound = [text for address in found for text in (f"{address}/driver_override", "pci/drivers_probe")]
    assert texts(trace) == [
        f"{card}/sriov_drivers_autoprobe",
        f"{card}/sriov_numvfs",
        *bound,
        f"{card}/sriov_drivers_autoprobe",
    ]

    file = tmp_path / "state.json"
    file.write_text(json.dumps(state(wanted, whole(twin))))
    command = [sys.executable, "-m", "vfio_binder.main", "--once", "--desired", str(file)]

    def program() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    output = program()
    assert f"  {card}  Ready  FunctionsBound: {VF_TOTAL} virtual functions" in output
    assert f"  {twin}  Ready  Bound" in output
    assert (driver(twin), driver(lab["twin_b"])) == ("vfio-pci", None)
    writes = trace.writes()
    assert [str(write) for write in writes] == [f"{twin}/driver_override", "pci/drivers_probe"]
    assert len({write.pid for write in writes}) == 2  # each by a child of its own
    assert program().startswith("Plan: nothing to do\n")
    assert texts(trace) == []


def test_a_function_in_use_keeps_the_number_and_its_user_is_named(
    lab: Lab, binder: GuestBinder, trace: KernelTrace
) -> None:
    card = lab["pf"]
    assert verdict(binder.ordered(whole(card, virtualFunctions=2)), card)[0] == "Ready"
    used = functions(card)[1]
    holder = hold(used)
    trace.writes()
    for entry in (whole(card, virtualFunctions=3), whole(card, intent="Release")):
        done = binder.ordered(entry)
        assert verdict(done, card) == ("Blocked", "InUse")
        assert "in use by holder (pid" in report_of(done, card).message
        assert used in report_of(done, card).message
    assert texts(trace) == []
    assert len(functions(card)) == 2
    holder.close()
    assert verdict(binder.ordered(whole(card, virtualFunctions=3)), card) == ("Ready", "FunctionsBound")
    assert len(functions(card)) == 3
    assert [text for text in texts(trace) if text.endswith("numvfs")] == [f"{card}/sriov_numvfs"] * 2
    assert verdict(binder.ordered(whole(card, intent="Release")), card) == ("Released", "Released")
    assert functions(card) == []


def test_functions_that_were_there_are_adopted_and_go_back_to_the_driver_that_they_had(
    lab: Lab, binder: GuestBinder, trace: KernelTrace
) -> None:
    card = lab["other_pf"]
    (PCI / card / "sriov_numvfs").write_text("2")
    first, second = functions(card)
    eventually(lambda: driver(second) == "igbvf", what="igbvf on the functions")
    try:
        trace.writes()
        done = binder.ordered(whole(card, virtualFunctions=3))
        assert verdict(done, card) == ("Blocked", "FunctionsOfOthers")
        assert verdict(binder.ordered(whole(card)), card) == ("Blocked", "InUse")
        assert texts(trace) == []
        assert verdict(binder.ordered(whole(card, virtualFunctions=2)), card) == ("Ready", "FunctionsBound")
        assert (driver(first), driver(second)) == ("vfio-pci", "vfio-pci")
        assert verdict(binder.ordered(whole(card, virtualFunctions=2, intent="Release")), card)[0] == "Released"
        assert (driver(first), driver(second)) == ("igbvf", "igbvf")
        assert len(functions(card)) == 2
    finally:
        (PCI / card / "sriov_numvfs").write_text("0")


def test_what_was_on_vfio_before_is_left_alone_adopted_and_left_again(
    lab: Lab, binder: GuestBinder, trace: KernelTrace
) -> None:
    address = lab["twin_a"]
    lab.load("vfio-pci")
    move(address, "vfio-pci")
    try:
        trace.writes()
        assert binder.ordered().bindings.devices == ()
        assert verdict(binder.ordered(whole(address)), address) == ("Ready", "Adopted")
        assert verdict(binder.ordered(whole(address, intent="Release")), address) == ("Released", "Released")
        assert (texts(trace), driver(address)) == ([], "vfio-pci")
    finally:
        move(address, None)


def test_a_status_of_yesterday_is_not_believed_and_a_flip_of_the_policy_is_one_change(
    lab: Lab, binder: GuestBinder, trace: KernelTrace
) -> None:
    address = lab["other_pf"]
    assert verdict(binder.ordered(whole(address)), address) == ("Ready", "Bound")
    move(address, None)
    assert (driver(address), verdict(binder.status, address)) == ("igb", ("Ready", "Bound"))
    binder.restart()
    assert verdict(binder.run(), address) == ("Ready", "Bound")
    assert driver(address) == "vfio-pci"
    assert verdict(binder.ordered(whole(address, mode="Container")), address) == ("Ready", "NativeDriver")
    assert driver(address) == "igb"
    trace.writes()
    assert binder.run().planned.is_empty
    assert texts(trace) == []


def test_a_companion_is_refused_or_taken_along_and_each_goes_back_to_its_own_driver(
    lab: Lab, binder: GuestBinder, trace: KernelTrace
) -> None:
    one, other = lab["shared_a"], lab["shared_b"]
    trace.writes()
    done = binder.ordered(whole(one))
    assert verdict(done, one) == ("Blocked", "CompanionsRefused")
    assert other in report_of(done, one).message
    assert texts(trace) == []
    done = binder.ordered(whole(one, companions="Bind"))
    assert verdict(done, one) == ("Ready", "Bound")
    assert verdict(done, other) == ("Ready", "Companion")
    assert (driver(one), driver(other)) == ("vfio-pci", "vfio-pci")
    Holder(one, device=True).close()  # the kernel would give the group to a VM
    assert verdict(binder.ordered(whole(one, intent="Release")), one) == ("Released", "Released")
    assert (driver(one), driver(other)) == ("e1000", "e1000")


@pytest.mark.parametrize(
    ("role", "reason", "words"),
    [
        ("route_nic", "Vetoed", "default route"),
        ("beside_route", "CompanionVetoed", "default route"),
        ("disk", "Vetoed", "is mounted on /mnt/kernel-lab-disk"),
        ("display", "Vetoed", "boot display"),
    ],
)
def test_what_the_host_needs_is_never_written_to(
    lab: Lab, binder: GuestBinder, trace: KernelTrace, role: str, reason: str, words: str
) -> None:
    before = driver(lab[role])
    trace.writes()
    done = binder.ordered(whole(lab[role], companions="Bind"))
    assert verdict(done, lab[role]) == ("Blocked", reason), report_of(done, lab[role])
    assert words in report_of(done, lab[role]).message
    assert texts(trace) == []
    assert driver(lab[role]) == before


def test_a_device_that_a_vm_has_open_stays_and_the_others_go(lab: Lab, binder: GuestBinder, trace: KernelTrace) -> None:
    one, other = lab["twin_a"], lab["twin_b"]
    binder.ordered(whole(one), whole(other))
    holder = hold(one)
    trace.writes()
    done = binder.ordered(whole(one, intent="Release"), whole(other, intent="Release"))
    assert verdict(done, one) == ("Blocked", "InUse")
    assert "in use by holder (pid" in report_of(done, one).message
    assert verdict(done, other) == ("Released", "Released")
    assert not [text for text in texts(trace) if one in text]
    assert (driver(one), driver(other)) == ("vfio-pci", None)
    holder.close()
    assert verdict(binder.run(), one) == ("Released", "Released")
    assert driver(one) is None


def test_an_unbind_that_blocks_is_one_condition_and_the_others_go_on(lab: Lab, binder: GuestBinder) -> None:
    one, other = lab["shared_a"], lab["twin_a"]
    binder.ordered(whole(one, companions="Bind"), whole(other))
    # A VM opens the device after the last look, right before the unbind.
    binder.restart(HookedWriter(binder.host, "vfio-pci/unbind", lambda: hold(one), deadline_seconds=10))
    release = whole(one, intent="Release"), whole(other, intent="Release")
    done = binder.ordered(*release)
    assert verdict(done, one) == ("Failed", "WriteStuck"), report_of(done, one)
    assert verdict(done, other) == ("Released", "Released")
    assert driver(other) is None
    binder.restart()
    assert verdict(binder.run(), one)[0] == "Blocked"
    close_holders()
    eventually(lambda: driver(one) != "vfio-pci", what="the unbind coming back")

    def is_released() -> bool:
        binder.clock.advance(400)
        return verdict(binder.run(), one)[0] == "Released"

    eventually(is_released, what="the rest of the release")
    assert (driver(one), driver(lab["shared_b"])) == ("e1000", "e1000")


def test_a_bind_that_the_kernel_refuses_is_seen_and_taken_back(lab: Lab, binder: GuestBinder) -> None:
    address = lab["pf"]
    other = lab["twin_b"]

    def somebody_unpins_it() -> None:
        (PCI / address / "driver_override").write_text("\n")

    binder.restart(HookedWriter(binder.host, "/unbind", somebody_unpins_it))
    done = binder.ordered(whole(address), whole(other))
    assert verdict(done, address) == ("Failed", "BindFailed"), report_of(done, address)
    assert "rolled back to igb" in report_of(done, address).message
    assert verdict(done, other) == ("Ready", "Bound")
    assert driver(address) == "igb"
    binder.clock.advance(10)
    assert verdict(binder.run(), address) == ("Ready", "Bound")


def test_without_room_or_right_to_keep_the_journal_nothing_is_changed(
    lab: Lab, binder: GuestBinder, trace: KernelTrace
) -> None:
    address = lab["twin_a"]
    NPUFLEET.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(NPUFLEET)], check=True, timeout=30)
    try:
        full = NPUFLEET / "full"
        with suppress(OSError):
            full.write_bytes(bytes(1 << 20))
        trace.writes()
        done = binder.ordered(whole(address))
        assert verdict(done, address) == ("Blocked", "JournalUnreadable")
        assert "No space left on device" in report_of(done, address).message
        full.unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(NPUFLEET)], check=True, timeout=30)
        binder.restart()
        done = binder.run()
        assert verdict(done, address) == ("Blocked", "JournalUnreadable")
        assert "Read-only file system" in report_of(done, address).message
        assert (texts(trace), driver(address)) == ([], None)
        subprocess.run(["mount", "-o", "remount,rw", str(NPUFLEET)], check=True, timeout=30)
        binder.restart()
        assert verdict(binder.run(), address) == ("Ready", "Bound")
        assert verdict(binder.ordered(whole(address, intent="Release")), address) == ("Released", "Released")
    finally:
        subprocess.run(["umount", str(NPUFLEET)], check=True, timeout=30)


def test_killed_in_the_midst_of_a_group_the_next_process_finishes(lab: Lab, binder: GuestBinder) -> None:
    """There and back: after the first device's unbind, after its probe, after the second's unbind."""
    members = (lab["shared_a"], lab["shared_b"])
    there, back = whole(members[0], companions="Bind"), whole(members[0], intent="Release")
    for writes in (2, 3, 5):
        for entry, end in ((there, "vfio-pci"), (back, "e1000")):
            binder.order(entry)
            assert binder.killed_after(writes)
            entries = binder.journal().entries
            for address in members:
                assert driver(address) == "e1000" or entries[address].former_driver == "e1000"
            binder.restart()
            assert verdict(binder.run(), members[0])[0] in ("Ready", "Released"), writes
            assert [driver(address) for address in members] == [end, end]
    assert binder.journal().entries == {}


def test_killed_when_the_functions_were_just_made_the_next_process_finishes(lab: Lab, binder: GuestBinder) -> None:
    card = lab["other_pf"]
    for writes in (2, 3):
        binder.order(whole(card, virtualFunctions=1))
        assert binder.killed_after(writes)
        assert driver(card) == "igb"
        binder.restart()
        assert verdict(binder.run(), card) == ("Ready", "FunctionsBound"), writes
        assert [driver(address) for address in functions(card)] == ["vfio-pci"]
        assert (PCI / card / "sriov_drivers_autoprobe").read_text() == "1\n"
        binder.order(whole(card, intent="Release"))
        assert binder.killed_after(1)
        assert functions(card) == []
        binder.restart()
        assert verdict(binder.run(), card) == ("Released", "Released")
    assert binder.journal().entries == {}


def test_a_card_that_is_plugged_in_and_pulled_out_while_it_is_ordered(lab: Lab, binder: GuestBinder) -> None:
    plug = {"driver": "edu", "bus": "empty_port", "id": "plugged"}
    ask_host("device_add", plug)
    eventually(lambda: lab.ready() is not None, what="the card in its port")
    address = lab.plugged()
    assert address is not None
    entry = whole(address, companions="Bind")
    try:
        assert verdict(binder.ordered(entry, whole(lab["twin_a"])), address) == ("Ready", "Bound")
        ask_host("device_del", {"id": "plugged"})
        eventually(lambda: lab.plugged() is None, what="the card taken out")
        done = binder.run()
        assert verdict(done, address) == ("Failed", "DeviceMissing")
        assert verdict(done, lab["twin_a"]) == ("Ready", "Bound")
        ask_host("device_add", plug)
        eventually(lambda: lab.ready() is not None, what="the card back in its port")
        assert verdict(binder.run(), address) == ("Ready", "Bound")
        assert driver(address) == "vfio-pci"
        binder.ordered({**entry, "intent": "Release"}, whole(lab["twin_a"]))
        assert driver(address) is None
    finally:
        ask_host("device_del", {"id": "plugged"})
        eventually(lambda: lab.plugged() is None, what="the card taken out")
