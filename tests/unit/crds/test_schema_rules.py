"""What every schema of the API keeps to, whatever the models say next."""

import re
from typing import Any

import pytest
import yaml

from crds.generator.fields import field_docs
from crds.generator.manifests import crd, manifests
from crds.generator.schema import SchemaError, structural_schema, walk
from crds.models.base import Model
from crds.models.kinds import BY_NAME, KINDS, Kind
from tests.builders.schema_judge import rule_holds

# What a CustomResourceDefinition of Kubernetes 1.34 may hold (apiextensions.k8s.io/v1), as far as we use it.
CRD_FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name"},
    "spec": {"group", "names", "scope", "versions"},
    "spec.names": {"kind", "listKind", "plural", "singular", "shortNames", "categories"},
    "spec.versions[]": {"name", "served", "storage", "additionalPrinterColumns", "schema", "subresources"},
    "spec.versions[].additionalPrinterColumns[]": {"name", "type", "jsonPath", "description", "priority"},
    "spec.versions[].schema": {"openAPIV3Schema"},
    "spec.versions[].subresources": {"status"},
}
SCHEMA_FIELDS = {
    "additionalProperties", "description", "enum", "format", "items", "maxItems", "maxLength", "maxProperties",
    "maximum", "minItems", "minLength", "minimum", "pattern", "properties", "required", "type",
    "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type",
    "x-kubernetes-validations",
}  # fmt: skip
VALIDATION_FIELDS = {"rule", "message", "fieldPath"}
FORMATS = {"int32", "int64", "date-time"}

# The standard macros, functions and operators of CEL that rules may use; none of Kubernetes' own libraries.
CEL_WORDS = {"has", "size", "all", "exists", "exists_one", "matches", "self", "in", "true", "false", "key", "a", "b"}

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def nodes(kind: Kind) -> list[tuple[str, dict[str, Any]]]:
    """Every node below spec and status with its path; metadata is the API server's own."""
    schema = structural_schema(kind.model)
    return [
        (".".join(path), node) for top in ("spec", "status") for path, node in walk(schema["properties"][top], (top,))
    ]


def rules(kind: Kind) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [(path, node, rule) for path, node in nodes(kind) for rule in node.get("x-kubernetes-validations", ())]


def keys_at(value: Any, path: str = "") -> list[tuple[str, set[str]]]:
    if isinstance(value, list):
        return [found for item in value for found in keys_at(item, f"{path}[]")]
    if not isinstance(value, dict):
        return []
    below = [] if path.endswith("openAPIV3Schema") else value.items()
    own = [] if path.endswith("openAPIV3Schema") else [(path, set(value))]
    return own + [found for key, item in below for found in keys_at(item, f"{path}.{key}".removeprefix("."))]


@each_kind
def test_a_definition_uses_only_what_kubernetes_1_34_has(kind: Kind) -> None:
    definition = crd(kind)
    for path, keys in keys_at(definition):
        if path == "spec.versions[].subresources.status":
            continue
        assert keys <= CRD_FIELDS[path], path
    for path, node in nodes(kind):
        assert set(node) <= SCHEMA_FIELDS, path
        assert node.get("format") in FORMATS | {None}, path
    for path, _, rule in rules(kind):
        assert set(rule) <= VALIDATION_FIELDS, path


@each_kind
def test_names_scope_category_and_status_are_as_designed(kind: Kind) -> None:
    spec = crd(kind)["spec"]
    assert spec["names"]["categories"] == ["npu"]
    assert spec["names"]["singular"] == kind.name.lower()
    assert spec["scope"] == ("Namespaced" if kind.name == "VNPUQuota" else "Cluster")
    assert spec["versions"][0]["subresources"] == {"status": {}}
    assert {kind.name: kind.short_name for kind in KINDS} == {
        "NPUNodePolicy": "npunp",
        "VGPUProfileMap": "vgpum",
        "VNPUQuota": "vnpuq",
        "NPUNodeState": "npuns",
    }


def test_no_schema_has_a_default_a_reference_or_a_title() -> None:
    for name, text in manifests().items():
        for word in ("default:", "$ref", "title:", "nullable", "preserve-unknown"):
            assert word not in text, f"{word} in {name}"


@each_kind
def test_case_16_every_string_list_and_map_is_bounded(kind: Kind) -> None:
    for path, node in nodes(kind):
        match node.get("type"):
            case "string":
                assert "maxLength" in node or "enum" in node, path
            case "array":
                assert "maxItems" in node, path
                assert node["x-kubernetes-list-type"] in {"atomic", "set", "map"}, path
            case "object":
                assert "properties" in node or "maxProperties" in node, path
            case "integer":
                assert "minimum" in node, path
                assert "maximum" in node or node["format"] == "int64", path
            case None:
                assert node["x-kubernetes-int-or-string"], path
            case other:
                pytest.fail(f"{path} is of type {other}: no bools, no floats")


@each_kind
def test_list_keys_are_required_fields_of_the_items(kind: Kind) -> None:
    for path, node in nodes(kind):
        has_keys = "x-kubernetes-list-map-keys" in node
        assert has_keys == (node.get("x-kubernetes-list-type") == "map"), path
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"], path


@each_kind
def test_every_field_says_what_it_means_and_what_holds_when_it_is_absent(kind: Kind) -> None:
    for doc in field_docs(kind):
        assert doc.meaning.endswith("."), doc.path
        assert doc.meaning[0].isupper() or doc.meaning[0] == "`" or doc.meaning.startswith("vGPU"), doc.path
        if doc.path.startswith("spec") and kind.name != "NPUNodeState":
            assert doc.required != bool(doc.effective), f"{doc.path}: required, or an effective value: one of them"


@each_kind
def test_rules_use_standard_cel_only(kind: Kind) -> None:
    for path, _, rule in rules(kind):
        text = re.sub(r"r?'[^']*'", "''", rule["rule"])
        words = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", text)) | set(re.findall(r"\.([a-z_]\w*)\(", text))
        assert words <= CEL_WORDS, f"{path}: {words - CEL_WORDS}"


@each_kind
def test_rules_have_a_message_and_point_at_fields_that_are_there(kind: Kind) -> None:
    for path, node, rule in rules(kind):
        assert rule["message"], path
        assert len(rule["message"]) < 200, path
        assert not rule["message"].endswith("."), path
        if "fieldPath" in rule:
            assert rule["fieldPath"].removeprefix(".") in node["properties"], path


@each_kind
def test_rules_can_be_evaluated_outside_of_the_api_server(kind: Kind) -> None:
    for path, node, rule in rules(kind):
        value: Any = [] if node["type"] == "array" else {"operator": "In", "mode": "Container"}
        value = {} if "additionalProperties" in node else value
        assert rule_holds(rule["rule"], value) in {True, False}, path


@each_kind
def test_columns_lead_to_fields_of_the_schema(kind: Kind) -> None:
    schema = structural_schema(kind.model)
    for column in kind.columns:
        steps = re.findall(r"\.(\w+)|\[\?\(@\.type==\"(\w+)\"\)\]", column.json_path)
        node = schema
        for name, condition_type in steps:
            if condition_type:
                assert node["x-kubernetes-list-map-keys"] == ["type"], column.name
                node = node["items"]
            elif name == "metadata" or node == {"type": "object"}:
                node = {"type": "object"}
            else:
                node = node["properties"][name]
        if column.type == "integer":
            assert node["type"] == "integer", column.name
        if column.type == "string":
            assert node["type"] == "string", column.name


def test_policy_columns_are_useful_at_first_sight() -> None:
    shown = [column.name.upper() for column in BY_NAME["NPUNodePolicy"].columns if column.priority == 0]
    assert shown == ["MATCHED", "READY", "UPDATED", "REASON", "AGE"]


def test_columns_of_a_node_tell_a_report_on_earlier_orders_from_one_on_the_present() -> None:
    shown = [column.name.upper() for column in BY_NAME["NPUNodeState"].columns if column.priority == 0]
    assert shown == ["READY", "REASON", "AVAILABLE", "UPDATED", "REVISION", "AGE"]


def test_wide_columns_tell_how_a_rollout_goes() -> None:
    wide = {
        kind.name: [column.name.upper() for column in kind.columns if column.priority]
        for kind in KINDS
        if any(column.priority for column in kind.columns)
    }
    assert wide == {
        "NPUNodePolicy": ["BLOCKED", "PROGRESSING", "DEGRADED", "DEVICES", "DEVICES-READY", "PRIORITY"],
        "NPUNodeState": ["ROLLOUT", "DRAINING", "CORDONED-BY"],
    }


def test_fields_stand_in_the_order_of_the_model() -> None:
    properties = structural_schema(BY_NAME["NPUNodePolicy"].model)["properties"]["spec"]["properties"]
    assert list(properties) == ["state", "priority", "nodeSelector", "driverName", "devices", "onRelease", "rollout"]
    assert "\n".join(manifests().values()) == "\n".join(manifests().values())


def test_a_model_that_no_structural_schema_can_say_is_refused_by_field() -> None:
    class Union(Model):
        choice: int | str

    class Odd(BY_NAME["VGPUProfileMap"].model):  # type: ignore[misc]
        spec: Union

    with pytest.raises(SchemaError, match=r"spec\.choice: .* not a union"):
        structural_schema(Odd)


def test_manifests_are_plain_yaml_without_anchors() -> None:
    for text in manifests().values():
        assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
