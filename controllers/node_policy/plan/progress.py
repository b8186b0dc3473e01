"""How far a device has come, by the daemons' reports: only what was said in this boot, of these orders, counts.

A report of another boot, or of a daemon whose Lease has run out, says nothing any more; a report of older orders says
that the daemon is still at work.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from controllers.node_policy.plan.orders import Order
from controllers.node_policy.plan.view import (
    BlockerReason,
    DeviceReportView,
    NodeView,
    ReportView,
    StateView,
    Subtree,
)
from crds.models import bindings
from crds.models.bindings import BindingReason
from crds.models.modes import Mode
from crds.models.node_state import DeviceState, Intent
from crds.models.publication import WITHHELD, PublicationReason

# Which reports a mode needs. Grows with the daemons.
REQUIRED: Final[Mapping[Mode, tuple[Subtree, ...]]] = {
    Mode.PASSTHROUGH: (Subtree.BINDINGS,),
    Mode.CONTAINER: (Subtree.BINDINGS,),
    Mode.VGPU: (Subtree.BINDINGS, Subtree.PROFILES),
    Mode.SOFT_VNPU: (Subtree.BINDINGS, Subtree.LIBRARIES),
    Mode.HARD_VNPU: (Subtree.BINDINGS, Subtree.PUBLICATION),
    Mode.UNMANAGED: (),
}
# Modes whose devices are of use once they are published. The publisher is asked where one has ever reported: a cluster
# without it has other ways to its devices.
PUBLISHED: Final = frozenset({Mode.PASSTHROUGH, Mode.CONTAINER, Mode.VGPU})
DAEMONS: Final[Mapping[Subtree, str]] = {
    Subtree.BINDINGS: "npufleet-vfio-binder",
    Subtree.PROFILES: "npufleet-profile-writer",
    Subtree.PUBLICATION: "npufleet-dra-publisher",
    Subtree.LIBRARIES: "npufleet-vnpu-installer",
}

# A device that is not there, or is another one, has nothing to be given back.
_NOTHING_TO_RELEASE: Final = frozenset({BindingReason.DEVICE_MISSING, BindingReason.IDENTITY_MISMATCH})


# Blocked for these means: not yet. Whoever uses the device ends, is moved away, or hands it over.
WAITS_FOR_USERS: Final = bindings.WAITS_FOR_USERS | {PublicationReason.HAND_OVER}
HAND_OVER: Final = str(PublicationReason.HAND_OVER)
# Blocked for these ends by itself: the daemon looks again in a moment.
PASSES: Final = frozenset({BindingReason.CHANGED, BindingReason.GROUP_LOCKED})
ORDERS_NEW: Final = "OrdersNew"
NOT_REPORTED: Final = "NotReported"
# Reasons of the binder that name the publisher as the one who has to let go, and of a publisher that lets nobody in.
OF_PUBLISHER: Final = frozenset({BindingReason.PUBLISHED, PublicationReason.HAND_OVER})


class Progress(IntEnum):
    """How far it is, the worst last."""

    RELEASED = 0
    READY = 1
    REBOOTED = 2
    SILENT = 3
    PENDING = 4
    BLOCKED = 5
    DAEMON_MISSING = 6
    FAILED = 7


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one device, with the words of the daemon that it rests on (or of the controller).

    `held`: the order is to leave the device as it is.
    """

    progress: Progress
    reason: str = ""
    message: str = ""
    daemon: str = ""
    begun: bool = False
    held: bool = False

    @property
    def done(self) -> bool:
        return self.progress in (Progress.READY, Progress.RELEASED)

    @property
    def unavailable(self) -> bool:
        """The device counts against the limits of its policy: it moves, is about to, failed, or nobody knows.

        Blocked means that nothing was done to it, unless virtual functions of it were made that are blocked now, or
        it is moved as soon as its users let go. Held and not as ordered: nobody moves it.
        """
        if self.done or self.begun:
            return not self.done
        if self.progress is Progress.BLOCKED:
            return self.waits
        return not (self.held and self.progress is Progress.PENDING)

    @property
    def surely_not_done(self) -> bool:
        """The daemon says so itself; it is not only that nobody has said anything of the present orders."""
        known = self.progress in (Progress.FAILED, Progress.BLOCKED, Progress.PENDING)
        return known and self.reason not in (ORDERS_NEW, NOT_REPORTED)

    @property
    def waits(self) -> bool:
        """It is moved as soon as those who use it let go of it."""
        return self.progress is Progress.BLOCKED and not self.held and self.reason in WAITS_FOR_USERS


_BY_STATE: Final[Mapping[DeviceState, Progress]] = {
    DeviceState.READY: Progress.READY,
    DeviceState.PENDING: Progress.PENDING,
    DeviceState.BLOCKED: Progress.BLOCKED,
    DeviceState.FAILED: Progress.FAILED,
    DeviceState.RELEASED: Progress.RELEASED,
}


def verdict_on(order: Order, node: NodeView, state: StateView, silent: frozenset[str]) -> Verdict:
    """The worst of what the daemons say that the order's mode needs. A release needs only those that ever reported."""
    held = order.intent is Intent.HOLD
    worst = Verdict(Progress.RELEASED if order.intent is Intent.RELEASE else Progress.READY, held=held)
    for subtree in REQUIRED[order.shape.mode]:
        report = state.reports.get(subtree)
        if report is None and order.intent is Intent.RELEASE and subtree is not Subtree.BINDINGS:
            continue
        found = _verdict(order, node, state, report, DAEMONS[subtree], silent)
        if found.progress > worst.progress:
            worst = replace(found, held=True) if held else found
    return worst


def with_publication(
    order: Order, verdict: Verdict, node: NodeView, state: StateView, silent: frozenset[str]
) -> Verdict:
    """The verdict on a device that is prepared, once the publisher was asked, too; any other stands as it is."""
    report = state.reports.get(Subtree.PUBLICATION)
    if report is None or verdict.progress is not Progress.READY or order.shape.mode not in PUBLISHED:
        return verdict
    found = _verdict(order, node, state, report, DAEMONS[Subtree.PUBLICATION], silent)
    return verdict if found.progress is Progress.READY else replace(found, held=verdict.held)


def publisher_waits(address: str, node: NodeView, state: StateView, silent: frozenset[str]) -> DeviceReportView | None:
    """What the publisher says of a device that it withholds and cannot hand over yet; None when it says no such thing.

    Only as long as it answers the present orders, in this boot.
    """
    report = state.reports.get(Subtree.PUBLICATION)
    if report is None or report.error or DAEMONS[Subtree.PUBLICATION] in silent:
        return None
    if report.generation != state.generation or not node.boot_id or report.boot_id != node.boot_id:
        return None
    device = report.devices.get(address)
    waits = device is not None and device.state is DeviceState.PENDING and device.reason == HAND_OVER
    return device if waits else None


def withheld(addresses: Iterable[str], node: NodeView, state: StateView) -> bool:
    """Whether nobody gets these devices any more: they are not published, or withheld for the present orders."""
    report = state.reports.get(Subtree.PUBLICATION)
    if report is None:
        return True
    if report.error:
        return False
    current = report.generation == state.generation and report.boot_id == node.boot_id
    return all(
        (said := report.devices.get(address)) is None or (current and said.reason in WITHHELD) for address in addresses
    )


def _verdict(
    order: Order, node: NodeView, state: StateView, report: ReportView | None, daemon: str, silent: frozenset[str]
) -> Verdict:
    if report is None:
        message = f"no {daemon} reports on this node, but mode {order.shape.mode} needs it"
        return Verdict(Progress.DAEMON_MISSING, BlockerReason.DAEMON_MISSING, message, daemon)
    if daemon in silent:
        message = f"{daemon} has not renewed its Lease for more than 15 minutes"
        return Verdict(Progress.SILENT, BlockerReason.DAEMON_SILENT, message, daemon)
    if report.error:
        message = f"the report of {daemon} cannot be understood: {report.error}"
        return Verdict(Progress.FAILED, BlockerReason.REPORT_UNREADABLE, message, daemon)
    if not node.boot_id or report.boot_id != node.boot_id:
        message = f"the node was rebooted and {daemon} has not reported since"
        return Verdict(Progress.REBOOTED, BlockerReason.REBOOTED, message, daemon)
    if report.generation != state.generation:
        return Verdict(Progress.PENDING, ORDERS_NEW, f"{daemon} has not answered the present orders yet", daemon)
    device = report.devices.get(order.address)
    if device is None:
        return Verdict(Progress.PENDING, NOT_REPORTED, f"{daemon} does not report the device yet", daemon)
    return _quoted(order, device, daemon)


def _quoted(order: Order, device: DeviceReportView, daemon: str) -> Verdict:
    progress = _BY_STATE[device.state]
    if order.intent is Intent.RELEASE:
        if progress is Progress.BLOCKED and device.reason in _NOTHING_TO_RELEASE:
            progress = Progress.RELEASED
        elif progress is Progress.READY:
            progress = Progress.PENDING
    elif progress is Progress.RELEASED:
        progress = Progress.PENDING  # the answer to an earlier order
    return Verdict(progress, device.reason, device.message, daemon, device.begun)


def inventory_problem(node: NodeView, state: StateView) -> str:
    """Why no new orders can be compiled for the node, "" when its inventory is of this node and this boot."""
    if state.error:
        return f"the orders of the node cannot be understood and are left as they are: {state.error}"
    inventory = state.inventory
    binder = DAEMONS[Subtree.BINDINGS]
    if inventory is None:
        return f"no {binder} has reported the devices of this node yet"
    if state.node_uid != node.uid:
        return "the Node was created anew; its daemons have not reported since"
    if inventory.reason == "Unreadable":
        return f"the inventory cannot be understood: {inventory.message}"
    if not node.boot_id:
        return "the Node does not tell its boot id yet"
    if inventory.boot_id != node.boot_id:
        return f"the node was rebooted and {binder} has not reported its devices since"
    if not inventory.ready:
        return f"the inventory is not ready: {inventory.reason}: {inventory.message}"
    return ""
