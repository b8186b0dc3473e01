"""A profile map that takes vGPUs away from VMs that hold them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from crds.catalogue import Catalogue
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import CardLayout, ProfileMapStatus
from crds.models.rollout import Drain
from webhooks.rules.pointers import EACH
from webhooks.rules.references import referring
from webhooks.rules.rule import Example, Fault, rule
from webhooks.rules.subject import Content, Operation, Subject, part
from webhooks.rules.subsumption import apart, covers
from webhooks.rules.view import UNKNOWN, View
from webhooks.rules.violation import Severity

_POLICY: Final = """
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata: {name: vgpu}
spec:
  nodeSelector: {}
  devices: [{name: l40s, match: {products: [L40S]}, mode: VGPU, vgpu: {profileMapRef: {name: example}}}]
"""
_TWO: Final = "gpus: [{match: {products: [L40S]}, layout: [{profile: L40S-24Q, count: 2}]}]"
_LIVE: Final = (
    "apiVersion: npufleet.io/v1alpha1\nkind: VGPUProfileMap\nmetadata: {name: example, uid: as-in-a-cluster}\n"
    f"spec: {{{_TWO}}}\n"
)
_ONE: Final = "gpus: [{match: {products: [L40S]}, layout: [{profile: L40S-24Q, count: 1}]}]"
_OTHER: Final = "gpus: [{match: {products: [L40S]}, layout: [{profile: L40S-48Q, count: 1}]}]"


@rule(
    "NPF-PM-121",
    kinds=("VGPUProfileMap",),
    title="a profile map in use keeps the vGPUs that VMs hold",
    reason="""A map that a policy refers to says which vGPUs the cards carry. Fewer of a profile than before means that
    some have to go. While VMs hold more than remain on a card, or nobody can say how many they hold, that is refused,
    unless every such policy lets nodes be drained (`rollout.drain: IfInUse`): then it is a warning. A change that no
    drain may make way for would stay Blocked for as long as the VMs run. Between two versions of a file nobody knows
    what is in use, and lint only warns.""",
    good=(
        Example(_TWO, _POLICY, old=_ONE),
        Example(_ONE, "", old=_TWO),
        Example(
            _ONE,
            _POLICY,
            old=_LIVE + "status: {profiles: [{profile: L40S-24Q, desired: 2, ready: 2, failed: 0, inUse: 0}]}",
        ),
    ),
    bad=(
        Example(_ONE, _POLICY, old=_LIVE),
        Example(_OTHER, _POLICY, old=_LIVE),
        Example(_ONE, _POLICY + "  rollout: {drain: IfInUse}\n", old=_LIVE),
        Example(_ONE, _POLICY, old=_TWO),
    ),
)
def narrowed(subject: Subject, view: View) -> Iterator[Fault]:
    policies = view.policies()
    if subject.operation is not Operation.UPDATE or subject.old is None or policies is UNKNOWN:
        return
    users = referring(subject.name, policies)
    if not users or _selects_nothing(users, view):
        return
    status = part(ProfileMapStatus, subject.old.get("status"))
    for at, profile, before, now in _narrowed(subject, view.catalogue):
        held = _held(status, profile)
        if held is not None and held <= now:
            continue
        holders = f"{held} of them are in use" if held else "nobody can say that none is in use"
        message = f"{before} of {profile} on a card become {now} while {holders}, and {_named(users)}"
        if not _is_live(subject.old):
            yield Fault(at, message, "free them before it is applied, if there are any", Severity.WARNING)
            continue
        closed = [name for name, policy in users.items() if policy.spec.rollout.drain is not Drain.IF_IN_USE]
        if closed:
            fix = f"free them first, or set rollout.drain to IfInUse in {', '.join(closed)}"
            yield Fault(at, message, fix)
        else:
            yield Fault(at, message, "nodes are drained for it, as the policy allows", Severity.WARNING)


def _is_live(old: Content) -> bool:
    """Whether the old object came from an API server, which gives each a UID, and not from a file."""
    metadata = old.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("uid"))


def _selects_nothing(users: Mapping[str, NPUNodePolicy], view: View) -> bool:
    """Whether the policies have no Node at present among those that there are."""
    nodes = view.nodes()
    if nodes is UNKNOWN or not nodes:
        return False
    return not any(policy.spec.node_selector.matches(labels) for policy in users.values() for labels in nodes.values())


def _named(users: Mapping[str, NPUNodePolicy]) -> str:
    names = ", ".join(f'"{name}"' for name in users)
    return f"policy {names} refers to the map" if len(users) == 1 else f"policies {names} refer to the map"


def _held(status: ProfileMapStatus | None, profile: str) -> int | None:
    """How many vGPUs of the profile VMs hold; None when no controller has told."""
    if status is None or (not status.profiles and status.totals is None):
        return None
    return next((counts.in_use for counts in status.profiles if counts.profile == profile), 0)


def _narrowed(subject: Subject, catalogue: Catalogue) -> Iterator[tuple[str, str, int, int]]:
    """Place, profile, old and new count for each profile of which some card may carry fewer than before."""
    present = subject.models(CardLayout, "spec", "gpus", EACH)
    told = set()
    for _, old in subject.before().models(CardLayout, "spec", "gpus", EACH):
        before = _counts(old)
        for at, now in _deciding(old, present, catalogue):
            for profile, count in before.items():
                if now[profile] < count and (at, profile) not in told:
                    told.add((at, profile))
                    yield at, profile, count, now[profile]


def _deciding(
    old: CardLayout, present: list[tuple[str, CardLayout]], catalogue: Catalogue
) -> Iterator[tuple[str, Counter[str]]]:
    """What the new map has for cards that the old entry means: each entry that may decide some of them."""
    for at, entry in present:
        if apart(entry.match, old.match, catalogue):
            continue
        yield f"{at}/layout", _counts(entry)
        if covers(entry.match, old.match, catalogue):
            return
    yield "/spec/gpus", Counter()


def _counts(entry: CardLayout) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in entry.layout:
        counts[item.profile] += item.count
    return counts
