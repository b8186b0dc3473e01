"""The profile writer on the real kernel: what it reports is what sysfs holds, and what somebody has is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.guest_binder import traced
from tests.builders.guest_writer import TOOLS, GuestWriter, HookedTypes, forget_all, tell_tools, tool_calls
from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.roles import VF_TOTAL
from tests.kernel.modules.kernel_log import no_complaints
from tests.kernel.modules.loaded import load, loaded, mount_debugfs, unload_when_free, without
from tests.kernel.modules.sim_vgpu_card import IDS, Card, Function
from tests.kernel.modules.vfio_user import Until, VfioUser, vfio_process

pytestmark = [pytest.mark.guest("kernel"), pytest.mark.guest_deadline(180)]


@pytest.fixture(scope="module")
def driver(lab: Lab) -> Iterator[None]:
    mount_debugfs()
    load("vfio_iommu_type1")
    # Both match the functions by their id; the one that was there first would get them.
    with without("igbvf"), loaded("sim_vgpu"):
        try:
            yield
        finally:
            Card(lab["pf"]).enable(0)


@pytest.fixture
def bare(driver: None, lab: Lab) -> Iterator[Card]:
    """A card without functions, on a host where npufleet has never been."""
    card = Card(lab["pf"])
    card.enable(0)
    forget_all()
    with no_complaints():
        yield card
    forget_all()


@pytest.fixture
def card(driver: None, lab: Lab) -> Iterator[Card]:
    """All functions there, none with a type: making them takes the kernel seconds."""
    card = Card(lab["pf"])
    if card.enabled != VF_TOTAL:
        card.enable(0)
        card.enable(VF_TOTAL)
    for function in card.functions():
        function.set(0)
    card.allow_mixed_sizes(False)
    forget_all()
    with no_complaints():
        yield card
    forget_all()


def carried(card: Card) -> list[int]:
    """Frame buffers in GiB, function by function, as sysfs says; 0 for none."""
    gib = {number: size for size, number in IDS.items()} | {0: 0}
    return [gib[function.current] for function in card.functions()]


def test_from_nothing_to_two_vgpus_and_the_second_pass_writes_nothing(bare: Card) -> None:
    writer = GuestWriter()
    report = writer.ordered(bare.bdf, ("24Q", 2))
    assert (report.state, report.reason) == ("Ready", "Typed")
    assert carried(bare) == [24, 24, 0, 0, 0, 0, 0]
    assert [(vgpu.address, vgpu.profile) for vgpu in report.vgpus] == [
        (function.bdf, "L40S-24Q") for function in bare.functions()[:2]
    ]
    assert tool_calls() == [f"sriov-manage -e {bare.bdf}"]
    for starts_anew in (False, True):
        if starts_anew:
            writer.restart()
        with traced() as trace:
            assert writer.report().state == "Ready"
            assert trace.writes() == []
    assert tool_calls() == [f"sriov-manage -e {bare.bdf}"]


@pytest.mark.guest_deadline(400)
def test_the_command_makes_the_same_by_itself(bare: Card, tmp_path: Path) -> None:
    """As whoever is on the node runs it: its own catalogue, which knows nothing of this card, and its own children."""
    writer = GuestWriter()
    writer.order(bare.bdf, ("24Q", 2))
    assert writer.orders.spec is not None
    file = tmp_path / "orders.yaml"
    metadata = {"name": "lab", "generation": 1}
    spec = writer.orders.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    head = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodeState", "metadata": metadata}
    file.write_text(json.dumps({**head, "spec": spec}))
    tools = ["--sriov-manage", str(TOOLS / "sriov-manage"), "--nvidia-smi", str(TOOLS / "nvidia-smi")]
    command = [sys.executable, "-m", "profile_writer.main", "--once", "--desired", str(file), *tools]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert carried(bare) == [24, 24, 0, 0, 0, 0, 0]
    with traced() as trace:
        again = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert again.returncode == 0, again.stdout + again.stderr
        assert trace.writes() == []
    assert tool_calls() == [f"sriov-manage -e {bare.bdf}"]


def test_without_the_vendors_tool_functions_are_made_by_the_kernel(bare: Card) -> None:
    report = GuestWriter(tools=False).ordered(bare.bdf, ("12Q", 4))
    assert (report.state, carried(bare)) == ("Ready", [12, 12, 12, 12, 0, 0, 0])


def test_a_tool_that_reports_success_and_did_nothing_is_not_believed(bare: Card) -> None:
    tell_tools(fails=1)
    report = GuestWriter().ordered(bare.bdf, ("24Q", 2))
    assert (report.state, report.reason, bare.enabled) == ("Failed", "FunctionsFailed", 0)
    assert "Enabling VFs" in report.message


def test_a_lock_of_the_driver_that_passes_is_waited_for(bare: Card) -> None:
    tell_tools(locked=3)
    report = GuestWriter().ordered(bare.bdf, ("24Q", 2))
    assert (report.state, bare.enabled) == ("Ready", VF_TOTAL)
    assert tool_calls() == [f"sriov-manage -e {bare.bdf}"] * 4


def test_mixed_sizes_lie_beside_each_other_once_the_card_allows_them(card: Card) -> None:
    writer = GuestWriter()
    report = writer.ordered(card.bdf, ("12Q", 2), ("24Q", 1))
    assert (report.state, report.reason, carried(card)) == ("Blocked", "MixedSizesForbidden", [0] * VF_TOTAL)
    report = writer.ordered(card.bdf, ("12Q", 2), ("24Q", 1), mixedSizes="Allow")
    assert report.state == "Ready"
    assert Counter(carried(card)) == {24: 1, 12: 2, 0: VF_TOTAL - 3}
    assert (card.mixed_sizes, card.used_gib) == (True, 48)


def test_a_wrong_type_is_repaired_and_what_is_right_stays_where_it_is(card: Card) -> None:
    functions = card.functions()
    functions[3].set(IDS[24])
    functions[5].set(IDS[24])
    report = GuestWriter().ordered(card.bdf, ("12Q", 4))
    assert (report.state, Counter(carried(card))) == ("Ready", {12: 4, 0: VF_TOTAL - 4})
    report = GuestWriter().ordered(card.bdf, ("12Q", 3))
    assert Counter(carried(card)) == {12: 4, 0: VF_TOTAL - 4}, "what is beyond the layout may stay"
    report = GuestWriter().ordered(card.bdf, ("12Q", 3), unassigned="Clear")
    assert (report.state, Counter(carried(card))) == ("Ready", {12: 3, 0: VF_TOTAL - 3})


def test_types_that_somebody_else_set_are_adopted(card: Card) -> None:
    for number in (2, 6):
        card.functions()[number].set(IDS[24])
    with traced() as trace:
        report = GuestWriter().ordered(card.bdf, ("24Q", 2))
        assert trace.writes() == []
    assert (report.state, report.reason, carried(card)) == ("Ready", "Adopted", [0, 0, 24, 0, 0, 0, 24])


@pytest.mark.parametrize("until", [Until.GROUP, Until.DEVICE])
def test_a_function_whose_group_is_open_keeps_its_type_while_others_get_theirs(card: Card, until: Until) -> None:
    card.allow_mixed_sizes(True)
    held = card.functions()[1]
    held.set(IDS[24])
    writer = GuestWriter()
    with vfio_process(held.bdf, until):
        report = writer.ordered(card.bdf, ("12Q", 2), unassigned="Clear")
        assert carried(card) == [12, 24, 12, 0, 0, 0, 0]
        by_address = {vgpu.address: (vgpu.state, vgpu.reason) for vgpu in report.vgpus}
        assert by_address.pop(held.bdf) == ("Blocked", "InUse")
        assert set(by_address.values()) == {("Ready", "Typed")}
    report = writer.report()
    assert (report.state, carried(card)) == ("Ready", [12, 0, 12, 0, 0, 0, 0])


def test_who_takes_the_room_first_costs_one_function_its_type_for_a_while(card: Card) -> None:
    """EIO: the type was in the list when it was looked at."""
    first, *_, last = card.functions()
    writer = GuestWriter()
    writer.restart(HookedTypes(writer.host, lambda _: last.set(IDS[12])))
    report = writer.ordered(card.bdf, ("6Q", VF_TOTAL))
    by_address = {vgpu.address: (vgpu.state, vgpu.reason) for vgpu in report.vgpus}
    assert by_address.pop(first.bdf) == ("Failed", "TypeFailed")
    assert set(by_address.values()) == {("Ready", "Typed")}
    assert carried(card) == [0] + [6] * (VF_TOTAL - 1)
    assert "Input/output error" in next(vgpu.message for vgpu in report.vgpus if vgpu.address == first.bdf)
    writer.clock.advance(600)
    assert (writer.report().state, carried(card)) == ("Ready", [6] * VF_TOTAL)


def test_who_opens_a_function_first_costs_only_that_one_its_type(card: Card) -> None:
    """EBUSY: a virtual machine has started between the look and the write."""
    users: list[VfioUser] = []
    first = card.functions()[0]
    writer = GuestWriter()
    writer.restart(HookedTypes(writer.host, lambda path: users.append(VfioUser(first.bdf))))
    try:
        report = writer.ordered(card.bdf, ("6Q", VF_TOTAL))
        assert len(users) == 1
        by_address = {vgpu.address: (vgpu.state, vgpu.reason) for vgpu in report.vgpus}
        assert by_address.pop(first.bdf) == ("Failed", "TypeFailed")
        assert "Device or resource busy" in next(vgpu.message for vgpu in report.vgpus if vgpu.address == first.bdf)
        assert set(by_address.values()) == {("Ready", "Typed")}
        assert carried(card) == [0] + [6] * (VF_TOTAL - 1)
    finally:
        for user in users:
            user.close()
    writer.clock.advance(600)
    assert (writer.report().state, carried(card)) == ("Ready", [6] * VF_TOTAL)


def test_a_reload_of_the_driver_costs_all_types_and_the_same_functions_get_them_back(card: Card) -> None:
    writer = GuestWriter()
    with vfio_process(card.functions()[0].bdf, Until.GROUP):
        assert writer.ordered(card.bdf, ("24Q", 2)).state == "Ready"
    before = carried(card)
    assert before == [0, 24, 24, 0, 0, 0, 0]
    unload_when_free("sim_vgpu")
    assert writer.report().reason == "FrameworkMissing"
    load("sim_vgpu")
    assert carried(card) == [0] * VF_TOTAL
    assert (writer.report().state, carried(card)) == ("Ready", before)


def test_a_card_that_is_given_back_is_as_it_was(bare: Card) -> None:
    writer = GuestWriter()
    assert writer.ordered(bare.bdf, ("24Q", 2)).state == "Ready"
    assert writer.ordered(bare.bdf, ("24Q", 2), intent="Release").state == "Released"
    assert bare.enabled == 0


def test_an_unknown_profile_costs_nobody_the_type_that_is_there(card: Card) -> None:
    card.functions()[0].set(IDS[24])
    with traced() as trace:
        report = GuestWriter().ordered(card.bdf, ("7Q", 2), unassigned="Clear")
        assert trace.writes() == []
    assert (report.state, report.reason) == ("Blocked", "ProfileUnknown")
    assert Function(card.functions()[0].bdf).current == IDS[24]
