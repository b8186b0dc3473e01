"""Break-glass: changes past Git, with a reason and an end, and only for a day.

A policy of the API server checks that the annotations are there and well formed; it has no clock. These rules have one.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from crds.break_glass import GROUP, REASON_ANNOTATION, UNTIL_ANNOTATION
from crds.models.kinds import KINDS
from webhooks.rules.pointers import pointer
from webhooks.rules.rule import Example, Fault, Layer, rule
from webhooks.rules.subject import Content, Operation, Subject
from webhooks.rules.view import UNKNOWN, View
from webhooks.rules.violation import Severity

LONGEST: Final = timedelta(hours=24)
_METADATA: Final = ("annotations", "labels", "finalizers", "ownerReferences")

_UNTIL_AT: Final = pointer("metadata", "annotations", UNTIL_ANNOTATION)
_REASON_AT: Final = pointer("metadata", "annotations", REASON_ANNOTATION)
_ORDERS: Final = "NPUNodeState"
_USERS: Final = tuple(kind.name for kind in KINDS if kind.name != _ORDERS)


def _object(
    until: str | None, reason: str | None = "card on fire", match: str = "RBLN-CA25", labels: str = "{}"
) -> str:
    given = ((REASON_ANNOTATION, reason), (UNTIL_ANNOTATION, until))
    marks = [f"{key}: '{text}'" for key, text in given if text is not None]
    return (
        "apiVersion: npufleet.io/v1alpha1\nkind: NPUNodePolicy\n"
        f"metadata: {{name: a, {f'labels: {labels}, ' if labels != '{}' else ''}annotations: {{{', '.join(marks)}}}}}\n"
        f"spec: {{nodeSelector: {{}}, devices: [{{name: a, match: {{products: [{match}]}}, mode: Container}}]}}"
    )


def _orders(until: str, revision: str = "a") -> str:
    marks = f"{REASON_ANNOTATION}: 'card on fire', {UNTIL_ANNOTATION}: '{until}'"
    return (
        "apiVersion: npufleet.io/v1alpha1\nkind: NPUNodeState\n"
        f"metadata: {{name: node-a, annotations: {{{marks}}}}}\n"
        f"spec: {{revision: '{revision}', nodeUID: u, devices: []}}"
    )


_RFC_3339: Final = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
)
_SOON: Final = "2026-11-30T14:00:00Z"
_OVER: Final = "2026-11-30T11:00:00Z"


def parse_time(text: str) -> datetime | None:
    """An RFC 3339 time with its zone, or None."""
    found = _RFC_3339.fullmatch(text)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found['time']}{found['zone'].replace('Z', '+00:00')}")
    except ValueError:
        return None


def _annotation(content: Content, key: str) -> str | None:
    metadata = content.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(key) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None


def _faults(content: Content, now: datetime) -> Iterator[Fault]:
    """What is wrong with the annotations, where there are any."""
    reason, until = _annotation(content, REASON_ANNOTATION), _annotation(content, UNTIL_ANNOTATION)
    if reason is not None and not reason.strip():
        yield Fault(_REASON_AT, "the reason is empty", "say what happened, for those who read it tomorrow")
    if until is None:
        if reason is not None:
            yield Fault(_UNTIL_AT, "Required value", f"say until when, at most {_hours()} from now")
        return
    if reason is None:
        yield Fault(_REASON_AT, "Required value", "say what happened, for those who read it tomorrow")
    end = parse_time(until)
    if end is None:
        yield Fault(
            _UNTIL_AT, f'"{until[:64]}" is no RFC 3339 time', f'write e.g. "{_shown(now + timedelta(hours=2))}"'
        )
    elif end <= now:
        yield Fault(_UNTIL_AT, f"{until} is past", f"it is {_shown(now)}")
    elif end - now > LONGEST:
        latest = _shown(now + LONGEST)
        yield Fault(_UNTIL_AT, f"{until} is more than {_hours()} ahead", f"the latest is {latest}")


def _hours() -> str:
    return f"{int(LONGEST.total_seconds()) // 3600} hours"


def _shown(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@rule(
    "NPF-ALL-901",
    kinds=_USERS,
    title="break-glass has a reason and an end within a day",
    reason="""A change past Git is a loan. Its end is ahead and at most 24 hours away, and its reason is there for those
    who have to bring Git and the cluster together again.""",
    good=(_object(_SOON), _object("2026-12-01T14:00:00+02:00")),
    bad=(
        _object(_OVER),
        _object("2026-12-01T12:00:01Z"),
        _object("tomorrow"),
        _object("2026-11-30 14:00:00"),
        _object(None),
        _object(_SOON, None),
        _object(_SOON, "  "),
    ),
)
def annotations(subject: Subject, view: View) -> Iterator[Fault]:
    if view.now is not UNKNOWN and not _may_break_glass(subject, view):
        yield from _faults(subject.content, view.now)


def _may_break_glass(subject: Subject, view: View) -> bool:
    """Whether a member of the group asks who is not the one that applies what is in Git: he needs no leave."""
    if subject.groups is None or GROUP not in subject.groups:
        return False
    writers = () if subject.kind.name == _ORDERS else view.writers()
    return writers is UNKNOWN or subject.user not in writers


def _is_by_hand(subject: Subject) -> bool:
    """Whether such a member changes or removes the object.

    With the same spec it is other metadata that are changed, on the strength of what is said on the object; who leaves
    nothing said has taken it back.
    """
    if subject.operation is not Operation.UPDATE or subject.changes_spec:
        return True
    said = any(_annotation(subject.content, key) is not None for key in (REASON_ANNOTATION, UNTIL_ANNOTATION))
    return said and _set_by_people(subject.content) != _set_by_people(subject.old)


def _set_by_people(content: Content | None) -> Content:
    metadata = None if content is None else content.get("metadata")
    return {key: metadata.get(key) or None for key in _METADATA} if isinstance(metadata, dict) else {}


@rule(
    "NPF-ALL-902",
    kinds=(*_USERS, _ORDERS),
    title="whoever breaks the glass says why and until when, now",
    ratcheted=False,
    on_delete=True,
    reason=f"""Members of the group {GROUP} change and remove objects past Git. The annotations that were
    left behind by an earlier change are no leave for the next: they have to be valid at the time of the change. On a
    deletion those of the object that goes away count. Taking them away needs no others, and those who apply what is in
    Git need none.""",
    good=(
        Example(_object(_SOON, match="RBLN-CA22"), old=_object(_SOON), groups=(GROUP,)),
        Example(_object(None, None), old=_object(None, None), groups=(GROUP,)),
        Example(_object(_SOON), groups=(GROUP,), operation=Operation.DELETE),
        Example(_object(None, None), old=_object(_OVER), groups=(GROUP,)),
        Example(_object(None, None, "RBLN-CA22"), old=_object(None, None), groups=(GROUP,), user="git"),
        Example(_orders(_SOON), old=_orders(_OVER, "b"), groups=(GROUP,)),
    ),
    bad=(
        Example(_object(_OVER, match="RBLN-CA22"), old=_object(_OVER), groups=(GROUP,)),
        Example(_object(None, None), groups=(GROUP,)),
        Example(_object(_OVER), groups=(GROUP,), operation=Operation.DELETE),
        Example(_object(_OVER, labels="{tier: lab}"), old=_object(_OVER), groups=(GROUP,)),
        Example(_orders(_OVER, "b"), old=_orders(_OVER), groups=(GROUP,), user="git"),
    ),
)
def by_hand(subject: Subject, view: View) -> Iterator[Fault]:
    if view.now is UNKNOWN or not _is_by_hand(subject) or not _may_break_glass(subject, view):
        return
    yield from _faults(subject.content, view.now)
    if (
        _annotation(subject.content, REASON_ANNOTATION) is None
        and _annotation(subject.content, UNTIL_ANNOTATION) is None
    ):
        for at, what in ((_REASON_AT, "why"), (_UNTIL_AT, f"until when, at most {_hours()} from now")):
            yield Fault(at, "Required value", f"say {what}")


@rule(
    "NPF-ALL-903",
    kinds=_USERS,
    layer=Layer.LINT,
    severity=Severity.WARNING,
    title="files in Git carry no break-glass annotations",
    reason="""The annotations mark a change that is not in Git. In Git they would mark every later version as such a
    change, and after a day nobody could apply the file.""",
    good=(_object(None, None).replace(", annotations: {}", ""),),
    bad=(_object(_SOON),),
)
def in_files(subject: Subject, _: View) -> Iterator[Fault]:
    for key, at in ((REASON_ANNOTATION, _REASON_AT), (UNTIL_ANNOTATION, _UNTIL_AT)):
        if _annotation(subject.content, key) is not None:
            yield Fault(at, "break-glass annotations do not belong in Git", "take them out")
