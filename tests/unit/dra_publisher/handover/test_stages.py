"""What is done with a device in each situation: judged from what is there, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crds.device_names import NamedKind
from crds.models.node_state import DesiredDevice, DeviceReport
from dra_publisher.handover.situation import Offered, Situation
from dra_publisher.handover.stages import Stage, Verdict, judge
from dra_publisher.offers.offer import TaintKey
from node_host.evidence.publication import Published
from node_host.handover.entry import entry_digest, shape_digest
from node_host.handover.tokens import Token, Tokens
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from node_host.view import HostView
from tests.builders.binder import NPU, TWIN, order, spec

BOOT, BEFORE = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e", "11111111-0f57-4b1e-9d5e-7a0c4f1b2d3e"
DRIVER = "npufleet.io"
AS_NPU, AS_VFIO = Offered(NamedKind.NPU, DRIVER), Offered(NamedKind.VFIO, DRIVER)


def entry(**given: Any) -> DesiredDevice:
    return spec(order(**given)).devices[0]


VM, CONTAINER = entry(), entry(mode="Container")


def said(state: str, reason: str = "Bound", address: str = NPU) -> dict[str, DeviceReport]:
    return {address: DeviceReport.model_validate({"address": address, "state": state, "reason": reason})}


READY = said("Ready")


def device(driver: str | None, address: str = NPU, **more: Any) -> PCIDevice:
    return PCIDevice(address, "1eff", "1250", "120000", driver=driver, **more)


def situation(
    *entries: DesiredDevice,
    driver: str | None = "vfio-pci",
    offered: Offered | None = None,
    listed: bool | None = None,
    token: tuple[str, DesiredDevice, str] | None = None,
    **more: Any,
) -> Situation:
    """One device, on this driver; by default the note lists it if it is offered."""
    tokens = Tokens()
    if token is not None:
        where, of, boot_id = token
        lies = {NPU: Token(NPU, boot_id, entry_digest(of))}
        tokens = Tokens(taken=lies) if where == "taken" else Tokens(offered=lies)
    is_listed = offered is not None if listed is None else listed
    view = HostView(
        BOOT,
        devices={NPU: device(driver)} if driver != "gone" else {},
        published=Published(frozenset({NPU}) if is_listed else frozenset()),
        tokens=tokens,
    )
    return Situation({one.address: one for one in entries}, view, {NPU: offered} if offered else {}, **more)


def verdict(there: Situation, address: str = NPU) -> Verdict:
    return judge(there, [address])[address]


SCENES: dict[str, tuple[Situation, Stage, TaintKey | None]] = {
    "bound, and nobody has said so for these orders": (situation(VM), Stage.ABSENT, None),
    "bound and ready: published": (situation(VM, said=READY), Stage.PUBLISHING, None),
    "published and ready: left": (situation(VM, said=READY, offered=AS_VFIO), Stage.KEPT, None),
    "published, the answer to new orders is not there yet: left": (situation(VM, offered=AS_VFIO), Stage.KEPT, None),
    "published and no longer ready": (
        situation(VM, said=said("Failed", "VerifyFailed"), offered=AS_VFIO),
        Stage.WITHHELD,
        TaintKey.NOT_READY,
    ),
    "ready again": (
        situation(VM, said=READY, offered=replace(AS_VFIO, withheld=True)),
        Stage.PUBLISHING,
        None,
    ),
    "ordered otherwise than it is published": (
        situation(VM, driver="rebellions", offered=AS_NPU),
        Stage.HANDING_OVER,
        TaintKey.HANDOVER,
    ),
    "ordered otherwise, and the binder waits for its user": (
        situation(VM, driver="rebellions", offered=AS_NPU, said=said("Blocked", "InUse")),
        Stage.HANDING_OVER,
        TaintKey.HANDOVER,
    ),
    "ordered otherwise, and it cannot be made so: nobody is moved away for it": (
        situation(VM, driver="rebellions", offered=AS_NPU, said=said("Blocked", "Vetoed")),
        Stage.WITHHELD,
        TaintKey.NOT_READY,
    ),
    "somebody else took its driver away": (
        situation(VM, driver="rebellions", offered=AS_VFIO, said=said("Blocked", "Published")),
        Stage.HANDING_OVER,
        TaintKey.DRIVER_CHANGED,
    ),
    "ordered otherwise and never published: nothing to hand over": (
        situation(VM, driver="rebellions"),
        Stage.ABSENT,
        None,
    ),
    "changed for its orders, the token is there": (
        situation(VM, said=READY, offered=replace(AS_NPU, withheld=True), token=("taken", VM, BOOT)),
        Stage.PUBLISHING,
        None,
    ),
    "changed by somebody without a token: who had it before is asked first": (
        situation(VM, said=READY, offered=AS_NPU),
        Stage.RENAMING,
        TaintKey.HANDOVER,
    ),
    "a token of another boot is none": (
        situation(VM, said=READY, offered=replace(AS_NPU, withheld=True), token=("taken", VM, BEFORE)),
        Stage.RENAMING,
        TaintKey.HANDOVER,
    ),
    "to be published under another driver name": (
        situation(VM, said=READY, offered=Offered(NamedKind.VFIO, "npu.rebellions.ai")),
        Stage.RENAMING,
        TaintKey.HANDOVER,
    ),
    "orders taken back while an offer lies there": (
        situation(
            CONTAINER,
            driver="rebellions",
            said=READY,
            offered=replace(AS_NPU, withheld=True),
            token=("offered", VM, BOOT),
        ),
        Stage.PUBLISHING,
        None,
    ),
    "held: stays as it is published, though it is ordered otherwise": (
        situation(entry(intent="Hold"), driver="rebellions", offered=AS_NPU),
        Stage.KEPT,
        None,
    ),
    "held while it was withheld: published again": (
        situation(entry(intent="Hold"), driver="rebellions", offered=replace(AS_NPU, withheld=True)),
        Stage.PUBLISHING,
        None,
    ),
    "held, and already changed": (
        situation(entry(intent="Hold"), offered=replace(AS_NPU, withheld=True)),
        Stage.WITHHELD,
        TaintKey.HANDOVER,
    ),
    "held and as ordered, not published yet": (situation(entry(intent="Hold"), said=READY), Stage.PUBLISHING, None),
    "held under another driver name": (
        situation(entry(intent="Hold"), said=READY, offered=Offered(NamedKind.VFIO, "npu.rebellions.ai")),
        Stage.KEPT,
        None,
    ),
    "given back": (situation(entry(intent="Release"), offered=AS_VFIO), Stage.HANDING_OVER, TaintKey.HANDOVER),
    "given back, and done": (
        situation(entry(intent="Release"), offered=AS_VFIO, said=said("Released", "Released")),
        Stage.LEAVING,
        None,
    ),
    "given back, never published": (
        situation(entry(intent="Release"), said=said("Released", "Released")),
        Stage.ABSENT,
        None,
    ),
    "left alone by a new policy": (
        situation(entry(mode="Unmanaged"), driver="rebellions", offered=AS_NPU, said=said("Ready", "LeftAlone")),
        Stage.LEAVING,
        None,
    ),
    "no order speaks of it: absence is none": (situation(offered=AS_VFIO), Stage.KEPT, None),
    "no order has spoken of it for long": (situation(offered=AS_VFIO, unordered={NPU}), Stage.LEAVING, None),
    "it is gone": (situation(VM, driver="gone", offered=AS_VFIO), Stage.LEAVING, None),
    "after a reboot, not bound again yet: out of the slices, and nothing to hand over": (
        situation(VM, driver="rebellions", offered=AS_VFIO, listed=False, remembered={NPU: shape_digest(VM)}),
        Stage.ABSENT,
        None,
    ),
    "after a reboot, bound again": (
        situation(VM, said=READY, remembered={NPU: shape_digest(VM)}),
        Stage.PUBLISHING,
        None,
    ),
    "after a reboot with other orders: who had it before is asked": (
        situation(VM, driver="rebellions", remembered={NPU: shape_digest(CONTAINER)}),
        Stage.HANDING_OVER,
        None,
    ),
    "after a reboot, already as other orders say": (
        situation(VM, said=READY, remembered={NPU: shape_digest(CONTAINER)}),
        Stage.RENAMING,
        TaintKey.HANDOVER,
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_device_is_judged_by_what_is_there(name: str) -> None:
    there, stage, taint = SCENES[name]
    found = verdict(there)
    assert (found.stage, found.taint) == (stage, taint)


def test_a_device_is_handed_over_for_its_present_order_alone() -> None:
    withheld = replace(AS_NPU, withheld=True)
    for token, is_there in (
        (("offered", VM, BOOT), True),
        (("taken", VM, BOOT), True),
        (("taken", VM, BEFORE), False),
        (("taken", CONTAINER, BOOT), False),
        (None, False),
    ):
        found = verdict(situation(VM, driver="rebellions", offered=withheld, token=token))
        assert found.stage is Stage.HANDING_OVER
        assert found.token == entry_digest(VM)
        assert found.has_token is is_there, token


def test_a_token_taken_for_former_orders_is_renewed_although_an_offer_for_the_present_ones_lies_beside_it() -> None:
    there = situation(VM, driver="rebellions", offered=replace(AS_NPU, withheld=True))
    tokens = Tokens(
        offered={NPU: Token(NPU, BOOT, entry_digest(VM))}, taken={NPU: Token(NPU, BOOT, entry_digest(CONTAINER))}
    )
    assert not verdict(replace(there, view=replace(there.view, tokens=tokens))).has_token


def group(first: DesiredDevice, second: DesiredDevice, **more: Any) -> Situation:
    """Both of one IOMMU group, on VFIO and published so."""
    view = HostView(
        BOOT,
        devices={one: device("vfio-pci", one, iommu_group=20) for one in (NPU, TWIN)},
        groups=IOMMUGroups(members={20: (NPU, TWIN)}),
        published=Published(frozenset({NPU, TWIN})),
    )
    return Situation({NPU: first, TWIN: second}, view, {NPU: AS_VFIO, TWIN: AS_VFIO}, **more)


def test_a_device_is_withheld_along_with_one_of_its_group_that_changes() -> None:
    there = group(entry(mode="Container"), entry(address=TWIN))
    assert verdict(there, NPU).stage is Stage.HANDING_OVER
    mate = verdict(there, TWIN)
    assert (mate.stage, mate.taint, mate.token) == (
        Stage.HANDING_OVER,
        TaintKey.HANDOVER,
        entry_digest(entry(address=TWIN)),
    )


def test_a_group_where_all_is_done_is_left() -> None:
    there = group(VM, entry(address=TWIN), said={**READY, **said("Ready", address=TWIN)})
    assert {verdict(there, one).stage for one in (NPU, TWIN)} == {Stage.KEPT}


def card(number: int, functions: int, driver: str = "vfio-pci", **more: Any) -> Situation:
    """A card that is to have a number of functions, and has another, all of them published."""
    ordered = entry(virtualFunctions=number)
    names = tuple(f"0000:23:10.{one}" for one in range(functions))
    view = HostView(
        BOOT,
        devices={
            NPU: device("rebellions", total_vfs=4, num_vfs=functions, virtual_functions=names),
            **{one: device(driver, one, physical_function=NPU) for one in names},
        },
        published=Published(frozenset(names)),
    )
    return Situation({NPU: ordered}, view, dict.fromkeys(names, AS_VFIO), **more)


def test_functions_are_published_in_the_place_of_their_card() -> None:
    there = card(2, 2, said=READY)
    assert {one: verdict(there, one).stage for one in sorted(there.known())} == {
        NPU: Stage.ABSENT,
        "0000:23:10.0": Stage.KEPT,
        "0000:23:10.1": Stage.KEPT,
    }


def test_functions_are_handed_over_for_their_card_when_its_number_changes() -> None:
    there = card(3, 2, said=said("Blocked", "Published"))
    for function in ("0000:23:10.0", "0000:23:10.1"):
        found = verdict(there, function)
        assert found.stage is Stage.HANDING_OVER
        assert found.token == entry_digest(there.entries[NPU])


def test_a_companion_follows_the_order_that_needs_it() -> None:
    """Published once by an order of its own that is gone, it goes to a VM with its neighbour now."""
    view = HostView(
        BOOT,
        devices={NPU: device("rebellions", iommu_group=20), TWIN: device("rebellions", TWIN, iommu_group=20)},
        groups=IOMMUGroups(members={20: (NPU, TWIN)}),
        published=Published(frozenset({TWIN})),
    )
    there = Situation({NPU: VM}, view, {TWIN: AS_NPU})
    found = verdict(there, TWIN)
    assert (found.stage, found.token) == (Stage.HANDING_OVER, entry_digest(VM))
