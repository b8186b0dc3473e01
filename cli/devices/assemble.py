"""From what each object says to one row per device. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cli.devices.cluster_facts import ClaimFacts, SliceFacts
from cli.devices.node_facts import NodeFacts, Standing, User
from cli.devices.rows import Allocation, Listing, Note, Offer, Row, Why, sorted_listing
from controllers.node_policy.drain.pods import Pod
from crds.device_names import address_of
from crds.models.bindings import BindingReason

Place = tuple[str, str]
"""Node and address."""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was read. `slices` and `claims` are None where they may not be read; `pods`: some, by UID.

    `blockers`: what stands in the way, by policy, node and address ("": of the whole node), as far as policies tell it.
    """

    nodes: Sequence[NodeFacts]
    slices: Sequence[SliceFacts] | None
    claims: Sequence[ClaimFacts] | None
    pods: Mapping[str, Pod]
    blockers: Mapping[tuple[str, str, str], Why] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def assemble(found: Found) -> Listing:
    """The rows of the nodes that were read, with what slices and claims say of their devices."""
    names = {facts.name for facts in found.nodes}
    offers, places = _offers(found.slices or (), names)
    allocations = _allocations(found, places, names)
    rows = []
    for facts in found.nodes:
        for standing in facts.devices:
            place = (facts.name, standing.row.address)
            rows.append(_row(standing, offers.pop(place, []), allocations.pop(place, []), found))
    for node, address in offers.keys() | allocations.keys():
        place = (node, address)
        told, held = offers.get(place, []), allocations.get(place, [])
        if any(map(address_of, [*(offer.name for offer in told), *(allocation.name for allocation in held)])):
            why = Why(BindingReason.DEVICE_MISSING, "the node has no such device, and no order names it")
            rows.append(Row(node, address, offers=tuple(told), allocations=tuple(held), why=why))
    return sorted_listing(rows, [*found.notes, *(note for facts in found.nodes for note in facts.notes)])


def _offers(
    slices: Sequence[SliceFacts], nodes: set[str]
) -> tuple[dict[Place, list[Offer]], dict[tuple[str, str, str], Place]]:
    """By place; and the places of devices as allocations name them.

    Of a pool the newest generation counts, as for the scheduler. What other drivers publish counts where npufleet knows
    the device, too; network cards and the like are theirs alone.
    """
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for one in slices:
        newest[one.driver, one.pool] = max(newest[one.driver, one.pool], one.generation)
    offers: dict[Place, list[Offer]] = defaultdict(list)
    places: dict[tuple[str, str, str], Place] = {}
    for one in slices:
        for address, offer in one.devices if one.node in nodes else ():
            places[one.driver, one.pool, offer.name] = (one.node, address)
            if one.generation == newest[one.driver, one.pool]:
                offers[one.node, address].append(offer)
    return offers, places


def _allocations(
    found: Found, places: Mapping[tuple[str, str, str], Place], nodes: set[str]
) -> dict[Place, list[Allocation]]:
    """By place. A device that is in no slice any more is known by its name, whose pool is the node."""
    vms = {uid: pod.vm for uid, pod in found.pods.items() if pod.vm}
    allocations: dict[Place, list[Allocation]] = defaultdict(list)
    for claim in found.claims or ():
        for driver, pool, device in claim.results:
            place = places.get((driver, pool, device))
            address = address_of(device)
            if place is None and address is not None and pool in nodes:
                place = (pool, address)
            if place is not None:
                allocations[place].append(claim.allocation(driver, device, vms))
    for told in allocations.values():
        told.sort(key=lambda allocation: (allocation.namespace, allocation.claim, allocation.name))
    return allocations


def _row(standing: Standing, offers: Iterable[Offer], allocations: Iterable[Allocation], found: Found) -> Row:
    offered = tuple(sorted(offers, key=lambda offer: (offer.driver, offer.name)))
    return replace(
        standing.row,
        offers=None if found.slices is None else offered,
        allocations=None if found.claims is None else tuple(allocations),
        used_by=tuple(_told(user, found.pods) for user in standing.users),
        why=_why(standing, offered, found.blockers),
    )


def _why(standing: Standing, offered: Sequence[Offer], blockers: Mapping[tuple[str, str, str], Why]) -> Why | None:
    if not offered:
        row = standing.row
        causes = [blockers.get((row.policy, row.node, address)) for address in (row.address, "")]
        cause = next((why for why in causes if why is not None), None)
        return cause if standing.is_held and cause is not None else standing.absent
    if any(not offer.taints for offer in offered):
        return None
    taints = ", ".join(dict.fromkeys(taint for offer in offered for taint in offer.taints))
    return Why("Tainted", f"{taints}: {standing.said}" if standing.said else taints)


def _told(user: User, pods: Mapping[str, Pod]) -> str:
    if not user.pod_uid:
        return user.text
    return f"{user.text} of {pods.get(user.pod_uid) or f'a pod with UID {user.pod_uid}'}"
