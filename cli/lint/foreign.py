"""Judges objects of other groups by JSON schemas: kinds of Kubernetes by those that kubernetes-validate ships, others
by their CustomResourceDefinitions.

Only the schemas of kubernetes-validate 1.37 are used, not its own check, which stops at the first fault, does not look
into Lists, passes over kinds that it does not know, and takes the first label of a group for all of it.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from cli.errors import CommandError, ExitCode
from crds.near_matches import did_you_mean
from webhooks.rules import Severity, Violation
from webhooks.rules.files import KUBERNETES_FIELD, KUBERNETES_KIND, KUBERNETES_REQUIRED, KUBERNETES_VALUE
from webhooks.rules.pointers import canonical, pointer

INSTALL: Final = "pip install 'npufleet[manifests]'"
_WITHOUT_DOMAIN: Final = frozenset({"", "apps", "autoscaling", "batch", "extensions", "policy"})
_OF_KUBERNETES: Final = (
    "admissionregistration",
    "apiextensions",
    "apiregistration",
    "authentication",
    "authorization",
    "certificates",
    "coordination",
    "discovery",
    "events",
    "flowcontrol.apiserver",
    "internal.apiserver",
    "lifecycle",
    "networking",
    "node",
    "rbac.authorization",
    "resource",
    "scheduling",
    "storage",
    "storagemigration",
)
BUILT_IN_GROUPS: Final = _WITHOUT_DOMAIN | {f"{name}.k8s.io" for name in _OF_KUBERNETES}
_DEFINITIONS: Final = "https://kubernetes.io/api/_definitions.json"
_FOLDER: Final = re.compile(r"v(\d+)\.(\d+)\.\d+-local-strict")
_VERSION: Final = re.compile(r"v?([0-9]+)\.([0-9]+)([.+-].*)?")
_LONGEST: Final = 200


class GVK(NamedTuple):
    """What names a schema."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class ForeignKinds:
    """Schemas by kind. Nothing is read before the first object asks for it."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._own: dict[GVK, Mapping[str, Any]] = {}
        self._validators: dict[GVK, Any] = {}

    def add_crd(self, content: Mapping[str, Any]) -> None:
        """Learn the kinds that a CustomResourceDefinition defines; whatever of it is not understood is left out."""
        spec = content.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        names = spec.get("names")
        kind = names.get("kind") if isinstance(names, dict) else None
        for version in spec.get("versions") or () if isinstance(spec.get("versions"), list) else ():
            schema = _at(version, "schema", "openAPIV3Schema")
            name = _at(version, "name")
            group = spec.get("group")
            if isinstance(kind, str) and isinstance(name, str) and isinstance(group, str) and isinstance(schema, dict):
                self._own[GVK(group, name, kind)] = schema

    def knows(self, gvk: GVK) -> bool:
        """Whether there is a schema. Raises CommandError when that of Kubernetes is needed and not installed."""
        return gvk in self._own or (gvk.group in BUILT_IN_GROUPS and gvk in self._built_in)

    def unknown(self, gvk: GVK) -> Violation:
        """What to say of a kind without a schema."""
        if gvk.group in BUILT_IN_GROUPS:
            where, known = f"Kubernetes {self._version}", set(self._built_in) | set(self._own)
        else:
            where, known = "what is linted", set(self._own)
        same = sorted(one.api_version for one in known if one.kind == gvk.kind)
        near = did_you_mean(gvk.kind, sorted({one.kind for one in known if one.group == gvk.group}))
        fix = f"it is in {' and '.join(same)}" if same else near.removeprefix("; ")
        if not fix and gvk.group not in BUILT_IN_GROUPS:
            fix = f"give its CustomResourceDefinition with --crds, or let it pass with --allow-group {gvk.group}"
        at = "/apiVersion" if same else "/kind"
        message = f"there is no kind {gvk.kind} of {gvk.api_version} in {where}"
        return Violation(KUBERNETES_KIND, Severity.ERROR, at, message, fix, value=canonical(list(gvk)))

    def faults(self, gvk: GVK, content: Any) -> Iterator[Violation]:
        """Everything in an object of a known kind that its schema does not take."""
        validator = self._validators.get(gvk)
        if validator is None:
            validator = self._validators[gvk] = self._validator(gvk)
        told = set()
        for found in validator.iter_errors(content):
            for violation in _violations(found):
                if (violation.rule, violation.pointer) not in told:
                    told.add((violation.rule, violation.pointer))
                    yield violation

    def _validator(self, gvk: GVK) -> Any:
        if gvk in self._own:
            schema = _closed(self._own[gvk])
            # Metadata and the envelope are the API server's own.
            schema["properties"] = {"metadata": {"type": "object"}, **schema.get("properties", {})}
            schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            return _jsonschema().Draft202012Validator(schema)
        return self._root.evolve(schema={"$ref": f"{_DEFINITIONS}#/$defs/{self._built_in[gvk]}"})

    @cached_property
    def _root(self) -> Any:
        from referencing import Registry, Resource  # of the same optional packages

        resource = Resource.from_contents(self._document, default_specification=_draft())
        registry: Any = Registry().with_resource(_DEFINITIONS, resource)
        return _jsonschema().Draft202012Validator({}, registry=registry)

    @cached_property
    def _built_in(self) -> Mapping[GVK, str]:
        found = {}
        for name, schema in self._document["$defs"].items():
            for told in schema.get("x-kubernetes-group-version-kind", ()):
                found[GVK(told["group"], told["version"], told["kind"])] = name
        return found

    @cached_property
    def _document(self) -> dict[str, Any]:
        _jsonschema()
        folders = {
            (int(found[1]), int(found[2])): entry
            for entry in _schema_folder().iterdir()
            if (found := _FOLDER.fullmatch(entry.name))
        }
        asked = _VERSION.fullmatch(self._version)
        if asked is None or (folder := folders.get((int(asked[1]), int(asked[2])))) is None:
            known = ", ".join(f"{major}.{minor}" for major, minor in sorted(folders))
            raise CommandError(
                f"there are no schemas of Kubernetes {self._version}: kubernetes-validate has {known}", ExitCode.USAGE
            )
        document: dict[str, Any] = json.loads(folder.joinpath("_definitions.json").read_text(encoding="utf-8"))
        return document


def _schema_folder() -> Any:
    return importlib.resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")


def _jsonschema() -> Any:
    try:
        import jsonschema  # type: ignore[import-untyped]

        _schema_folder()
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the objects of other kinds than npufleet's need kubernetes-validate, which is not installed: {INSTALL}, "
            "or pass over them with --skip-built-in",
            ExitCode.USAGE,
        ) from error
    return jsonschema


def _draft() -> Any:
    from referencing.jsonschema import DRAFT202012

    return DRAFT202012


def _violations(found: Any) -> Iterator[Violation]:
    """One error of jsonschema as violations in the API server's words."""
    at = pointer(*found.absolute_path)
    instance, schema = found.instance, found.schema
    match found.validator:
        case "additionalProperties":
            properties = schema.get("properties", {})
            for name in instance:
                if name not in properties:
                    near = did_you_mean(name, properties).removeprefix("; ")
                    yield _violation(KUBERNETES_FIELD, f"{at}{pointer(name)}", f'unknown field "{_short(name)}"', near)
        case "required":
            for name in found.validator_value:
                if name not in instance:
                    yield _violation(KUBERNETES_REQUIRED, f"{at}{pointer(name)}", "Required value")
        case "type" | "oneOf" | "anyOf":
            legal = _types(schema)
            fix = ""
            if "string" in legal and isinstance(instance, bool | int | float):
                fix = "put it in quotes"
            elif legal == ["integer"] and isinstance(instance, str) and re.fullmatch(r"-?[0-9]{1,18}", instance):
                fix = "leave the quotes out"
            message = f'must be of type {" or ".join(legal)}: "{_type_of(instance)}"' if legal else found.message
            yield _violation(KUBERNETES_VALUE, at, _short(message), fix, instance)
        case "enum":
            legal = [str(word) for word in found.validator_value if word is not None]
            near = did_you_mean(str(instance), legal).removeprefix("; ")
            message = f"Unsupported value: {_short(canonical(instance))}: supported values: {', '.join(legal)}"
            yield _violation(KUBERNETES_VALUE, at, _short(message), near, instance)
        case _:
            yield _violation(KUBERNETES_VALUE, at, _short(found.message), "", instance)


def _violation(rule: str, at: str, message: str, fix: str = "", value: Any = None) -> Violation:
    return Violation(rule, Severity.ERROR, at, message, fix, value=canonical(value))


def _types(schema: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for branch in (schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())):
        told = branch.get("type", [])
        found += [told] if isinstance(told, str) else told
    return list(dict.fromkeys(name for name in found if name != "null"))


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _at(value: Any, *steps: str) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _closed(schema: Any) -> dict[str, Any]:
    """A structural schema as JSON schema that refuses what the API server would drop."""
    if not isinstance(schema, dict):
        return {}
    out: dict[str, Any] = {
        key: schema[key]
        for key in ("enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "required")
        if key in schema
    }
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    elif isinstance(kind, str):
        out["type"] = [kind, "null"] if schema.get("nullable") else kind
    if isinstance(schema.get("properties"), dict):
        out["properties"] = {name: _closed(child) for name, child in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _closed(schema["additionalProperties"])
    if "items" in schema:
        out["items"] = _closed(schema["items"])
    if schema.get("x-kubernetes-embedded-resource"):
        out.pop("additionalProperties", None)
    return out
