"""How far a device has come, by the daemons' reports: only what was said in this boot, of these orders, counts.

A report of another boot, or of a daemon whose Lease has run out, says nothing any more; a report of older orders says
that the daemon is still at work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
from crds.models.modes import Mode
from crds.models.node_state import DeviceState, Intent

# Which reports a mode needs. Grows with the daemons.
REQUIRED: Final[Mapping[Mode, tuple[Subtree, ...]]] = {
    Mode.PASSTHROUGH: (Subtree.BINDINGS,),
    Mode.CONTAINER: (Subtree.BINDINGS,),
    Mode.VGPU: (Subtree.BINDINGS, Subtree.PROFILES),
    Mode.SOFT_VNPU: (Subtree.BINDINGS, Subtree.LIBRARIES),
    Mode.HARD_VNPU: (Subtree.BINDINGS, Subtree.PUBLICATION),
    Mode.UNMANAGED: (),
}
DAEMONS: Final[Mapping[Subtree, str]] = {
    Subtree.BINDINGS: "npufleet-vfio-binder",
    Subtree.PROFILES: "npufleet-profile-writer",
    Subtree.PUBLICATION: "npufleet-dra-publisher",
    Subtree.LIBRARIES: "npufleet-vnpu-installer",
}

# A device that is not there, or is another one, has nothing to be given back.
_NOTHING_TO_RELEASE: Final = frozenset({"DeviceMissing", "IdentityMismatch"})


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
    """The judgement on one device, with the words of the daemon that it rests on (or of the controller)."""

    progress: Progress
    reason: str = ""
    message: str = ""
    daemon: str = ""
    begun: bool = False

    @property
    def done(self) -> bool:
        return self.progress in (Progress.READY, Progress.RELEASED)

    @property
    def unavailable(self) -> bool:
        """The device counts against the limits of its policy: it moves, failed, or nobody knows.

        Blocked means that nothing was done to it, unless virtual functions of it were made that are blocked now.
        """
        return not self.done and (self.begun or self.progress is not Progress.BLOCKED)


_BY_STATE: Final[Mapping[DeviceState, Progress]] = {
    DeviceState.READY: Progress.READY,
    DeviceState.PENDING: Progress.PENDING,
    DeviceState.BLOCKED: Progress.BLOCKED,
    DeviceState.FAILED: Progress.FAILED,
    DeviceState.RELEASED: Progress.RELEASED,
}


def verdict_on(order: Order, node: NodeView, state: StateView, silent: frozenset[str]) -> Verdict:
    """The worst of what the daemons say that the order's mode needs. A release needs only those that ever reported."""
    worst = Verdict(Progress.RELEASED if order.intent is Intent.RELEASE else Progress.READY)
    for subtree in REQUIRED[order.shape.mode]:
        report = state.reports.get(subtree)
        if report is None and order.intent is Intent.RELEASE and subtree is not Subtree.BINDINGS:
            continue
        found = _verdict(order, node, state, report, DAEMONS[subtree], silent)
        if found.progress > worst.progress:
            worst = found
    return worst


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
        return Verdict(Progress.PENDING, "OrdersNew", f"{daemon} has not answered the present orders yet", daemon)
    device = report.devices.get(order.address)
    if device is None:
        return Verdict(Progress.PENDING, "NotReported", f"{daemon} does not report the device yet", daemon)
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
