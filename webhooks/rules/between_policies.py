"""Policies that take each other's devices: early hints, since the controller decides alike whatever comes first."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from crds.catalogue import Catalogue
from crds.models.device_match import DeviceMatch
from crds.models.modes import Mode
from crds.models.node_policy import DeviceRule, NPUNodePolicy, PolicyState
from webhooks.rules.fleet import selected
from webhooks.rules.pointers import EACH
from webhooks.rules.rule import Example, Fault, rule
from webhooks.rules.rule_order import effective_match
from webhooks.rules.selector_logic import within
from webhooks.rules.subject import Subject
from webhooks.rules.subsumption import taken_by
from webhooks.rules.view import UNKNOWN, View
from webhooks.rules.violation import Severity

_KINDS: Final = ("NPUNodePolicy",)
_MOST_POLICIES: Final = 256
"""Every policy is compared with every other one: among more than these nothing is said."""
_SLICES: Final = {Mode.SOFT_VNPU: "soft slices", Mode.HARD_VNPU: "partitions"}


def _other(priority: int, match: str = "{vendors: ['1eff']}", mode: str = "Container", selector: str = "{}") -> str:
    return (
        "apiVersion: npufleet.io/v1alpha1\nkind: NPUNodePolicy\nmetadata: {name: other}\n"
        f"spec: {{priority: {priority}, nodeSelector: {selector}, "
        f"devices: [{{name: a, match: {match}, mode: {mode}}}]}}"
    )


_ANY: Final = DeviceMatch.model_construct()
_RULE: Final = "devices: [{name: a, match: {products: [RBLN-CA25]}, mode: Passthrough}]"


def _others(subject: Subject, view: View) -> Iterator[tuple[str, NPUNodePolicy]]:
    policies, own = view.policies(), subject.name
    if policies is not UNKNOWN and own and len(policies) <= _MOST_POLICIES:
        for name, other in policies.items():
            if name != own and other.spec.state is PolicyState.ACTIVE:
                yield name, other


def _precedence(name: str, policy: NPUNodePolicy) -> tuple[int, str]:
    return (-policy.spec.priority, name)


def _takes_all(winner: NPUNodePolicy, loser: NPUNodePolicy, catalogue: Catalogue) -> bool:
    """Whether the winner decides all devices of the loser, and some of them otherwise, whatever Nodes there are."""
    selects = within(loser.spec.node_selector, winner.spec.node_selector)
    return selects and _takes_devices(winner, loser, catalogue)


def _takes_devices(winner: NPUNodePolicy, loser: NPUNodePolicy, catalogue: Catalogue) -> bool:
    if not _may_take(_reach(_Same(winner)), _reach(_Same(loser))):
        return False
    generals = [found for found in winner.spec.devices if found.limit is None]
    means = [effective_match(found) for found in generals]
    differs = False
    for found in loser.spec.devices:
        takers = taken_by(means, effective_match(found), catalogue)
        if not takers:
            return False
        differs = differs or any(_wish(generals[index]) != _wish(found) for index in takers)
    return differs


class _Same:
    """A policy as a key of a cache: the very same object, never one with the same content."""

    __slots__ = ("policy",)

    def __init__(self, policy: NPUNodePolicy) -> None:
        self.policy = policy

    def __hash__(self) -> int:
        return id(self.policy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.policy is self.policy


@dataclass(frozen=True, slots=True)
class _Reach:
    """Values by list of a match. ``bounds``: every rule without a limit asks for one of them, so that no others count.

    ``needs``: each of them is asked for by some rule, and nothing of the catalogue can stand for it.
    """

    bounds: dict[str, frozenset[object]]
    needs: dict[str, frozenset[object]]


@lru_cache(maxsize=1024)
def _reach(same: _Same) -> _Reach:
    matches = [(found.match, found.limit is None) for found in same.policy.spec.devices]
    generals = [match for match, is_general in matches if is_general]
    bounds, needs = {}, {}
    for name in ("products", "devices", "addresses", "serials", "numa_nodes"):
        if all(getattr(match, name) for match in generals):
            bounds[name] = frozenset(value for match in generals for value in getattr(match, name))
        # A product stands for ids, and ids stand for a product: then only the catalogue can tell.
        translated = {"products": "devices", "devices": "products"}.get(name)
        asking = [match for match, _ in matches if translated is None or not getattr(match, translated)]
        needs[name] = frozenset(value for match in asking for value in getattr(match, name))
    return _Reach(bounds, needs)


def _may_take(winner: _Reach, loser: _Reach) -> bool:
    """False only where some rule of the loser certainly means what no rule of the winner does: two sets tell it."""
    return all(loser.needs[name] <= values for name, values in winner.bounds.items())


def _wish(rule: DeviceRule) -> DeviceRule:
    """What a rule makes of a device, whatever it is called and whichever it means."""
    return rule.model_copy(update={"name": "", "match": _ANY, "limit": None})


def _mine(subject: Subject) -> NPUNodePolicy | None:
    found = subject.model
    return found if isinstance(found, NPUNodePolicy) and found.spec.state is PolicyState.ACTIVE else None


@rule(
    "NPF-NP-111",
    kinds=_KINDS,
    title="another policy does not decide everything that a policy means",
    severity=Severity.WARNING,
    reason=f"""Policies decide device by device, by priority and then by name. A policy that loses every device to
    another decides nothing. Where both want the same of every device there is nothing to lose. Among more than
    {_MOST_POLICIES} policies nothing is compared.""",
    good=(
        Example(_RULE, _other(50)),
        Example(_RULE, _other(200, selector="{matchLabels: {pool: a}}")),
        Example(_RULE, _other(200, match="{products: [RBLN-CA22]}")),
        Example(_RULE, _other(200, mode="Passthrough")),
    ),
    bad=(Example(_RULE, _other(200)),),
)
def loses_everywhere(subject: Subject, view: View) -> Iterator[Fault]:
    mine = _mine(subject)
    if mine is None:
        return
    nodes = view.nodes()
    chosen = {} if nodes is UNKNOWN else selected(mine.spec.node_selector, nodes)
    for name, other in _others(subject, view):
        if _precedence(name, other) > _precedence(subject.name, mine):
            continue
        at_present = bool(chosen) and all(other.spec.node_selector.matches(labels) for labels in chosen.values())
        if _takes_all(other, mine, view.catalogue) or (at_present and _takes_devices(other, mine, view.catalogue)):
            priority = other.spec.priority
            message = f'policy "{name}" (priority {priority}) decides every device that this one means'
            fix = f"raise the priority above {priority}" if priority < 1000 else "the highest priority is 1000"
            yield Fault("/spec/priority", message, f'{fix}, or take the devices out of "{name}"')
            return


@rule(
    "NPF-NP-112",
    kinds=_KINDS,
    title="a policy does not take everything from another",
    severity=Severity.WARNING,
    reason="""A policy that takes every device of another leaves that one without effect: all its devices change at
    the rollout of this one. Where both want the same of every device nothing changes.""",
    good=(
        Example(_RULE, _other(50)),
        Example(_RULE, _other(50, match="{products: [RBLN-CA25], numaNodes: [0]}", mode="Passthrough")),
    ),
    bad=(Example(_RULE, _other(50, match="{products: [RBLN-CA25], numaNodes: [0]}")),),
)
def takes_everything(subject: Subject, view: View) -> Iterator[Fault]:
    mine = _mine(subject)
    if mine is None:
        return
    for name, other in _others(subject, view):
        if _precedence(subject.name, mine) < _precedence(name, other) and _takes_all(mine, other, view.catalogue):
            message = f'policy "{name}" (priority {other.spec.priority}) decides nothing any more: this one takes all'
            yield Fault("/spec/priority", message, f'take the devices out of one of the two, or remove "{name}"')


@rule(
    "NPF-NP-113",
    kinds=_KINDS,
    title="a card is cut in one way",
    severity=Severity.WARNING,
    reason="""Soft slices and partitions of the same card exclude each other. With two policies that ask for both, the
    one with the higher priority decides, and a swap of priorities makes every such card anew.""",
    good=(
        Example(
            "devices: [{name: a, match: {products: [Ascend-310P3]}, mode: HardVNPU}]",
            _other(50, "{products: [Ascend-910B4]}", "HardVNPU"),
        ),
    ),
    bad=(
        Example(
            "devices: [{name: a, match: {products: [Ascend-310P3]}, limit: 2, mode: SoftVNPU, "
            "softVNPU: {library: {name: vcann-rt, version: 1.2.0}}}]",
            _other(50, "{products: [Ascend-310P3], numaNodes: [0]}", "HardVNPU"),
        ),
    ),
)
def soft_and_hard(subject: Subject, view: View) -> Iterator[Fault]:
    mine = _mine(subject)
    own = subject.models(DeviceRule, "spec", "devices", EACH)
    cut = [(at, found) for at, found in own if found.mode in _SLICES]
    if mine is None or not cut:
        return
    for name, other in _others(subject, view):
        wanted = {
            product: found.mode
            for found in other.spec.devices
            if found.mode in _SLICES
            for product in found.match.products
        }
        clashes = [
            (at, product)
            for at, found in cut
            for product in found.match.products
            if wanted.get(product, found.mode) is not found.mode
        ]
        if clashes and _share_nodes(mine, other, view):
            first = name if _precedence(name, other) < _precedence(subject.name, mine) else subject.name
            at, product = clashes[0]
            message = f'policy "{name}" asks for {_SLICES[wanted[product]]} of {product} on the same nodes'
            yield Fault(f"{at}/match/products", message, f'"{first}" decides where both mean a card')


def _share_nodes(one: NPUNodePolicy, other: NPUNodePolicy, view: View) -> bool:
    """Whether both select a Node for sure: one that is there, or any that the other selects."""
    mine, others = one.spec.node_selector, other.spec.node_selector
    nodes = view.nodes()
    if nodes is UNKNOWN:
        return within(mine, others) or within(others, mine)
    return any(others.matches(labels) for labels in selected(mine, nodes).values())
