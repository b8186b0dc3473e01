"""The devices of one host as its files tell, without an API server: for a node that has lost it, or never had one.

Orders live in the API alone, so no mode is told here: what the drivers are, what pods may have of it by the publisher's
own files, who has it, and what stands in the way of giving it to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.devices.rows import Allocation, Listing, Note, Offer, Row, Why, sorted_listing
from cli.errors import CommandError, ExitCode
from crds.catalogue import Catalogue, load_catalogue
from crds.models.bindings import BindingReason
from crds.models.node_state import DeviceUser, UseKind
from crds.models.publication import PublicationReason
from node_host.acting.journal import JOURNAL, Journal, JournalEntry, JournalState
from node_host.boot import BootUnknownError
from node_host.bounded_call import BoundedCalls, HungError
from node_host.evidence.checkpoint import CHECKPOINT, PreparedClaim
from node_host.evidence.publication import PUBLISHED
from node_host.host import Host, open_host
from node_host.observer import Observer
from node_host.pci.device import PCIDevice
from node_host.selection import is_accelerator, node_patterns, product_of, vendors_of
from node_host.view import HostView

_TOLD_ELSEWHERE: Final = frozenset({UseKind.PUBLISHED, UseKind.VIRTUAL_FUNCTIONS})


def read_host(root: Path) -> Listing:
    """The accelerators of the host below `root`. Raises CommandError when nothing can be known of it."""
    host, view = look_at_host(root)
    try:
        # Only read: putting a broken one aside is the binder's business.
        journal = Journal(host.local(JOURNAL)).load(set_aside=False)
    except OSError as error:
        raise CommandError(f"{root} cannot be read as the root of a host: {error}") from error
    return listing_of(view, load_catalogue(), journal)


def look_at_host(root: Path) -> tuple[Host, HostView]:
    """The host below `root`, and all of its devices now. Raises CommandError when nothing can be known of it."""
    if not root.is_dir():
        raise CommandError(f"--host-root {root} is no directory", ExitCode.USAGE)
    try:
        host = open_host(root)
        return host, asyncio.run(_look(host))
    except (BootUnknownError, HungError, OSError) as error:
        raise CommandError(f"{root} cannot be read as the root of a host: {error}") from error


async def _look(host: Host) -> HostView:
    catalogue = load_catalogue()
    observer = Observer(
        host,
        BoundedCalls(),
        of_interest=is_accelerator(catalogue),
        node_patterns=node_patterns(catalogue),
        vendors_of=vendors_of(catalogue),
    )
    return await observer.view()


def listing_of(view: HostView, catalogue: Catalogue, journal: JournalState) -> Listing:
    """What the host's files say together."""
    judge = is_accelerator(catalogue)
    named = view.published.addresses | view.prepared.addresses | journal.entries.keys()
    rows = [
        _row(view, catalogue, device, journal.entries.get(address))
        for address, device in view.devices.items()
        if judge(device) or address in named
    ]
    rows += [
        Row(
            "",
            address,
            allocations=_allocations(view, address),
            why=Why(BindingReason.DEVICE_MISSING, "there is no such device"),
        )
        for address in named - view.devices.keys() - view.unreadable.keys()
    ]
    rows += [
        Row("", address, allocations=_allocations(view, address), why=Why(BindingReason.DEVICE_UNREADABLE, why))
        for address, why in view.unreadable.items()
    ]
    texts = (view.problem, view.published.doubt, view.prepared.doubt, view.tokens.unreadable, journal.problem)
    return sorted_listing(rows, [Note("", text) for text in texts if text])


def _row(view: HostView, catalogue: Catalogue, device: PCIDevice, entry: JournalEntry | None) -> Row:
    product = product_of(catalogue, device)
    address = device.address
    users = view.users.get(address, ())
    why = _why(view, address, entry)
    is_offered = address in view.published.addresses
    return Row(
        node="",
        address=address,
        vendor=device.vendor,
        device=device.device,
        product=product.name if product else "",
        driver=device.driver or "",
        iommu_group=device.iommu_group,
        numa_node=device.numa_node,
        offers=None if view.published.unreadable else (Offer("", ""),) if is_offered else (),
        allocations=_allocations(view, address),
        used_by=tuple(_told(user) for user in users if user.kind not in _TOLD_ELSEWHERE),
        why=why,
    )


def _allocations(view: HostView, address: str) -> tuple[Allocation, ...] | None:
    """Claims of the checkpoint; None where it is not known whether it has them all."""
    if view.prepared.unreadable is not None:
        return None
    return tuple(_prepared(view, address))


def _prepared(view: HostView, address: str) -> Iterator[Allocation]:
    for claim in view.prepared.checkpoint.claims_of(address):
        for device in claim.devices:
            if device.address == address:
                yield Allocation(
                    device.driver, device.device, claim.namespace, claim.name, detail=_detail(claim, view.boot_id)
                )


def _detail(claim: PreparedClaim, boot_id: str) -> str:
    return str(claim.state).lower() if claim.boot_id == boot_id else "prepared before the last boot"


def _told(user: DeviceUser) -> str:
    text = f"{user.name} ({user.detail})" if user.detail else user.name
    return f"{text} of pod UID {user.pod_uid}" if user.pod_uid and user.kind is UseKind.PROCESS else text


def _why(view: HostView, address: str, entry: JournalEntry | None) -> Why | None:
    """Why nobody new gets the device, as far as the host knows."""
    tokens = (view.tokens.taken.get(address), view.tokens.offered.get(address))
    if any(token is not None and token.boot_id == view.boot_id for token in tokens):
        return Why(
            PublicationReason.HANDED_OVER,
            "pods get it again once the binder has changed it, and the publisher offers it anew",
        )
    if address in view.tokens.faults:
        return Why(PublicationReason.HANDED_OVER, view.tokens.faults[address])
    if address in view.published.addresses:
        return None
    vetoes = view.vetoes.get(address, ())
    if vetoes:
        return Why(BindingReason.VETOED, "; ".join(veto.message for veto in vetoes))
    if view.published.unreadable is not None:
        return Why("Unknown", view.published.doubt or "")
    was = f"; npufleet bound it, before it was on {entry.former_driver or 'no driver'}" if entry is not None else ""
    stands = f"not in {PUBLISHED} of this boot{was}"
    if any(claim.boot_id != view.boot_id for claim in view.prepared.checkpoint.claims_of(address)):
        return Why("NotOffered", f"{stands}; {CHECKPOINT} has a claim on it from before the last boot")
    return Why("NotOffered", stands)
