"""The parts of a publisher put together, on the host that is mounted at a root."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from crds.catalogue import load_catalogue
from crds.models.conditions import timestamp
from crds.models.node_state import UseKind
from dra_publisher.active import Active
from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.claims.claims import Claims
from dra_publisher.claims.lock import ClaimLock
from dra_publisher.handover.claimed import read_allocations
from dra_publisher.handover.ledger import CheckpointLedger
from dra_publisher.handover.node_slices import NodeSlices
from dra_publisher.kubelet.calls import OnCall
from dra_publisher.kubelet.offered_health import OfferedHealth
from dra_publisher.kubelet.plugins import Plugins
from dra_publisher.look import Look
from dra_publisher.slices.writer import SliceWriter
from node_host.boot import read_boot_id
from node_host.bounded_call import BoundedCalls
from node_host.evidence.usage import in_use_text
from node_host.host import Host, open_host
from node_host.observer import Observer
from node_host.selection import is_accelerator, node_patterns, vendors_of
from runtime.api import Api


@dataclass(slots=True)
class Parts:
    """One publisher."""

    host: Host
    slices: SliceWriter
    look: Look
    ledger: CheckpointLedger
    claims: Claims
    plugins: Plugins
    health: OfferedHealth
    active: Active


def build_parts(
    api: Api,
    root: Path,
    node: str,
    *,
    owner: str,
    pod_uid: str | None = None,
    wake: Callable[[], None] = lambda: None,
    on_call: OnCall | None = None,
    tell: Callable[[str, str], None] = lambda reason, message: None,
) -> Parts:
    """``wake`` is called when something may have changed; ``tell`` takes reason and message of a Warning.

    Raises BootUnknownError when the host does not tell its boot.
    """
    host, calls, catalogue = open_host(root), BoundedCalls(), load_catalogue()
    observer = Observer(
        host,
        calls,
        of_interest=is_accelerator(catalogue),
        node_patterns=node_patterns(catalogue),
        vendors_of=vendors_of(catalogue),
        asks_plugins=True,
    )
    store = CheckpointStore(host)
    lock = ClaimLock(store)
    ledger = CheckpointLedger(store, lock)
    slices = SliceWriter(api, node, wake=wake)

    async def users(addresses: Collection[str]) -> Mapping[str, str]:
        """Who has devices, but for the checkpoint's own word. Raises OSError when that cannot be told."""
        view = await observer.again(addresses)
        found = {}
        for address in addresses:
            others = [user for user in view.users.get(address, ()) if user.kind is not UseKind.CLAIM]
            if any(user.kind is UseKind.UNREADABLE for user in others):
                raise OSError(in_use_text(others))
            others = [user for user in others if user.kind is not UseKind.VIRTUAL_FUNCTIONS]
            if others:
                found[address] = in_use_text(others)
        return found

    look = Look(
        host,
        catalogue,
        observer,
        calls,
        NodeSlices(slices),
        ledger,
        partial(read_allocations, api, node),
        clock=time.monotonic,
    )
    claims = Claims(
        api,
        host,
        store,
        look.offered,
        pool=node,
        boot_id=read_boot_id(host),
        users=users,
        tell=tell,
        on_change=lambda: wake() if look.waits_for_claims else None,
        lock=lock,
    )
    health = OfferedHealth(node)
    plugins = Plugins(host, claims, health, pod_uid=pod_uid, on_call=on_call, changed=wake)

    def other_plugins(drivers: frozenset[str]) -> Mapping[str, str]:
        found = {driver: plugins.other_plugin(driver) for driver in drivers}
        return {driver: text for driver, text in found.items() if text is not None}

    look.other_plugins = other_plugins
    return Parts(host, slices, look, ledger, claims, plugins, health, Active(host, owner=owner, wake=wake))


def now() -> str:
    """The wall clock as conditions want it."""
    return timestamp(datetime.now(UTC))
