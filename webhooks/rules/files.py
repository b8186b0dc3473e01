"""The rules of files, which only a linter can check: the API server never sees a file, only what kubectl made of it.

They stand here beside the rules of objects so that every id is explained and listed in one place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from webhooks.rules.rule import Layer
from webhooks.rules.violation import Severity


@dataclass(frozen=True, slots=True)
class FileRule:
    """One rule of files. ``layer`` None: kubectl itself refuses it, or drops it, before any server is asked.

    ``good`` and ``bad`` are whole files; there are none where a file cannot show it.
    """

    id: str
    title: str
    reason: str
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR
    layer: Layer | None = Layer.LINT


UNREADABLE: Final = "NPF-YML-001"
SYNTAX: Final = "NPF-YML-002"
REPEATED_KEY: Final = "NPF-YML-003"
SEPARATION: Final = "NPF-YML-004"
BYTE_ORDER_MARK: Final = "NPF-YML-005"
NO_OBJECT: Final = "NPF-YML-006"
SIZE: Final = "NPF-YML-007"
TWICE: Final = "NPF-YML-008"
METADATA: Final = "NPF-YML-009"
LEFT_OUT: Final = "NPF-YML-010"
WORD: Final = "NPF-YML-011"
LEADING_ZERO: Final = "NPF-YML-012"
SIXTIES: Final = "NPF-YML-013"
EXPONENT: Final = "NPF-YML-014"
UNKNOWN_KIND: Final = "NPF-YML-015"
BUILD: Final = "NPF-YML-016"
NOTHING: Final = "NPF-YML-017"
KUBERNETES_KIND: Final = "NPF-K8S-001"
KUBERNETES_FIELD: Final = "NPF-K8S-002"
KUBERNETES_VALUE: Final = "NPF-K8S-003"
KUBERNETES_REQUIRED: Final = "NPF-K8S-004"

_CONFIG_MAP: Final = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: example}\n"


def _by_id(rules: Iterable[FileRule]) -> Mapping[str, FileRule]:
    return MappingProxyType({rule.id: rule for rule in sorted(rules, key=lambda rule: rule.id)})


FILE_RULES: Final[Mapping[str, FileRule]] = _by_id(
    (
        FileRule(
            UNREADABLE,
            "a file can be read, and is text in UTF-8",
            "What cannot be read cannot be checked, and a check that passes over it would say that all is well.",
            layer=None,
        ),
        FileRule(
            SYNTAX,
            "a file is YAML",
            "kubectl and Argo CD refuse the whole document. The linter goes on with the next one.",
            good=(_CONFIG_MAP,),
            bad=("kind: ConfigMap\n\tdata: {}\n", "a: [1, 2\n"),
            layer=None,
        ),
        FileRule(
            REPEATED_KEY,
            "a key stands once in its map",
            "One of the two values is lost: kubectl takes the last one without a word, so that no server ever sees the "
            "other; kustomize refuses the file.",
            good=(_CONFIG_MAP,),
            bad=(f"{_CONFIG_MAP}data: {{a: x, a: y}}\n",),
        ),
        FileRule(
            SEPARATION,
            "documents are separated by a line of three hyphens alone",
            "kubectl refuses text in the separator's line and lines that begin with %, and drops without a word the "
            "document that follows the end mark `...`.",
            good=(f"{_CONFIG_MAP}--- # two\n{_CONFIG_MAP.replace('example', 'other')}",),
            bad=(f"{_CONFIG_MAP}...\n{_CONFIG_MAP.replace('example', 'other')}",),
            layer=None,
        ),
        FileRule(
            BYTE_ORDER_MARK,
            "a file does not begin with a byte order mark",
            "It is invisible in an editor, and not every tool on the way takes it for what it is.",
            good=(_CONFIG_MAP,),
            bad=(f"\ufeff{_CONFIG_MAP}",),
            severity=Severity.WARNING,
        ),
        FileRule(
            NO_OBJECT,
            "a document is a Kubernetes object",
            "kubectl asks for apiVersion and kind. A document that has neither is passed over with a warning where a "
            "whole directory is linted, as other YAML may lie there.",
            good=(_CONFIG_MAP,),
            bad=("apiVersion: v1\nmetadata: {name: example}\n", "- a list\n"),
            layer=None,
        ),
        FileRule(
            SIZE,
            "a file is no larger and no deeper than an object can be",
            "Aliases of aliases make gigabytes of a few lines; no object of Kubernetes comes near these limits.",
            layer=None,
        ),
        FileRule(
            NOTHING,
            "there is something to check",
            "A check of an empty directory, or of one whose name is misspelt, would pass for ever. Files end in .yaml, "
            ".yml or .json.",
            severity=Severity.WARNING,
        ),
        FileRule(
            TWICE,
            "an object stands once in what is applied together",
            "The last one wins, and which is the last depends on the tool. In one file it is an error; in different "
            "files, which may be meant for different clusters, a warning.",
            good=(_CONFIG_MAP,),
            bad=(f"{_CONFIG_MAP}---\n{_CONFIG_MAP}",),
        ),
        FileRule(
            METADATA,
            "metadata is as Kubernetes takes it",
            "Names, labels and annotations are strings in forms that the API server checks before anything else; a "
            "number or a word such as `yes` as the value of a label is refused.",
            good=(_CONFIG_MAP,),
            layer=Layer.SCHEMA,
        ),
        FileRule(
            LEFT_OUT,
            "what is linted is what is applied",
            "Templates of a Helm chart and patches of a kustomization are no objects yet: the linter passes over them "
            "and says so. Lint what `helm template` writes, or the kustomization with --kustomize.",
            severity=Severity.WARNING,
        ),
        FileRule(
            WORD,
            "no unquoted yes, no, on, off, y or n",
            "To kubectl they are true and false, to kustomize and to YAML 1.2 they are texts.",
            good=(f'{_CONFIG_MAP}data: {{answer: "yes"}}\n',),
            severity=Severity.WARNING,
        ),
        FileRule(
            LEADING_ZERO,
            "no unquoted numbers with leading zeros",
            "0110 is the number 72 to kubectl and 110 to YAML 1.2. As a text, such as the id of a PCI device, it needs "
            "quotes.",
            good=(f'{_CONFIG_MAP}data: {{id: "0110"}}\n',),
            severity=Severity.WARNING,
        ),
        FileRule(
            SIXTIES,
            "no unquoted numbers with colons",
            "0000:27:00.0 and 12:30 are texts to kubectl, and numbers in base 60 to every library that follows "
            "YAML 1.1.",
            good=(f'{_CONFIG_MAP}data: {{address: "0000:27:00.0"}}\n',),
            bad=(f"{_CONFIG_MAP}data: {{address: 0000:27:00.0}}\n",),
            severity=Severity.WARNING,
        ),
        FileRule(
            EXPONENT,
            "no unquoted numbers with exponents",
            "26e9 is 26000000000 to kubectl and a text to libraries that follow YAML 1.1. As a text, such as the id of "
            "a PCI device, it needs quotes.",
            good=(f'{_CONFIG_MAP}data: {{id: "26e9"}}\n',),
            severity=Severity.WARNING,
        ),
        FileRule(
            UNKNOWN_KIND,
            "kinds and versions of npufleet.io are those that there are",
            "The API server refuses any other: `no matches for kind`.",
            bad=("apiVersion: npufleet.io/v1alpha1\nkind: NPUNodePolcy\nmetadata: {name: example}\nspec: {}\n",),
            layer=Layer.FIELDS,
        ),
        FileRule(
            BUILD,
            "kustomize can build the directory",
            "What cannot be built cannot be applied.",
            layer=None,
        ),
        FileRule(
            KUBERNETES_KIND,
            "kinds of other groups are known",
            "A kind that nothing is known of cannot be checked, and a misspelt one looks the same. Kinds of Kubernetes "
            "are known by the version of --k8s-version, others by their CustomResourceDefinition (--crds, or in the "
            "linted set) or not at all (--allow-group).",
            bad=("apiVersion: apps/v1\nkind: Deploymint\nmetadata: {name: example}\n",),
        ),
        FileRule(
            KUBERNETES_FIELD,
            "objects of other groups have no unknown fields",
            "The API server drops an unknown field or refuses the object, by how it is asked.",
            good=(_CONFIG_MAP,),
            bad=(f"{_CONFIG_MAP}date: {{a: b}}\n",),
            layer=Layer.FIELDS,
        ),
        FileRule(
            KUBERNETES_VALUE,
            "values of objects of other groups are as their schema has them",
            "The API server refuses any other.",
            good=(f'{_CONFIG_MAP}data: {{port: "80"}}\n',),
            bad=(f"{_CONFIG_MAP}data: {{port: 80}}\n",),
            layer=Layer.SCHEMA,
        ),
        FileRule(
            KUBERNETES_REQUIRED,
            "objects of other groups have their required fields",
            "The API server refuses the object.",
            bad=("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: example}\nspec: {}\n",),
            layer=Layer.SCHEMA,
        ),
    )
)
