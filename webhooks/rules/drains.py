"""Rollout settings that cannot do what they say."""

from collections.abc import Iterator
from typing import Final

from crds.models.rollout import Drain, Rollout
from webhooks.rules.rule import Fault, rule
from webhooks.rules.subject import Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity

_KINDS: Final = ("NPUNodePolicy",)
_DEVICES: Final = "devices: [{name: a, match: {products: [RBLN-CA25]}, mode: Container}]"
_GRACE_SECONDS: Final = 30
"""terminationGracePeriodSeconds of a pod that says nothing (Kubernetes API reference, PodSpec)."""


def _with(rollout: str) -> str:
    return f"{{{_DEVICES}, rollout: {rollout}}}"


def _rollout(subject: Subject) -> Rollout | None:
    return next((found for _, found in subject.models(Rollout, "spec", "rollout")), None)


@rule(
    "NPF-NP-131",
    kinds=_KINDS,
    title="a drain timeout stands beside a drain",
    severity=Severity.WARNING,
    reason="""With `drain: Never`, which holds where nothing is said, no node is ever drained: the timeout is of no
    effect, and a change of a device in use waits for as long as it is used.""",
    good=(_with("{drain: IfInUse, drainTimeoutSeconds: 600}"),),
    bad=(_with("{drainTimeoutSeconds: 600}"), _with("{drain: Never, drainTimeoutSeconds: 600}")),
)
def timeout_without_drain(subject: Subject, _: View) -> Iterator[Fault]:
    found = _rollout(subject)
    if found is not None and found.drain is Drain.NEVER and "drain_timeout_seconds" in found.model_fields_set:
        message = "there is no drain that could time out: drain is Never"
        yield Fault("/spec/rollout/drainTimeoutSeconds", message, "set drain to IfInUse, or leave the timeout out")


@rule(
    "NPF-NP-132",
    kinds=_KINDS,
    title="a drain may take less time than progress may",
    severity=Severity.WARNING,
    reason="""A policy without progress for `progressDeadlineSeconds` is Degraded. A drain that may take as long makes
    it so while everything is still as it should be. Absent, the deadline is 900 seconds and the timeout 600.""",
    good=(_with("{drain: IfInUse, drainTimeoutSeconds: 1800, progressDeadlineSeconds: 3600}"),),
    bad=(
        _with("{drain: IfInUse, drainTimeoutSeconds: 1800}"),
        _with("{drain: IfInUse, progressDeadlineSeconds: 300}"),
    ),
)
def drain_beyond_deadline(subject: Subject, _: View) -> Iterator[Fault]:
    found = _rollout(subject)
    if found is None or found.drain is Drain.NEVER:
        return
    timeout, deadline = found.drain_timeout_seconds, found.progress_deadline_seconds
    if timeout >= deadline:
        message = f"a drain may take {timeout} s, and after {deadline} s without progress the policy is Degraded"
        fix = "let progressDeadlineSeconds be larger than drainTimeoutSeconds"
        stated = "drain_timeout_seconds" in found.model_fields_set
        yield Fault(f"/spec/rollout/{'drainTimeoutSeconds' if stated else 'progressDeadlineSeconds'}", message, fix)


@rule(
    "NPF-NP-133",
    kinds=_KINDS,
    title="a rollout that drains leaves nodes in service",
    severity=Severity.WARNING,
    reason="""With `maxUnavailable: 100%` every node of the policy may be drained at the same time.""",
    good=(_with("{drain: IfInUse, maxUnavailable: 10%}"), _with("{maxUnavailable: 100%}")),
    bad=(_with("{drain: IfInUse, maxUnavailable: 100%}"),),
)
def all_at_once(subject: Subject, _: View) -> Iterator[Fault]:
    found = _rollout(subject)
    if found is not None and found.drain is not Drain.NEVER and found.max_unavailable == "100%":
        message = "every node of the policy may be drained at once"
        yield Fault("/spec/rollout/maxUnavailable", message, "take a smaller share, e.g. 10%")


@rule(
    "NPF-NP-134",
    kinds=_KINDS,
    title="a drain has time for pods to end",
    severity=Severity.WARNING,
    reason=f"""A pod that says nothing has {_GRACE_SECONDS} seconds to end after its eviction. A drain that is given up
    before that is in vain, and is tried again and again.""",
    good=(_with("{drain: IfInUse, drainTimeoutSeconds: 300}"),),
    bad=(_with("{drain: IfInUse, drainTimeoutSeconds: 20}"),),
)
def too_short(subject: Subject, _: View) -> Iterator[Fault]:
    found = _rollout(subject)
    if found is not None and found.drain is not Drain.NEVER and found.drain_timeout_seconds < _GRACE_SECONDS:
        message = f"{found.drain_timeout_seconds} s are less than the {_GRACE_SECONDS} s that a pod has to end"
        yield Fault("/spec/rollout/drainTimeoutSeconds", message, "give it at least a minute")
