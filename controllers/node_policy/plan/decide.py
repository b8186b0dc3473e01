"""Who decides which device of one node: policies by precedence, rules in their order, limits, and who lost what.

Within a policy the first matching rule wins; between policies the higher precedence wins, device by device. A card that
gives its virtual functions to VMs takes them along, save for those that a rule before it has decided. Orders of
policies that may not act (paused, unreadable, missing in great number) are frozen: nobody else gets their devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controllers.node_policy.plan.match import matches, of_kind
from controllers.node_policy.plan.orders import Order, Shape, address_key
from controllers.node_policy.plan.profile_maps import same_wish
from controllers.node_policy.plan.view import BlockerReason, DeviceReportView, DeviceView, NodeView, PolicyView
from crds.models.device_match import Function
from crds.models.modes import OnRelease
from crds.models.node_policy import DeviceRule, NodePolicySpec
from crds.models.node_state import DeviceState, Intent


@dataclass(frozen=True, slots=True)
class Decision:
    """One policy's rule decided one device."""

    device: DeviceView
    policy: str
    rule: str
    shape: Shape
    on_release: OnRelease


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to tell the author of a policy about a device. It stands in nobody's way, unlike a blocked device."""

    policy: str
    address: str
    reason: BlockerReason
    message: str


@dataclass(frozen=True, slots=True)
class Clash:
    """Two rules would decide one device differently; `winner` did."""

    winner: str
    winner_rule: str
    loser: str
    loser_rule: str


@dataclass(slots=True)
class Decisions:
    """The outcome for one node. `frozen` are present orders that stay as they are, whoever wants the device.

    `claims` are devices that a paused policy would have, and has no order for: nothing is done with them.
    """

    decided: dict[str, Decision] = field(default_factory=dict)
    claims: dict[str, Decision] = field(default_factory=dict)
    frozen: dict[str, Order] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)


def decide(
    node: NodeView,
    devices: Iterable[DeviceView],
    policies: Sequence[PolicyView],
    held: frozenset[str],
    present: Mapping[str, Order],
    bindings: Mapping[str, DeviceReportView],
) -> Decisions:
    """Decide the devices of `node`'s inventory.

    `policies`: all of them, by precedence. `held`: names of missing policies whose orders are kept. `present`: the
    orders in force by address. `bindings`: what the binder said of them, in whatever boot and generation.
    """
    result = Decisions()
    unreadable = {policy.name for policy in policies if policy.spec is None}
    for address, order in present.items():
        if order.policy in unreadable or (order.policy in held and order.intent is not Intent.RELEASE):
            result.frozen[address] = order.held()
    walk = _Walk(sorted(devices, key=lambda device: address_key(device.address)), present, bindings, held, result)
    for policy in policies:
        spec = policy.spec
        if spec is None:
            continue
        selected = spec.node_selector.matches(node.labels)
        if policy.paused:
            walk.pause(policy, spec, selected)
        elif selected:
            walk.act(policy, spec)
    return result


@dataclass(slots=True)
class _Walk:
    devices: list[DeviceView]
    present: Mapping[str, Order]
    bindings: Mapping[str, DeviceReportView]
    held: frozenset[str]
    result: Decisions
    # Devices that a paused policy claims without having them: open to the policy that has them now, to no other.
    claimed: dict[str, str] = field(default_factory=dict)

    def act(self, policy: PolicyView, spec: NodePolicySpec) -> None:
        chosen, counts = self._choose(policy, spec, {})
        self.result.decided.update(chosen)
        self._note_losses(policy, spec, counts)
        self._note_other_kinds(policy, spec)

    def pause(self, policy: PolicyView, spec: NodePolicySpec, selected: bool) -> None:
        kept: dict[str, int] = {}
        for address, order in self.present.items():
            if order.policy == policy.name and address not in self.result.decided:
                self.result.frozen.setdefault(address, order.held())
                if order.intent is not Intent.RELEASE:
                    kept[order.rule] = kept.get(order.rule, 0) + 1
        if not selected:
            return
        chosen, counts = self._choose(policy, spec, kept)
        for address, decision in chosen.items():
            holder = self.present.get(address)
            self.claimed[address] = holder.policy if holder is not None else ""
            self.result.claims[address] = decision
        self._note_losses(policy, spec, counts)
        self._note_other_kinds(policy, spec)

    def _choose(
        self, policy: PolicyView, spec: NodePolicySpec, kept: Mapping[str, int]
    ) -> tuple[dict[str, Decision], dict[str, int]]:
        """The free devices that the policy's rules take, and how many each rule has (`kept` is where they start)."""
        chosen: dict[str, Decision] = {}
        counts = dict(kept)
        free = [device for device in self.devices if self._free(device, policy.name)]
        for rule, shape in zip(spec.devices, policy.shapes, strict=True):
            candidates = [d for d in free if d.address not in chosen and _means(rule, shape, d)]
            candidates = [d for d in candidates if d.card not in chosen or not chosen[d.card].shape.gives_functions]
            if rule.limit is not None:
                room = rule.limit - counts.get(rule.name, 0)
                candidates = self._within_limit(policy, rule, shape, candidates, room)
            for device in candidates:
                chosen[device.address] = Decision(device, policy.name, rule.name, shape, spec.on_release)
            counts[rule.name] = counts.get(rule.name, 0) + len(candidates)
        return chosen, counts

    def _free(self, device: DeviceView, policy: str) -> bool:
        return (
            device.address not in self.result.decided
            and device.address not in self.result.frozen
            and self.claimed.get(device.address, policy) == policy
            and self._holder_of_card(device) is None
        )

    def _within_limit(
        self, policy: PolicyView, rule: DeviceRule, shape: Shape, candidates: list[DeviceView], room: int
    ) -> list[DeviceView]:
        """What the rule has already comes first, then the lowest address; devices that cannot be had do not count."""
        own = [device for device in candidates if self._has(policy.name, rule.name, shape, device)]
        others = [device for device in candidates if device not in own and _obstacle(device, shape) is None]
        taken = [*own, *others][: max(room, 0)]
        passed_by = [device for device in candidates if device not in taken and device not in own]
        if len(taken) >= room:
            # Those beyond the last one that was taken were not passed by for what stands in their way.
            last = max((address_key(device.address) for device in taken), default=(-1, ""))
            passed_by = [device for device in passed_by if address_key(device.address) < last]
        for device in passed_by:
            obstacle = _obstacle(device, shape)
            if obstacle is not None:
                message = f"{obstacle[1]}; not counted in limit {rule.limit} of rule {rule.name}"
                self.result.remarks.append(Remark(policy.name, device.address, obstacle[0], message))
        return taken

    def _has(self, policy: str, rule: str, shape: Shape, device: DeviceView) -> bool:
        """The rule has the device already, unless others use it and it could for that reason never be moved."""
        order = self.present.get(device.address)
        if order is None or order.intent is Intent.RELEASE or (order.policy, order.rule) != (policy, rule):
            return False
        report = self.bindings.get(device.address)
        kept_back = order.intent is Intent.HOLD and report is not None and report.state is DeviceState.PENDING
        blocked = report is not None and report.state is DeviceState.BLOCKED
        untouched = report is not None and (blocked or kept_back) and report.former_driver is None
        return not (untouched and _obstacle(device, shape) is not None)

    def _note_losses(self, policy: PolicyView, spec: NodePolicySpec, counts: Mapping[str, int]) -> None:
        """Devices that another policy has and that this one would have made something else of."""
        for device in self.devices:
            winner = self._holder(device.address) or self._holder_of_card(device)
            if winner is None or winner[0] == policy.name:
                continue
            wish = _wish(policy, spec, device, counts)
            if wish is None:
                continue
            wanted, wanted_shape = wish
            name, rule, shape = winner
            if name in self.held:
                message = (
                    f"held as {shape.mode}: policy {name}, which decided it, does not exist; condition RemovalHeld "
                    "of the NPUNodeState has the command that confirms its removal"
                )
                self.result.remarks.append(Remark(policy.name, device.address, BlockerReason.REMOVAL_HELD, message))
            elif not same_wish(wanted_shape, shape):
                self.result.clashes.append(Clash(name, rule, policy.name, wanted))

    def _holder(self, address: str) -> tuple[str, str, Shape] | None:
        order = self.result.frozen.get(address)
        if order is not None:
            return order.policy, order.rule, order.shape
        decision = self.result.decided.get(address) or self.result.claims.get(address)
        return (decision.policy, decision.rule, decision.shape) if decision is not None else None

    def _holder_of_card(self, device: DeviceView) -> tuple[str, str, Shape] | None:
        """Who has a virtual function together with its card."""
        holder = self._holder(device.card) if device.card is not None else None
        return holder if holder is not None and holder[2].gives_functions else None

    def _note_other_kinds(self, policy: PolicyView, spec: NodePolicySpec) -> None:
        for rule in spec.devices:
            for device in self.devices:
                if device.address in rule.match.addresses and not of_kind(rule.match, device):
                    found = f"{device.vendor}:{device.device}" + (f" ({device.product})" if device.product else "")
                    message = f"rule {rule.name} means another kind of device than the {found} that is there now"
                    self.result.remarks.append(
                        Remark(policy.name, device.address, BlockerReason.ADDRESS_OF_ANOTHER_KIND, message)
                    )


def _wish(
    policy: PolicyView, spec: NodePolicySpec, device: DeviceView, counts: Mapping[str, int]
) -> tuple[str, Shape] | None:
    """The rule that would decide the device if it were free, and what it would become."""
    for rule, shape in zip(spec.devices, policy.shapes, strict=True):
        if not _means(rule, shape, device):
            continue
        if rule.limit is None or (counts.get(rule.name, 0) < rule.limit and _obstacle(device, shape) is None):
            return rule.name, shape
    return None


def _means(rule: DeviceRule, shape: Shape, device: DeviceView) -> bool:
    """Whether the rule means the device. A virtual function has no virtual functions to give."""
    return matches(rule.match, device) and not (shape.gives_functions and device.function is Function.VIRTUAL)


def _obstacle(device: DeviceView, shape: Shape) -> tuple[BlockerReason, str] | None:
    """Why the device cannot be had at present for what it is to become, as reason and text."""
    if device.vetoes:
        return BlockerReason.VETOED, f"needed by the host: {device.vetoes[0]}"
    if device.users:
        return BlockerReason.IN_USE, f"in use by {device.users[0]}"
    if device.own_functions and not shape.gives_functions:
        return BlockerReason.IN_USE, f"in use by {device.own_functions}"
    return None
