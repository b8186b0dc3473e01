"""Whatever checkpoint, orders and host come together: no plan takes a device from a claim, nor makes another of it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from crds.models.node_state import DesiredDevice, NodeStateSpec
from node_host.acting.actions import Bind, GroupPlan, Return
from node_host.acting.journal import JournalEntry, JournalState
from node_host.evidence.checkpoint import Checkpoint, ClaimState
from node_host.evidence.prepared import Prepared
from node_host.evidence.publication import Published
from node_host.handover.entry import entry_digest, shape_digest
from node_host.handover.tokens import Token, Tokens
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from node_host.view import HostView
from tests.builders.binder import NODE_UID, order, spec
from tests.builders.checkpoints import EARLIER, claim
from vfio_binder.plan import plan

EXAMPLES = 2000
BOOT = "6b3f8f1e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
A, B, C = "0000:23:00.0", "0000:23:00.1", "0000:24:00.0"
GROUPS = {20: (A, B), 21: (C,)}
ORDERS = (
    {"mode": "Passthrough"},
    {"mode": "Passthrough", "companions": "Bind"},
    {"mode": "Container"},
    {"mode": "Passthrough", "intent": "Release"},
    {"mode": "Passthrough", "intent": "Hold"},
)
# Made once: reading them is what takes the time.
ENTRIES = {
    (address, number): spec(order(address, **one)).devices[0]
    for address in (A, B, C)
    for number, one in enumerate(ORDERS)
}
SHAPES = tuple(shape_digest(spec(order(**one)).devices[0]) for one in ORDERS[:3])

Scene = tuple[HostView, tuple[DesiredDevice, ...], JournalState, Checkpoint]


def scene_of(number: int) -> Scene:
    """Drawn from one number: hypothesis takes longer for each draw than the plan does for all."""
    draw = Random(number)
    places = {address: group for group, members in GROUPS.items() for address in members}

    def some() -> list[str]:
        return draw.sample((A, B, C), draw.randint(1, 2))

    drivers = {address: draw.choice(("rebellions", "rebellions", "vfio-pci")) for address in places}
    entries = tuple(ENTRIES[address, draw.randrange(len(ORDERS))] for address in some())
    claims = {
        f"uid-of-{name}": claim(
            {address: draw.choice(SHAPES) for address in some()},
            boot_id=draw.choice((BOOT, EARLIER, EARLIER)),
            name=name,
            state=draw.choice(tuple(ClaimState)),
        )
        for name in draw.sample(("one", "two"), draw.randint(0, 2))
    }
    checkpoint = Checkpoint(claims, {address: draw.choice(SHAPES) for address in some()[: draw.randint(0, 2)]})
    prepared = Prepared(checkpoint)
    handed = [entry for entry in entries if draw.random() < 0.5]
    view = HostView(
        boot_id=BOOT,
        devices={
            address: PCIDevice(address, "1eff", "1250", "120000", driver=drivers[address], iommu_group=group)
            for address, group in places.items()
        },
        groups=IOMMUGroups(GROUPS),
        users={address: prepared.users(address, BOOT) for address in places},
        vfio_nodes=frozenset({"/dev/vfio/20", "/dev/vfio/21"}),
        published=Published(frozenset(draw.sample((A, B, C), draw.randint(0, 1)))),
        tokens=Tokens(offered={one.address: Token(one.address, BOOT, entry_digest(one)) for one in handed}),
        prepared=prepared,
    )
    journal = {
        address: JournalEntry("rebellions", "vfio-pci", BOOT, "1eff:1250")
        for address, driver in drivers.items()
        if driver == "vfio-pci" and draw.random() < 0.5
    }
    return view, entries, JournalState(journal), checkpoint


def _becomes(entries: Mapping[str, DesiredDevice], group: GroupPlan, address: str) -> set[str]:
    """Shapes that the orders make of a device that the plan moves; none when it is given back."""
    for action in group.actions:
        if action.address == address and isinstance(action, Return):
            own = entries.get(address)
            return {shape_digest(own)} if own is not None and own.intent == "Apply" else set()
    own = entries.get(address)
    if own is not None:
        return {shape_digest(own)} if own.intent == "Apply" else set()
    return {shape_digest(entry) for entry in entries.values() if entry.address in group.members}


def test_no_plan_takes_a_device_from_a_claim_or_makes_something_else_of_it() -> None:
    ran, moved, again, held = 0, 0, 0, 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(st.integers(0, 2**48))
    def check(number: int) -> None:
        nonlocal ran, moved, again, held
        ran += 1
        view, listed, journal, checkpoint = scene_of(number)
        orders = NodeStateSpec(revision="", node_uid=NODE_UID, devices=listed)
        made = plan(orders, view, journal)
        entries = {one.address: one for one in listed}
        held += bool(checkpoint.claims) and made.is_empty
        for group in made.groups:
            for action in group.actions:
                assert isinstance(action, Bind | Return)
                moved += 1
                shapes = _becomes(entries, group, action.address)
                for known in checkpoint.claims_of(action.address):
                    assert known.boot_id == EARLIER, "in use by a claim of this boot"
                    assert {one.shape for one in known.devices if one.address == action.address} <= shapes
                    again += 1
                was = checkpoint.published.get(action.address)
                if action.address in view.published.addresses or (was is not None and was not in shapes):
                    token = view.tokens.offered.get(action.address)
                    assert token is not None, "moved without a token"
                    assert token.entry in {entry_digest(one) for one in listed}

    check()
    print(f"{ran} examples: {moved} moves, {again} of them for a claim of before the boot; {held} held")
    assert ran >= EXAMPLES
    assert moved > 200
    assert again > 10
    assert held > 200
