"""The profile writer over a reboot of a real machine: a reboot forgets all types, and one pass brings them back.

Bus numbers move with the card that is put in meanwhile, so the second boot finds at the address of the first one the
twin of the card that was there: for the writer, which knows cards by address and ids, it is the same card.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.builders.guest_binder import NPUFLEET, traced
from tests.builders.guest_writer import GuestWriter, forget_all, tool_calls
from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.guest_side import STATE
from tests.kernel.lab.roles import VF_TOTAL
from tests.kernel.modules.loaded import load, loaded, mount_debugfs, without
from tests.kernel.modules.sim_vgpu_card import IDS, Card
from tests.kernel.modules.vfio_user import Until, vfio_process

pytestmark = [pytest.mark.guest("kernel"), pytest.mark.guest_deadline(180)]

KEPT = STATE / "npufleet-of-the-writer"
REMEMBERED = STATE / "types-before-the-reboot.json"
LAYOUT = (("12Q", 2), ("24Q", 1))


@pytest.fixture(scope="module")
def driver() -> Iterator[None]:
    mount_debugfs()
    load("vfio_iommu_type1")
    with without("igbvf"), loaded("sim_vgpu"):
        yield


def types(card: Card) -> dict[str, int]:
    return {function.bdf: function.current for function in card.functions()}


def test_types_are_set_when_the_power_goes(driver: None, lab: Lab) -> None:
    card = Card(lab["other_pf"])
    card.enable(0)
    card.enable(VF_TOTAL)
    forget_all()
    shutil.rmtree(KEPT, ignore_errors=True)
    try:
        writer = GuestWriter()
        # Not those that would be taken if nothing were known.
        with vfio_process(card.functions()[0].bdf, Until.GROUP):
            report = writer.ordered(card.bdf, *LAYOUT, mixedSizes="Allow", unassigned="Clear")
        assert report.state == "Ready"
        REMEMBERED.write_text(json.dumps({"card": card.bdf, "types": types(card)}))
        shutil.copytree(NPUFLEET, KEPT)
    finally:
        card.enable(0)
        forget_all()


@pytest.mark.after_reboot
def test_after_the_reboot_one_pass_gives_the_same_functions_the_same_types(driver: None) -> None:
    remembered = json.loads(REMEMBERED.read_text())
    card = Card(remembered["card"])
    before = remembered["types"]
    assert sorted(before.values()) == [0] * (VF_TOTAL - 3) + [IDS[12], IDS[12], IDS[24]]
    assert before[min(before)] == 0
    assert card.enabled == 0
    writer = GuestWriter(KEPT)
    try:
        report = writer.ordered(card.bdf, *LAYOUT, mixedSizes="Allow", unassigned="Clear")
        assert (report.state, types(card)) == ("Ready", before)
        calls = tool_calls()
        assert calls == [f"sriov-manage -e {card.bdf}", f"nvidia-smi vgpu -i {card.bdf} -shm 1"]
        writer.restart()
        with traced() as trace:
            assert writer.report().state == "Ready"
            assert trace.writes() == []
        assert tool_calls() == calls
    finally:
        card.enable(0)
        forget_all()
