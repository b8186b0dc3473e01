"""One NPUNodeState, read for showing: its devices, their orders, and why nobody gets a device that no slice has. Pure.

How far a device has come is judged as the controller judges it, so that the words here are those of a policy's
blockers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cli.devices.rows import Note, Row, Why
from controllers.node_policy.plan import NodeView, StateView, read_state
from controllers.node_policy.plan.orders import Order
from controllers.node_policy.plan.progress import DAEMONS, PUBLISHED, Progress, Verdict, verdict_on, with_publication
from controllers.node_policy.plan.view import Subtree
from controllers.reading import items, mapping
from crds.models.bindings import BindingReason
from crds.models.conditions import Status, find_condition
from crds.models.modes import Mode
from crds.models.node_state import Intent, UseKind

_NOBODY: Final[frozenset[str]] = frozenset()
_TOLD_ELSEWHERE: Final = frozenset({str(UseKind.PUBLISHED), str(UseKind.VIRTUAL_FUNCTIONS)})


@dataclass(frozen=True, slots=True)
class User:
    """Who uses a device, in the host's words; `pod_uid` "" when it is of no pod, or nobody knows of which."""

    text: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A device without what other objects say of it. `absent`: why nobody gets it, as long as no slice has it.

    `said`: what the publisher says of it.
    """

    row: Row
    users: tuple[User, ...]
    absent: Why
    said: str = ""

    @property
    def is_held(self) -> bool:
        """Whether nobody gets it because its policy leaves it as it is; why, the policy says."""
        return self.row.intent == Intent.HOLD and self.absent.reason == BindingReason.HELD


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The devices of a node, and what is to be known before they are believed."""

    name: str
    devices: tuple[Standing, ...]
    notes: tuple[Note, ...]


def read_node_facts(obj: Mapping[str, Any]) -> NodeFacts:
    """Whatever the object holds: what cannot be understood becomes a note."""
    state = read_state(obj)
    boot = state.inventory.boot_id if state.inventory is not None else ""
    node = NodeView(state.name, state.node_uid, {}, boot)
    orders = {order.address: order for order in state.orders.devices}
    status = mapping(obj.get("status"))
    listed = {str(device.get("address")): device for device in items(mapping(status.get("inventory")).get("devices"))}
    parts = _functions(status)
    found = []
    for address in listed.keys() | orders.keys():
        device = listed.get(address, {})
        order = orders.get(address) or _card_order(orders.get(str(device.get("physicalFunction"))))
        users = tuple(_users(device))
        row = _row(state.name, address, device, order)
        if order is None:
            found.append(Standing(row, users, _unordered(device, address, state)))
            continue
        verdict = with_publication(order, verdict_on(order, node, state, _NOBODY), node, state, _NOBODY)
        absent = _ordered(order, verdict, state, parts, address if order.address != address else "")
        found.append(Standing(row, users, absent, _said(state, order)))
    return NodeFacts(state.name, tuple(found), tuple(_notes(state)))


def _card_order(order: Order | None) -> Order | None:
    """The order of a card where it is for the card's virtual functions."""
    return order if order is not None and order.shape.gives_functions else None


def _row(node: str, address: str, device: Mapping[str, Any], order: Order | None) -> Row:
    return Row(
        node=node,
        address=address,
        vendor=str(device.get("vendor") or (order.identity.vendor if order else "")),
        device=str(device.get("device") or (order.identity.device if order else "")),
        product=str(device.get("product") or ""),
        driver=str(device.get("driver") or ""),
        iommu_group=_number(device.get("iommuGroup")),
        numa_node=_number(device.get("numaNode")),
        mode=str(order.shape.mode) if order else "",
        intent=str(order.intent) if order else "",
        driver_name=order.shape.driver_name if order else "",
        policy=order.policy if order else "",
        rule=order.rule if order else "",
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _users(device: Mapping[str, Any]) -> Iterable[User]:
    for user in items(device.get("usedBy")):
        if user.get("kind") not in _TOLD_ELSEWHERE:
            detail = user.get("detail")
            text = f"{user.get('name')} ({detail})" if detail else str(user.get("name"))
            yield User(text, str(user.get("podUID") or ""))


def _functions(status: Mapping[str, Any]) -> dict[str, Why | None]:
    """By address, what the binder says of virtual functions that go to VMs; None: they are as they should be."""
    cards = items(mapping(status.get("bindings")).get("devices"))
    return {
        str(part.get("address")): None
        if part.get("state") == "Ready"
        else Why(str(part.get("reason")), str(part.get("message") or ""))
        for card in cards
        for part in items(card.get("virtualFunctions"))
    }


def _unordered(device: Mapping[str, Any], address: str, state: StateView) -> Why:
    if state.error:
        return Why("StateUnreadable", f"the orders of the node cannot be understood: {state.error}")
    vetoes = [str(veto.get("message")) for veto in items(device.get("vetoes"))]
    if vetoes:
        return Why(BindingReason.VETOED, f"no policy decides it, and the host needs it: {'; '.join(vetoes)}")
    bindings = state.reports.get(Subtree.BINDINGS)
    said = bindings.devices.get(address) if bindings is not None else None
    if said is not None:
        return Why(said.reason, said.message)
    return Why("NoPolicy", "no policy decides it, or one leaves it alone")


def _ordered(order: Order, verdict: Verdict, state: StateView, parts: Mapping[str, Why | None], part: str) -> Why:
    """`part`: the device is a virtual function of the one that is ordered."""
    publisher = DAEMONS[Subtree.PUBLICATION]
    mode = order.shape.mode
    if order.intent is Intent.RELEASE:
        stuck = verdict.progress not in (Progress.RELEASED, Progress.READY, Progress.PENDING)
        return Why(verdict.reason, verdict.message) if stuck else Why("Releasing", "it is being given back")
    if part and (why := parts.get(part)) is not None:
        return why
    if verdict.progress is not Progress.READY:
        return Why(verdict.reason, verdict.message)
    if mode not in PUBLISHED:
        return Why(
            "LeftAlone" if mode is Mode.UNMANAGED else "NotPublished", f"devices of mode {mode} are not published"
        )
    if not part and order.shape.gives_functions:
        return Why("VirtualFunctions", "its virtual functions are offered instead of it")
    if Subtree.PUBLICATION not in state.reports:
        return Why("DaemonMissing", f"no {publisher} reports on this node")
    return Why("SliceMissing", f"{publisher} says that it is published, and no ResourceSlice has it")


def _said(state: StateView, order: Order) -> str:
    report = state.reports.get(Subtree.PUBLICATION)
    device = report.devices.get(order.address) if report is not None else None
    return device.message if device is not None else ""


def _notes(state: StateView) -> Iterable[Note]:
    if state.error:
        yield Note(state.name, f"its orders cannot be understood: {state.error}")
    if state.inventory is None:
        yield Note(state.name, f"no {DAEMONS[Subtree.BINDINGS]} has reported its devices yet")
        return
    if not state.inventory.ready:
        yield Note(state.name, f"its inventory is not ready: {state.inventory.reason}: {state.inventory.message}")
    available = find_condition(state.rollout.conditions, "Available") if state.rollout is not None else None
    if available is not None and available.status is Status.UNKNOWN:
        yield Note(state.name, f"what is shown of it may be past ({available.reason}): {available.message}")
