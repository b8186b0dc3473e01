"""The orders of one node: what they should become, and how much of that needs no leave from anybody's limits.

A pure function of the Node, its NPUNodeState and the policies. An order that no policy decides any more is not dropped
but turned into a release, which stays until the host confirms it: absence is not an order to a daemon.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controllers.node_policy.plan.decide import Decision, Decisions, Remark, decide
from controllers.node_policy.plan.match import may_match
from controllers.node_policy.plan.orders import (
    ORPHANS,
    Identity,
    Order,
    Orders,
    RolloutLimits,
    address_key,
    orders_of,
    shape_of,
)
from controllers.node_policy.plan.profile_maps import MapFault, resolved
from controllers.node_policy.plan.progress import DAEMONS, inventory_problem, verdict_on
from controllers.node_policy.plan.view import (
    BlockerReason,
    DeviceReportView,
    DeviceView,
    InventoryView,
    MapView,
    NodeView,
    PolicyView,
    StateView,
    Subtree,
)
from crds.models.modes import Mode, OnRelease, Passthrough
from crds.models.node_policy import DEFAULT_DRIVER_NAME
from crds.models.node_state import MAX_DEVICES, Intent, Removal

ORPHANED: Final = "Orphaned"
MAX_LIMITS: Final = 64
NO_REMOVALS: Final[Mapping[str, Removal]] = {}
NO_MAPS: Final[Mapping[str, MapView]] = {}


@dataclass(frozen=True, slots=True)
class Compiled:
    """`problem` not "": the node's orders stay as they are, and why; then `target` is what is in force.

    `orphans`: devices that npufleet changed in this boot and that neither the orders nor any policy names.
    """

    problem: str
    target: Orders
    decisions: Decisions
    orphans: frozenset[str]


def compile_node(
    node: NodeView,
    state: StateView,
    policies: Sequence[PolicyView],
    held: frozenset[str],
    silent: frozenset[str],
    *,
    released: frozenset[str],
    settling: bool,
    removals: Mapping[str, Removal],
    maps: Mapping[str, MapView] | None = NO_MAPS,
    problem: str = "",
) -> Compiled:
    """Compile the target for a node; `policies` by precedence, `held` the missing ones whose orders are kept.

    `released`: addresses of orphans that are given back. `settling`: the Node was created anew a short time ago, its
    labels may be on their way; what no policy decides now is held. `removals`: what has to be remembered of whose
    removal. `maps`: the VGPUProfileMaps, None while nobody knows which there are. `problem`: why nothing can be said of
    this node whatever its inventory says, "" when something can.
    """
    present = state.orders.by_address()
    problem = problem or inventory_problem(node, state)
    inventory = state.inventory
    bindings = _current_bindings(node, state)
    by_name = {policy.name: policy for policy in policies}
    if problem or inventory is None:
        as_they_are = _with_removals(state.orders, by_name, removals)
        return Compiled(problem, as_they_are, Decisions(), _orphans(bindings, present))
    devices = [_with_known_serial(device, present) for device in inventory.devices]
    decisions = decide(node, devices, policies, held, present, bindings)
    target = dict(decisions.frozen)
    for address, decision in decisions.decided.items():
        order = _order(decision, present.get(address), maps, decisions.remarks)
        if order is not None:
            target[address] = order
    unknown = decisions.decided.keys() - target.keys() if maps is None else frozenset[str]()
    here = {device.address for device in inventory.devices}
    for address, order in present.items():
        if address in target:
            continue
        if address in unknown:
            target[address] = order
            continue
        kept = None if address in here else _kept_without_device(order, node, by_name)
        if kept is None and settling and order.intent is not Intent.RELEASE:
            kept = order.held()
        target[address] = kept or order.released(_on_release(order, by_name))
    orphans = _orphans(bindings, target) - decisions.claims.keys()
    for order in _orphans_released(orphans & released, inventory, state, silent):
        target[order.address] = order
    for address, order in present.items():
        if (
            order.intent is Intent.RELEASE
            and _given_up(address, target, decisions)
            and _confirmed(order, node, state, silent)
        ):
            del target[address]
    kept_orders = _within_bounds(target.values(), present, decisions)
    named = {order.policy for order in kept_orders}
    if ORPHANS in removals or not _tells_of_orphans(node, state):
        named.add(ORPHANS)  # remembered also while they are held, or their releases have to wait
    limits = _limits(named, by_name, state.orders.limits, removals)
    return Compiled("", orders_of(kept_orders, limits), decisions, orphans)


def _given_up(address: str, target: Mapping[str, Order], decisions: Decisions) -> bool:
    """Nobody wants the device now: its order is a release, or one that a policy which may not act has frozen."""
    return address in decisions.frozen or (address in target and target[address].intent is Intent.RELEASE)


def _confirmed(order: Order, node: NodeView, state: StateView, silent: frozenset[str]) -> bool:
    """The host has given the device back, by these orders and in this boot."""
    return verdict_on(order, node, state, silent).done


def _order(
    decision: Decision, present: Order | None, maps: Mapping[str, MapView] | None, remarks: list[Remark]
) -> Order | None:
    """The order for a decided device; None: it is left alone, or nothing is known of what it is to become."""
    device, shape = decision.device, decision.shape
    if shape.mode is Mode.UNMANAGED:
        return None
    if shape.mode is Mode.VGPU:
        if maps is None:
            return None
        found = resolved(shape, device, maps)
        if isinstance(found, MapFault):
            remarks.append(Remark(decision.policy, device.address, found.reason, found.message))
            # What is there stays, with the layout that its order knows.
            return None if present is None or present.intent is Intent.RELEASE else present.held()
        shape = found
    return Order(
        device.address,
        _identity(device),
        shape,
        Intent.APPLY,
        decision.on_release,
        decision.policy,
        decision.rule,
    )


def _identity(device: DeviceView) -> Identity:
    return Identity(device.vendor, device.device, device.serial)


def _with_known_serial(device: DeviceView, present: Mapping[str, Order]) -> DeviceView:
    """A device that does not tell its serial number now (it resets, say) is still the one that was ordered there."""
    order = present.get(device.address)
    if device.serial is not None or order is None or order.identity.serial is None:
        return device
    if (order.identity.vendor, order.identity.device) != (device.vendor, device.device):
        return device
    return replace(device, serial=order.identity.serial)


def _current_bindings(node: NodeView, state: StateView) -> Mapping[str, DeviceReportView]:
    report = state.reports.get(Subtree.BINDINGS)
    return report.devices if report is not None and report.boot_id == node.boot_id else {}


def _kept_without_device(order: Order, node: NodeView, policies: Mapping[str, PolicyView]) -> Order | None:
    """The order for a device that is not there, while its rule still means it: a card that fell off is to be seen.

    It uses up no limit, so a spare takes its place. Deleting the node's NPUNodeState forgets a card removed for good.
    """
    policy = policies.get(order.policy)
    if order.intent is Intent.RELEASE or policy is None or policy.spec is None:
        return None
    if not policy.spec.node_selector.matches(node.labels):
        return None
    for rule, shape in zip(policy.spec.devices, policy.shapes, strict=True):
        if rule.name == order.rule and may_match(rule.match, order.address, order.identity):
            if shape.mode is Mode.UNMANAGED:
                return None
            if shape.mode is Mode.VGPU:
                # Which entry of the map would be the card's is not known without the card.
                return order if order.shape.mode is Mode.VGPU else order.held()
            return Order(
                order.address, order.identity, shape, Intent.APPLY, policy.spec.on_release, order.policy, order.rule
            )
    return None


def _on_release(order: Order, policies: Mapping[str, PolicyView]) -> OnRelease:
    """The present wish of the policy that decided, if it still says one."""
    policy = policies.get(order.policy)
    return policy.spec.on_release if policy is not None and policy.spec is not None else order.on_release


def _orphans(bindings: Mapping[str, DeviceReportView], orders: Mapping[str, Order]) -> frozenset[str]:
    """Devices that npufleet changed in this boot and that no order names, by whatever generation's report."""
    return frozenset(
        address
        for address, said in bindings.items()
        if said.reason == ORPHANED and said.former_driver is not None and address not in orders
    )


def _tells_of_orphans(node: NodeView, state: StateView) -> bool:
    """Whether it is known that there are none, where orders remember that something is to be asked or done first."""
    if not any(limits.policy == ORPHANS and limits.removal is not None for limits in state.orders.limits):
        return True
    report = state.reports.get(Subtree.BINDINGS)
    return report is not None and report.boot_id == node.boot_id


def _orphans_released(
    orphans: frozenset[str], inventory: InventoryView, state: StateView, silent: frozenset[str]
) -> Iterable[Order]:
    """Releases for orphans, once the binder has answered the present orders."""
    report = state.reports.get(Subtree.BINDINGS)
    if report is None or report.generation != state.generation or DAEMONS[Subtree.BINDINGS] in silent:
        return
    shape = shape_of(Mode.PASSTHROUGH, DEFAULT_DRIVER_NAME, Passthrough())
    for device in inventory.devices:
        if device.address in orphans:
            identity = _identity(device)
            yield Order(device.address, identity, shape, Intent.RELEASE, OnRelease.RESTORE, ORPHANS, "orphaned")


def _within_bounds(orders: Iterable[Order], present: Mapping[str, Order], decisions: Decisions) -> list[Order]:
    """At most as many orders as the API takes: those in force first, then by address; the rest is reported."""
    ranked = sorted(orders, key=lambda order: (order.address not in present, address_key(order.address)))
    for order in ranked[MAX_DEVICES:]:
        message = f"the node has more than {MAX_DEVICES} devices in policies; this one gets no order"
        decisions.remarks.append(Remark(order.policy, order.address, BlockerReason.TOO_MANY_DEVICES, message))
        decisions.decided.pop(order.address, None)
    return ranked[:MAX_DEVICES]


def _limits(
    names: Iterable[str],
    policies: Mapping[str, PolicyView],
    former: Iterable[RolloutLimits],
    removals: Mapping[str, Removal],
) -> list[RolloutLimits]:
    """The limits of these policies: a policy's own ones, or what they were when it was last seen.

    That its removal is held or was confirmed is remembered here as well, for whoever goes on after this process.
    """
    known = {limits.policy: limits for limits in former}
    for policy in policies.values():
        if policy.spec is not None:
            before = known.get(policy.name)
            limits = RolloutLimits.of(policy.name, policy.spec.rollout)
            known[policy.name] = replace(limits, removal=before.removal) if before is not None else limits
    return [_marked(known.get(name, RolloutLimits(name)), policies, removals) for name in sorted(names)[:MAX_LIMITS]]


def _marked(
    limits: RolloutLimits, policies: Mapping[str, PolicyView], removals: Mapping[str, Removal]
) -> RolloutLimits:
    stands, wanted = limits.removal, removals.get(limits.policy)
    if limits.policy in policies:
        # It is back. That it was held is forgotten only when that is not needed to tell that others are.
        removal = Removal.HELD if stands is wanted is Removal.HELD else None
    elif Removal.CONFIRMED in (stands, wanted):
        removal = Removal.CONFIRMED
    else:
        removal = wanted or stands
    return limits if stands is removal else replace(limits, removal=removal)


def _with_removals(orders: Orders, policies: Mapping[str, PolicyView], removals: Mapping[str, Removal]) -> Orders:
    """Orders as they are; only what is remembered of removals follows: a policy that came back must not be missing
    with anybody's leave when it vanishes another time, and one that is held must stay so.
    """
    marked = tuple(_marked(limits, policies, removals) for limits in orders.limits)
    return orders if marked == orders.limits else replace(orders, limits=marked)
