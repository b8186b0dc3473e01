"""What every model of the API shares: field names, strictness, metadata, and the notes that the generator reads.

Objects come from the API server as plain dicts. Reading is tolerant of fields that this version does not know (an
upgraded CRD must not stop a running daemon); ``strict`` reading, for files in a repository, takes exactly what the API
server takes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

GROUP: Final = "npufleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "npufleet.io/v1alpha1"
ABSENT: Final = "x-npufleet-absent"

_FAULT_TYPE: Final = "npufleet"

_INITIALISMS: Final = {"uid": "UID", "id": "ID", "vnpu": "VNPU"}


def api_name(attribute: str) -> str:
    """The field name in YAML of a Python attribute: ``node_uid`` is ``nodeUID``, ``on_release`` is ``onRelease``."""
    first, *rest = attribute.split("_")
    return first + "".join(_INITIALISMS.get(word, word.capitalize()) for word in rest)


def cel(id: str, rule: str, message: str, field_path: str | None = None) -> dict[str, str]:
    """One ``x-kubernetes-validations`` rule, in the standard subset of CEL only: the linter evaluates the same text.

    Its id ends the message, so that ``npufleet explain`` can be asked about what kubectl shows.
    """
    return {"rule": rule, "message": f"{message} [{id}]"} | ({"fieldPath": field_path} if field_path else {})


def schema_notes(*rules: dict[str, str], **extensions: Any) -> dict[str, Any]:
    """Schema extensions of a model or field; keywords are given without their ``x-kubernetes-`` prefix."""
    notes: dict[str, Any] = {f"x-kubernetes-{key.replace('_', '-')}": value for key, value in extensions.items()}
    if rules:
        notes["x-kubernetes-validations"] = list(rules)
    return notes


def key_rule(id: str, pattern: str, longest: int, message: str) -> dict[str, str]:
    """Restricts the keys of a map: a structural schema has no keyword for them."""
    return cel(id, f"self.all(key, size(key) <= {longest} && key.matches(r'{pattern}'))", message)


def absent(text: str) -> dict[str, Any]:
    """What holds when the field is absent, for fields whose Python default does not say it; read by the reference."""
    return {ABSENT: text}


ATOMIC_LIST: Final = schema_notes(list_type="atomic")


@dataclass(frozen=True, slots=True)
class Distinct:
    """Marks a list without equal items: of type ``set``, or of type ``map`` when ``key`` (a YAML name) is given."""

    key: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_twins, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        notes = schema_notes(list_type="map", list_map_keys=[self.key]) if self.key else schema_notes(list_type="set")
        return handler(schema) | notes

    def _refuse_twins(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        seen = set()
        for index, item in enumerate(items):
            value = str(item if self.key is None else item.field(self.key))
            if value in seen:
                raise fault(f"{self.key or 'item'} {value!r} is there twice", index)
            seen.add(value)
        return items


class Model(BaseModel):
    """Base of all API models: immutable, camelCase in YAML, tolerant of unknown fields unless asked otherwise."""

    model_config = ConfigDict(alias_generator=api_name, populate_by_name=True, extra="ignore", frozen=True)

    def to_object(self) -> dict[str, Any]:
        """The model as the JSON object that the API server takes: only fields that were set, none that are null."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)

    def field(self, yaml_name: str) -> Any:
        """The value of the field with this YAML name. Raises KeyError when the model has none."""
        return getattr(self, _attributes(type(self))[yaml_name])


@cache
def _attributes(model: type[Model]) -> Mapping[str, str]:
    """The model's attributes by their YAML names."""
    return {info.alias: attribute for attribute, info in model.model_fields.items() if info.alias is not None}


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


# Fields of metav1.ObjectMeta that are legal in a file and that npufleet does not read.
_OTHER_METADATA: Final = frozenset(
    {"generateName", "ownerReferences", "finalizers", "managedFields", "selfLink", "deletionGracePeriodSeconds"}
)


class KubeObject(Model):
    """An object of one of our kinds: apiVersion, kind, metadata; spec and status are added by each kind."""

    api_version: Literal["npufleet.io/v1alpha1"] = API_VERSION
    kind: str
    metadata: ObjectMeta

    def to_object(self) -> dict[str, Any]:
        """The object that the API server takes, always with apiVersion and kind (items of a list come without)."""
        return {"apiVersion": self.api_version, "kind": self.kind} | Model.to_object(self)

    @classmethod
    def strict(cls, obj: Any) -> Self:
        """Read an object as the API server does with strict field validation: no unknown fields, no "1" for 1.

        Null is refused too: the API server drops it without a word, and what is read back would differ from the file.
        Raises pydantic.ValidationError with one entry per fault; ``loc`` is the path in YAML names.
        """
        faults = [_line("null is no value: leave the field out", *path) for path in _nulls(obj)]
        faults += [_line("Field required", key) for key in ("apiVersion", "kind") if not _has(obj, key)]
        try:
            found = cls.model_validate_json(
                json.dumps(_modelled(obj)), strict=True, extra="forbid", by_alias=True, by_name=False
            )
        except ValidationError as error:
            told = {line["loc"] for line in faults}
            faults += [_same_line(found) for found in _own_faults(error.errors()) if found["loc"] not in told]
        except (TypeError, ValueError) as error:
            faults.append(_line(f"the object cannot be written as JSON: {error}"))
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return found


def fault(text: str, *path: str | int) -> ValidationError:
    """For validators of models: refuses the field at ``path`` (YAML names) below the model, with just this text."""
    return ValidationError.from_exception_data("fault", [_line(text, *path)])


def field_path(location: tuple[str | int, ...]) -> str:
    """The place of a fault as the API server writes it: ``spec.devices[0].match``; empty for the object itself."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _line(text: str, *path: str | int) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(_FAULT_TYPE, "{text}", {"text": text}), loc=path, input=None)


def faults_of(error: ValidationError) -> list[tuple[str, str]]:
    """What a model found wrong, for people: (path as the API server writes it, message), one entry per fault."""
    return [
        (field_path(found["loc"]), found["msg"].removeprefix("Value error, ")) for found in _own_faults(error.errors())
    ]


def describe_faults(error: ValidationError, root: str, *, most: int = 5) -> str:
    """Those faults in one line, for a condition: paths below the field `root`, the first `most` and how many more."""
    found = faults_of(error)
    told = [f"{root}{'.' if path and path[0] != '[' else ''}{path}: {message}" for path, message in found[:most]]
    if len(found) > most:
        told.append(f"and {len(found) - most} more")
    return "; ".join(told)


def _own_faults(found: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Without lists that pydantic calls too short only because it does not count faulty items."""
    places = [error["loc"] for error in found]
    for error in found:
        here = error["loc"]
        if error["type"] != "too_short" or not any(len(at) > len(here) and at[: len(here)] == here for at in places):
            yield error


def _same_line(found: ErrorDetails) -> InitErrorDetails:
    *holder, last = found["loc"] or ("",)
    if last == "[key]":
        return _line(f"key {holder[-1]!r}: {found['msg']}", *holder[:-1])
    if found["type"] == _FAULT_TYPE:
        return _line(found["msg"], *found["loc"])
    return InitErrorDetails(type=found["type"], loc=found["loc"], input=found["input"], ctx=found.get("ctx", {}))


def _has(obj: Any, key: str) -> bool:
    return isinstance(obj, dict) and key in obj


def _nulls(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if value is None and path:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _nulls(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nulls(item, (*path, index))


def _modelled(obj: Any) -> Any:
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        return obj
    return obj | {"metadata": {key: item for key, item in obj["metadata"].items() if key not in _OTHER_METADATA}}


# Bounded building blocks. Every string, list and map of the API is bounded: CEL cost is estimated from these bounds.
# Bounds are wider than the pattern where the pattern says more to an author ("0x1eff" shall not just be too long).
_SUBDOMAIN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KERNEL_DRIVER: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_PCI_ADDRESS: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=f"^{_SUBDOMAIN}$")]
ObjectNameOrEmpty = Annotated[str, Field(max_length=253, pattern=f"^({_SUBDOMAIN})?$")]
RuleName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
DriverName = Annotated[str, Field(min_length=1, max_length=63, pattern=f"^{_SUBDOMAIN}$")]
PCIAddress = Annotated[str, Field(max_length=16, pattern=f"^{_PCI_ADDRESS}$")]
PCIAddressOrEmpty = Annotated[str, Field(max_length=16, pattern=f"^({_PCI_ADDRESS})?$")]
PCIID = Annotated[str, Field(max_length=16, pattern=r"^[0-9a-f]{4}$")]
PCIClass = Annotated[str, Field(max_length=16, pattern=r"^[0-9a-f]{4}([0-9a-f]{2})?$")]
SubsystemID = Annotated[str, Field(max_length=16, pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]
ProductName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
SerialNumber = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[!-~]+$")]
KernelDriverName = Annotated[str, Field(min_length=1, max_length=64, pattern=f"^{_KERNEL_DRIVER}$")]
KernelDriverNameOrEmpty = Annotated[str, Field(max_length=64, pattern=f"^({_KERNEL_DRIVER})?$")]
Reason = Annotated[str, Field(max_length=256, pattern=r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$")]
ShortText = Annotated[str, Field(max_length=1024)]
Generation = Annotated[int, Field(ge=0, le=2**63 - 1)]
Counter = Annotated[int, Field(ge=0, le=2**31 - 1)]
BootID = Annotated[str, Field(max_length=64)]
UID = Annotated[str, Field(max_length=64)]
