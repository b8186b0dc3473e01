"""Rules and entries that can never match, because those before them take every device that they mean."""

from collections.abc import Iterator

from crds.models.device_match import DeviceMatch
from crds.models.node_policy import DeviceRule
from webhooks.rules.pointers import EACH
from webhooks.rules.rule import Fault, rule
from webhooks.rules.subject import Subject
from webhooks.rules.subsumption import physical_only, taken_by
from webhooks.rules.view import View


def effective_match(rule: DeviceRule) -> DeviceMatch:
    """What a rule means: one that gives virtual functions means no virtual function itself."""
    gives = rule.passthrough is not None and rule.passthrough.virtual_functions is not None
    return physical_only(rule.match) if gives else rule.match


@rule(
    "NPF-NP-103",
    kinds=("NPUNodePolicy",),
    title="every rule can match a device",
    reason="""The first rule that matches a device decides it. A rule after others without a limit that take every
    device that it means never decides anything: the more special rule belongs first.""",
    good=(
        """
        devices:
        - {name: to-vms, match: {products: [RBLN-CA25]}, limit: 2, mode: Passthrough}
        - {name: the-rest, match: {vendors: ["1eff"]}, mode: Container}
        """,
    ),
    bad=(
        """
        devices:
        - {name: all, match: {vendors: ["1eff"]}, mode: Container}
        - {name: to-vms, match: {products: [RBLN-CA25]}, limit: 2, mode: Passthrough}
        """,
        """
        devices:
        - {name: large, match: {products: [RBLN-CA25]}, mode: Container}
        - {name: small, match: {vendors: ["1eff"], devices: ["1220"]}, mode: Container}
        - {name: to-vms, match: {products: [RBLN-CA22, RBLN-CA25]}, mode: Passthrough}
        """,
    ),
)
def rules_never_reached(subject: Subject, view: View) -> Iterator[Fault]:
    before: list[tuple[str, DeviceMatch]] = []
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        means = effective_match(found)
        takers = taken_by([match for _, match in before], means, view.catalogue)
        if takers:
            names = _listed([before[index][0] for index in takers])
            verb = "takes" if len(takers) == 1 else "take"
            message = f'rule "{found.name}" can never match: {names} before it {verb} every device that it means'
            fix = f"put it before {'that' if len(takers) == 1 else 'those'}, or give {names} a limit"
            yield Fault(f"{at}/match", message, fix)
        elif found.limit is None:
            before.append((f'rule "{found.name}"', means))


@rule(
    "NPF-PM-103",
    kinds=("VGPUProfileMap",),
    title="every entry of a profile map can match a card",
    reason="""The first entry that matches a card decides its layout. An entry after others that take every card that it
    means never decides anything: the more special entry belongs first.""",
    good=(
        """
        gpus:
        - {match: {products: [L40S], numaNodes: [0]}, layout: [{profile: L40S-24Q, count: 2}]}
        - {match: {products: [L40S]}, layout: [{profile: L40S-48Q, count: 1}]}
        """,
    ),
    bad=(
        """
        gpus:
        - {match: {vendors: ["10de"], devices: ["26b9"]}, layout: [{profile: L40S-48Q, count: 1}]}
        - {match: {products: [L40S], numaNodes: [0]}, layout: [{profile: L40S-24Q, count: 2}]}
        """,
    ),
)
def entries_never_reached(subject: Subject, view: View) -> Iterator[Fault]:
    before: list[tuple[str, DeviceMatch]] = []
    for at, found in subject.models(DeviceMatch, "spec", "gpus", EACH, "match"):
        entry = at.split("/")[3]
        takers = taken_by([match for _, match in before], found, view.catalogue)
        if takers:
            names = _listed([before[index][0] for index in takers])
            verb = "takes" if len(takers) == 1 else "take"
            message = f"gpus[{entry}] can never match: {names} before it {verb} every card that it means"
            fix = f"put it before {'that one' if len(takers) == 1 else 'those'}, or take it out"
            yield Fault(at, message, fix)
        else:
            before.append((f"gpus[{entry}]", found))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
