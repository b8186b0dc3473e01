"""One review: what is asked is judged by the rules, and answered. Pure; whether it is a dry run is not even looked at.

What is judged is what the rules can say: a request for something else is let through, because a configuration that asks
too much must not stop a cluster; and what cannot be judged though it is ours is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from crds.break_glass import GROUP as BREAK_GLASS_GROUP
from crds.break_glass import REASON_ANNOTATION, UNTIL_ANNOTATION
from crds.models.base import API_VERSION, GROUP, VERSION
from crds.models.kinds import BY_NAME, Kind
from webhooks.rules import Operation, Severity, Subject, View, Violation
from webhooks.rules.judge import StillTime, judge_change
from webhooks.rules.list_bounds import beyond_bounds
from webhooks.server.answer import Answer, allowed, annotations_of, denied, refused, warnings_of
from webhooks.server.request import API_VERSION as REVIEW_VERSION
from webhooks.server.request import Request

JUDGED: Final = ("NPUNodePolicy", "VGPUProfileMap", "VNPUQuota")
"""The kinds that people write; the others of the group are written by processes, and guarded by policies."""
ORDERS: Final = "NPUNodeState"
"""What processes write, and in an emergency people: only then it is judged."""
OTHER: Final = "other"

_BAD_REQUEST: Final = 400
_TOO_LARGE: Final = 413
_INVALID: Final = 422
_BREAK_GLASS: Final = (REASON_ANNOTATION, UNTIL_ANNOTATION)
_OPERATIONS: Final = {one.value: one for one in Operation}


class RememberingView(View, Protocol):
    """A view that knows what it was asked and could not tell."""

    @property
    def missed(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer, with what is counted: `kind` is one of JUDGED, ORDERS or OTHER, `verdict` is allowed,
    denied, passed or refused.

    `passed` was not judged, `refused` could not be.
    """

    answer: Answer
    kind: str
    verdict: str
    broken: tuple[str, ...] = ()
    """Ids of the rules that refuse it."""


def review(
    request: Request,
    view: RememberingView,
    *,
    rules: str,
    clock: Callable[[], float],
    still_time: StillTime = lambda: True,
) -> Outcome:
    """Judge and answer. `rules` is the version of the rules, `clock` tells how long it took. Raises OutOfTimeError when
    `still_time` says no before there is a verdict."""
    label = _label(request)
    kind = BY_NAME.get(label)
    fault = _fault(request, kind)
    if fault is not None:
        return Outcome(refused(request, _BAD_REQUEST, "BadRequest", fault), label, "refused")
    if kind is None:
        told = f"npufleet has no rules for {request.kind or 'such an object'}: its webhook need not be asked"
        return Outcome(allowed(request, warnings=[] if request.group == GROUP else [told]), label, "passed")
    operation = _OPERATIONS.get(request.operation)
    content = request.old if operation is Operation.DELETE else request.content
    if request.subresource or operation is None or content is None or _is_unchanged(operation, request):
        return Outcome(allowed(request), label, "passed")
    started = clock()
    old = request.old if operation is Operation.UPDATE else None
    beyond = None if operation is Operation.DELETE else beyond_bounds(kind, content, old)
    if beyond is not None:
        return Outcome(refused(request, _INVALID, "Invalid", beyond), label, "refused")
    subject = Subject.of(kind, content, old, operation=operation, groups=request.groups, user=request.user)
    found = judge_change(subject, view, still_time=still_time)
    return _decided(request, found, view.missed, label, rules=rules, seconds=clock() - started)


def too_much(request: Request, seconds: float) -> Outcome:
    """What is answered when it could not be judged in this time: nobody knows whether it may be let in."""
    label = _label(request)
    told = (
        f"this {request.kind or 'object'} could not be judged within {seconds:g} s, it is too large or too much is "
        "wrong with it: `npufleet lint` tells all of it, or split it into several objects"
    )
    return Outcome(refused(request, _TOO_LARGE, "RequestEntityTooLarge", told), label, "refused")


def _decided(
    request: Request, found: list[Violation], missed: Sequence[str], label: str, *, rules: str, seconds: float
) -> Outcome:
    errors = [one for one in found if one.severity is Severity.ERROR]
    warnings = warnings_of(found, missed)
    annotations = annotations_of(found, rules=rules, seconds=seconds)
    if not errors:
        return Outcome(allowed(request, warnings=warnings, annotations=annotations), label, "allowed")
    answer = denied(request, errors, warnings=warnings, annotations=annotations)
    return Outcome(answer, label, "denied", tuple(sorted({one.rule for one in errors})))


def _label(request: Request) -> str:
    """The kind that is judged, or OTHER."""
    judged = request.kind in JUDGED or (request.kind == ORDERS and BREAK_GLASS_GROUP in request.groups)
    return request.kind if request.group == GROUP and judged else OTHER


def _fault(request: Request, kind: Kind | None) -> str | None:
    """What is wrong with the request itself."""
    if not request.is_current:
        return f"{request.api_version} is not spoken here: admissionReviewVersions has to be [v1], for {REVIEW_VERSION}"
    if kind is None or request.subresource:
        return None
    if request.version != VERSION:
        return f"{GROUP}/{request.version or '?'} is not known here: set matchPolicy Equivalent, for {API_VERSION}"
    if request.operation in (Operation.CREATE, Operation.UPDATE) and request.content is None:
        return f"request.object is missing, which {request.operation} has"
    return None


def _is_unchanged(operation: Operation, request: Request) -> bool:
    """Whether an UPDATE changes nothing that is judged: labels and finalizers of whatever object can be changed.

    By break-glass they are changed for as long as was said, so that a rule looks at it.
    """
    if (
        operation is not Operation.UPDATE
        or BREAK_GLASS_GROUP in request.groups
        or request.old is None
        or request.content is None
    ):
        return False
    old, new = request.old, request.content
    return old.get("spec") == new.get("spec") and _break_glass(old) == _break_glass(new)


def _break_glass(content: dict[str, Any]) -> tuple[Any, ...]:
    metadata = content.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return tuple(annotations.get(key) for key in _BREAK_GLASS) if isinstance(annotations, dict) else (None, None)
