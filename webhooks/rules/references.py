"""Profile maps that policies refer to: whether they are there, and whether they speak of the policy's cards."""

from collections.abc import Iterator, Mapping
from typing import Final

from crds.models.modes import Mode
from crds.models.node_policy import DeviceRule, NPUNodePolicy
from crds.near_matches import did_you_mean
from webhooks.rules.pointers import EACH
from webhooks.rules.rule import Example, Fault, Layer, rule
from webhooks.rules.subject import Subject
from webhooks.rules.subsumption import apart
from webhooks.rules.view import UNKNOWN, View
from webhooks.rules.violation import Severity

_RULE: Final = "devices: [{name: a, match: {products: [L40S]}, mode: VGPU, vgpu: {profileMapRef: {name: halves}}}]"
_MAP: Final = """
apiVersion: npufleet.io/v1alpha1
kind: VGPUProfileMap
metadata: {name: halves}
spec: {gpus: [{match: {products: [L40S]}, layout: [{profile: L40S-24Q, count: 2}]}]}
"""
_ANOTHER: Final = _MAP.replace("name: halves", "name: halfs")
_OF_A40: Final = _MAP.replace("L40S", "A40")


def referring(name: str, policies: Mapping[str, NPUNodePolicy]) -> dict[str, NPUNodePolicy]:
    """The policies that refer to the profile map of that name."""
    return {
        policy: model
        for policy, model in sorted(policies.items())
        if any(found.vgpu is not None and found.vgpu.profile_map_ref.name == name for found in model.spec.devices)
    }


def _dangling(subject: Subject, view: View) -> Iterator[tuple[str, str, str]]:
    maps = view.profile_maps()
    if maps is not UNKNOWN:
        for at, name in subject.each("spec", "devices", EACH, "vgpu", "profileMapRef", "name"):
            if isinstance(name, str) and name not in maps:
                yield at, name, did_you_mean(name, maps).removeprefix("; ")


@rule(
    "NPF-NP-121",
    kinds=("NPUNodePolicy",),
    title="the profile map that a policy refers to is there",
    severity=Severity.WARNING,
    reason="""Without its map a rule of mode VGPU changes nothing. The server only warns: files of one commit arrive one
    after the other, and the map may come next. Where the whole set of files is known, NPF-NP-151 makes it an error.""",
    good=(Example(_RULE, _MAP), _RULE),
    bad=(Example(_RULE, _ANOTHER),),
)
def not_there(subject: Subject, view: View) -> Iterator[Fault]:
    for at, name, near in _dangling(subject, view):
        yield Fault(at, f'there is no VGPUProfileMap "{name}"', near or "the rule waits until there is one")


@rule(
    "NPF-NP-151",
    kinds=("NPUNodePolicy",),
    layer=Layer.LINT,
    supersedes="NPF-NP-121",
    title="the profile map that a policy refers to is among the files",
    reason="""A set of files that is applied as a whole has the maps that its policies refer to. A map that was taken
    out while a policy refers to it would be pruned: the server never refuses a deletion, so it has to be said here.""",
    good=(Example(_RULE, _MAP), _RULE),
    bad=(Example(_RULE, _ANOTHER),),
)
def not_among_files(subject: Subject, view: View) -> Iterator[Fault]:
    for at, name, near in _dangling(subject, view):
        yield Fault(at, f'there is no VGPUProfileMap "{name}" in the set', near or "add it, or take the rule out")


@rule(
    "NPF-NP-122",
    kinds=("NPUNodePolicy",),
    title="the profile map has a layout for the cards of the rule",
    severity=Severity.WARNING,
    reason="""A card of the rule for which the map has no entry is taken from everybody else and gets no vGPU.""",
    good=(Example(_RULE, _MAP),),
    bad=(Example(_RULE, _OF_A40),),
)
def without_layout(subject: Subject, view: View) -> Iterator[Fault]:
    maps = view.profile_maps()
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        if found.mode is not Mode.VGPU or found.vgpu is None or maps is UNKNOWN:
            continue
        name = found.vgpu.profile_map_ref.name
        there = maps.get(name)
        if there is not None and all(apart(entry.match, found.match, view.catalogue) for entry in there.spec.gpus):
            message = f'the map "{name}" has no entry for any card of rule "{found.name}"'
            yield Fault(f"{at}/vgpu/profileMapRef/name", message, "add one to the map, or refer to another")
