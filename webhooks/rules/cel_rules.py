"""The CEL rules of the CRDs as rules: found in the schemas, explained here, one id each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from crds.generator.schema import walk
from crds.models.kinds import KINDS
from webhooks.rules.between_fields import VALIDATIONS, Broken, broken_rules, told_id
from webhooks.rules.rule import Check, Example, Fault, Layer, Rule, register
from webhooks.rules.schema_rules import schema_of, written
from webhooks.rules.subject import Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity

_MISPLACED: Final = """A block of another mode would never be used: whoever wrote it meant another mode, or forgot to
take it out."""
_CROSSING: Final = "With the least above the most no pod could ever be let through."


@dataclass(frozen=True, slots=True)
class _Entry:
    title: str
    reason: str
    good: str
    bad: str


def _rule_of(block: str, mode: str = "Container") -> str:
    return f"devices: [{{name: rule, match: {{products: [RBLN-CA25]}}, mode: {mode}, {block}}}]"


_SOFT: Final = "softVNPU: {library: {name: vcann-rt, version: 1.2.0}}"
_ENTRIES: Final[Mapping[str, _Entry]] = {
    "NPF-ALL-031": _Entry(
        "a match says which devices",
        "An empty match would be every device of a node, and `function` alone says nothing about a device.",
        "devices: [{name: rule, match: {vendors: ['1eff'], function: Any}, mode: Container}]",
        "devices: [{name: rule, match: {function: Any}, mode: Container}]",
    ),
    "NPF-ALL-032": _Entry(
        "addresses stand beside what the device is",
        """Addresses move when a card is added or taken out. With the product beside it, another card at the address is
        reported and never touched.""",
        "devices: [{name: rule, match: {products: [RBLN-CA25], addresses: ['0000:23:00.0']}, mode: Container}]",
        "devices: [{name: rule, match: {vendors: ['1eff'], addresses: ['0000:23:00.0']}, mode: Container}]",
    ),
    "NPF-ALL-033": _Entry(
        "device ids stand beside their vendor",
        "A PCI device id is given by its vendor: the same number is another device of another vendor.",
        "devices: [{name: rule, match: {vendors: ['1eff'], devices: ['1250']}, mode: Container}]",
        "devices: [{name: rule, match: {devices: ['1250']}, mode: Container}]",
    ),
    "NPF-NP-001": _Entry(
        "the block passthrough belongs to mode Passthrough",
        _MISPLACED,
        _rule_of("passthrough: {driver: Auto}", "Passthrough"),
        _rule_of("passthrough: {driver: Auto}"),
    ),
    "NPF-NP-002": _Entry(
        "the block vgpu belongs to mode VGPU",
        _MISPLACED,
        "devices: [{name: rule, match: {products: [L40S]}, mode: VGPU, vgpu: {profileMapRef: {name: map}}}]",
        _rule_of("vgpu: {profileMapRef: {name: map}}"),
    ),
    "NPF-NP-003": _Entry(
        "the block softVNPU belongs to mode SoftVNPU",
        _MISPLACED,
        f"devices: [{{name: rule, match: {{products: [Ascend-910B4]}}, mode: SoftVNPU, {_SOFT}}}]",
        _rule_of(_SOFT),
    ),
    "NPF-NP-004": _Entry(
        "the block hardVNPU belongs to mode HardVNPU",
        _MISPLACED,
        "devices: [{name: rule, match: {products: [Ascend-310P3]}, mode: HardVNPU, hardVNPU: {templates: [vir01]}}]",
        _rule_of("hardVNPU: {templates: [vir01]}"),
    ),
    "NPF-NP-005": _Entry(
        "mode VGPU has its block",
        "Without a profile map nobody knows what to make of the card.",
        "devices: [{name: rule, match: {products: [L40S]}, mode: VGPU, vgpu: {profileMapRef: {name: map}}}]",
        "devices: [{name: rule, match: {products: [L40S]}, mode: VGPU}]",
    ),
    "NPF-NP-006": _Entry(
        "mode SoftVNPU has its block",
        "Soft slices run under a library of a version that somebody has to choose.",
        f"devices: [{{name: rule, match: {{products: [Ascend-910B4]}}, mode: SoftVNPU, {_SOFT}}}]",
        "devices: [{name: rule, match: {products: [Ascend-910B4]}, mode: SoftVNPU}]",
    ),
    "NPF-NP-007": _Entry(
        "virtual functions are given by cards",
        "A virtual function has no virtual functions of its own.",
        "devices: [{name: rule, match: {products: [FLEX_170]}, mode: Passthrough, passthrough: {virtualFunctions: 4}}]",
        "devices: [{name: rule, match: {products: [FLEX_170], function: Virtual}, mode: Passthrough, "
        "passthrough: {virtualFunctions: 4}}]",
    ),
    "NPF-NP-008": _Entry(
        "each rule of a policy has its own name",
        "Status and messages name a rule; with two of one name nobody knows which is meant.",
        "devices: [{name: a, match: {products: [L40S]}, mode: Container}, "
        "{name: b, match: {products: [A40]}, mode: Container}]",
        "devices: [{name: a, match: {products: [L40S]}, mode: Container}, "
        "{name: a, match: {products: [A40]}, mode: Container}]",
    ),
    "NPF-NP-009": _Entry(
        "a requirement has values where its operator compares",
        "In and NotIn compare with values; Exists and DoesNotExist look at the key alone.",
        "{nodeSelector: {matchExpressions: [{key: pool, operator: Exists}]}, "
        "devices: [{name: a, match: {products: [L40S]}, mode: Container}]}",
        "{nodeSelector: {matchExpressions: [{key: pool, operator: In}]}, "
        "devices: [{name: a, match: {products: [L40S]}, mode: Container}]}",
    ),
    "NPF-NP-010": _Entry(
        "keys of matchLabels are label keys",
        "No Node can carry a label of another form: the policy would select nothing.",
        "{nodeSelector: {matchLabels: {example.com/pool: a}}, "
        "devices: [{name: a, match: {products: [L40S]}, mode: Container}]}",
        "{nodeSelector: {matchLabels: {'not a key': a}}, "
        "devices: [{name: a, match: {products: [L40S]}, mode: Container}]}",
    ),
    "NPF-VQ-001": _Entry(
        "keys of profiles are profile names",
        "No vGPU has a profile of a name of another form: the limit would hold for nothing.",
        "limits: {profiles: {L40S-24Q: 2}}",
        "limits: {profiles: {L40S 24Q: 2}}",
    ),
    "NPF-VQ-002": _Entry(
        "minCores is not above maxCores",
        _CROSSING,
        "perPod: {minCores: 20, maxCores: 50}",
        "perPod: {minCores: 50, maxCores: 20}",
    ),
    "NPF-VQ-003": _Entry(
        "minDevices is not above maxDevices",
        _CROSSING,
        "perPod: {minDevices: 1, maxDevices: 2}",
        "perPod: {minDevices: 2, maxDevices: 1}",
    ),
    "NPF-VQ-004": _Entry(
        "the match of a quota says which devices",
        "An empty match could mean all devices or none; without a match all are charged.",
        "{match: {products: [L40S]}, limits: {devices: 1}}",
        "{match: {}, limits: {devices: 1}}",
    ),
}


def _broken(subject: Subject) -> list[Broken]:
    before = () if subject.old is None else (written(subject.old),)
    return list(broken_rules(schema_of(subject.kind.model), written(subject.content), *before))


def _check(id: str) -> Check:
    def find(subject: Subject, _: View) -> Iterator[Fault]:
        for broken in subject.once(_broken):
            if broken.id == id:
                yield Fault(broken.pointer, broken.message)

    return find


@cache
def kinds_by_id() -> Mapping[str, tuple[str, ...]]:
    """The kinds in whose schemas each CEL rule stands, by the rule's id; "" for rules without one."""
    found: dict[str, dict[str, None]] = {}
    for kind in KINDS:
        for _, node in walk(dict(schema_of(kind.model))):
            for validation in node.get(VALIDATIONS, ()):
                found.setdefault(told_id(validation["message"])[0], {})[kind.name] = None
    return {id: tuple(names) for id, names in found.items()}


def _register() -> None:
    for id, kinds in kinds_by_id().items():
        if id not in _ENTRIES:
            raise ValueError(f"nothing explains the CEL rule {id or 'without an id'} of {', '.join(kinds)}")
        entry = _ENTRIES[id]
        examples = (Example(entry.good),), (Example(entry.bad),)
        reason = " ".join(entry.reason.split())
        register(Rule(id, kinds, Layer.CEL, Severity.ERROR, entry.title, reason, *examples, _check(id)))


_register()
