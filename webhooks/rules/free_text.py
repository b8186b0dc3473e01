"""Secrets and host paths where anybody who may read the object reads them: labels and annotations.

The API keeps no other free text. Only what is surely a secret is refused; its value is never repeated.
"""

import re
from collections.abc import Iterator
from typing import Final

from crds.models.base import GROUP
from crds.models.kinds import KINDS
from webhooks.rules.pointers import EACH, steps_of
from webhooks.rules.rule import Example, Fault, rule
from webhooks.rules.subject import Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity

_MOST_TEXT: Final = 512 << 10
"""Twice what an API server takes of annotations (256 KiB with their keys): labels come on top of them."""
_ALL: Final = tuple(kind.name for kind in KINDS)
# A port before a digest and words that stand for a password are none.
# Formats with a fixed mark that their issuers document, so that scanners find them. Every repetition is bounded: the
# text may be large, and somebody else's.
_SECRETS: Final = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----")),
    ("an access key id", re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)(?=[A-Z]{0,15}[0-9])[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("an access token", re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40})")),
    ("an access token", re.compile(r"(?<![A-Za-z0-9])(?:glpat-[A-Za-z0-9_-]{20}|xox[abprs]-[A-Za-z0-9-]{20})")),
    ("a JSON Web Token", re.compile(r"(?<![\w-])eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10}")),
    (
        "a password in a URL",
        re.compile(
            r"(?<![\w+.-])[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{1,128}:"
            r"(?![$<{*\[%])(?![0-9]{1,5}@|[A-Z][A-Z_]{2,64}@|x{3,64}@|\.{3}@)"
            r"(?!(?i:(?:my|your|the)?[_-]?(?:password|passwd|pass|pwd|token|secret|changeme|redacted)[_-]?(?:here)?)@)"
            r"[^\s/@]{3,128}@[A-Za-z0-9]"
        ),
    ),
)
_PERHAPS: Final = re.compile(
    r"(?i)\b(password|passwd|secret|token|api[_-]?key)\s{0,4}[=:]\s{0,4}(?![<${*\[])(?=[^\s,;]{0,64}[0-9])[^\s,;]{8}"
)
_PATH: Final = re.compile(
    r"(?:^|[\s\"'(=:,])((?:/(?:home|root|etc|var|opt|srv|tmp|usr|mnt|run|boot|Users)/|~/|[A-Za-z]:\\)[^\s\"'),;]+)"
)


def _object(annotation: str, key: str = "example.com/note") -> str:
    return (
        "apiVersion: npufleet.io/v1alpha1\nkind: NPUNodePolicy\n"
        f"metadata: {{name: a, annotations: {{{key}: '{annotation}'}}}}\n"
        "spec: {nodeSelector: {}, devices: [{name: a, match: {products: [RBLN-CA25]}, mode: Container}]}"
    )


def _texts(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Pointer, key and text of each label and annotation, as far as an API server would store them."""
    left = _MOST_TEXT
    for holder in ("annotations", "labels"):
        for at, text in subject.each("metadata", holder, EACH):
            if isinstance(text, str):
                key = steps_of(at)[-1]
                left -= len(key) + len(text)
                if left < 0:
                    return
                yield at, key, text[:65536]


@rule(
    "NPF-ALL-111",
    kinds=_ALL,
    title="no secrets in labels and annotations",
    reason="""Everybody who may read the object reads its annotations; they are in audit logs and in Git's history for
    ever. What is surely a secret is refused, what looks like one is a warning. The value is not repeated.""",
    good=(_object("ticket OPS-1234: the token is in the vault"),),
    bad=(
        _object("-----BEGIN RSA PRIVATE KEY-----"),
        _object("clone https://ci:s3cr3tword@git.example.com/fleet"),
        Example(_object("password=hunter2hunter2")),
    ),
)
def secrets(subject: Subject, _: View) -> Iterator[Fault]:
    for at, key, text in _texts(subject):
        if key == "kubectl.kubernetes.io/last-applied-configuration":
            continue
        found = next((what for what, mark in _SECRETS if mark.search(text)), None)
        if found is not None:
            yield Fault(at, f"the value holds {found}", "take it out, and treat it as known to others")
        elif _PERHAPS.search(text):
            yield Fault(at, "the value looks as if it held a secret", "take it out if it does", Severity.WARNING)


@rule(
    "NPF-ALL-112",
    kinds=_ALL,
    title="no paths of a host in npufleet's annotations",
    severity=Severity.WARNING,
    reason="""A path of somebody's machine says nothing to the others, and tells a reader how a host is laid out. Say
    what the file is. Paths of devices (/dev, /sys, /proc) are part of the matter.""",
    good=(_object("vfio group 42 (/dev/vfio/42) was stuck", f"{GROUP}/note"),),
    bad=(_object("see /home/someone/notes.txt", f"{GROUP}/note"),),
)
def paths(subject: Subject, _: View) -> Iterator[Fault]:
    for at, key, text in _texts(subject):
        found = _PATH.search(text) if key.startswith(f"{GROUP}/") else None
        if found is not None:
            yield Fault(at, f'"{found[1][:64]}" is a path of a host', "say what it is instead")


@rule(
    "NPF-ALL-113",
    kinds=tuple(kind.name for kind in KINDS if not kind.namespaced),
    title="objects of the whole cluster have no namespace",
    severity=Severity.WARNING,
    reason="""The API server drops the namespace of an object that has none, and what is read back differs from the
    file.""",
    good=(_object("fine"),),
    bad=(_object("fine").replace("name: a,", "name: a, namespace: team-a,", 1),),
)
def namespace_of_cluster_objects(subject: Subject, _: View) -> Iterator[Fault]:
    if subject.namespace:
        message = f"{subject.kind.name} belongs to the whole cluster"
        yield Fault("/metadata/namespace", message, "leave the namespace out")
