"""What every model of the API shares: field names, strictness, metadata, and the notes that the generator reads.

Objects come from the API server as plain dicts. Reading is tolerant of fields that this version does not know (an
upgraded CRD must not stop a running daemon); ``strict`` reading, for files in a repository, refuses them.
"""

import hashlib
import json
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

GROUP: Final = "npufleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

_INITIALISMS: Final = {"uid": "UID", "id": "ID", "vnpu": "VNPU"}


def api_name(attribute: str) -> str:
    """The field name in YAML of a Python attribute: ``node_uid`` is ``nodeUID``, ``on_release`` is ``onRelease``."""
    first, *rest = attribute.split("_")
    return first + "".join(_INITIALISMS.get(word, word.capitalize()) for word in rest)


def cel(rule: str, message: str, field_path: str | None = None) -> dict[str, str]:
    """One ``x-kubernetes-validations`` rule, in the standard subset of CEL only: the linter evaluates the same text."""
    return {"rule": rule, "message": message} | ({"fieldPath": field_path} if field_path else {})


def schema_notes(*rules: dict[str, str], **extensions: Any) -> dict[str, Any]:
    """Schema extensions of a model or field; keywords are given without their ``x-kubernetes-`` prefix."""
    notes: dict[str, Any] = {f"x-kubernetes-{key.replace('_', '-')}": value for key, value in extensions.items()}
    if rules:
        notes["x-kubernetes-validations"] = list(rules)
    return notes


class Model(BaseModel):
    """Base of all API models: immutable, camelCase in YAML, tolerant of unknown fields unless asked otherwise."""

    model_config = ConfigDict(alias_generator=api_name, populate_by_name=True, extra="ignore", frozen=True)

    def to_object(self) -> dict[str, Any]:
        """The model as the JSON object that the API server takes: only fields that were set, none that are null."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


class ObjectMeta(Model):
    """The part of metav1.ObjectMeta that npufleet reads."""

    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: int = 0
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class KubeObject(Model):
    """An object of one of our kinds: apiVersion, kind, metadata; spec and status are added by each kind."""

    api_version: str = API_VERSION
    kind: str
    metadata: ObjectMeta

    @classmethod
    def strict(cls, obj: Any) -> Self:
        """Read an object and refuse fields that the API does not have.

        Raises pydantic.ValidationError with one entry per fault.
        """
        return cls.model_validate(obj, extra="forbid")


def canonical_json(value: Model) -> str:
    """One spelling for equal content: sorted keys, no white space, unset fields left out."""
    return json.dumps(value.to_object(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_hash(*values: Model) -> str:
    """Hex sha256 over the canonical JSON of the values, in the order given."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(canonical_json(value).encode())
        digest.update(b"\n")
    return digest.hexdigest()


# Bounded building blocks. Every string, list and map of the API is bounded: CEL cost is estimated from these bounds.
ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
RuleName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
PCIAddress = Annotated[str, Field(max_length=16, pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$")]
PCIID = Annotated[str, Field(max_length=4, pattern=r"^[0-9a-f]{4}$")]
PCIClass = Annotated[str, Field(max_length=6, pattern=r"^[0-9a-f]{4}([0-9a-f]{2})?$")]
SubsystemID = Annotated[str, Field(max_length=9, pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]
ProductName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
SerialNumber = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[!-~]+$")]
KernelDriverName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Reason = Annotated[str, Field(max_length=256, pattern=r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$")]
ShortText = Annotated[str, Field(max_length=1024)]
BootID = Annotated[str, Field(max_length=64)]
UID = Annotated[str, Field(max_length=64)]
