"""Makes the examples of rules into what is judged: run by tests, shown in the reference."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from controllers.node_policy.plan.read import read_inventory
from crds.catalogue import Catalogue
from crds.models.base import API_VERSION
from crds.models.kinds import BY_NAME
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import VNPUQuota
from crds.yaml_documents import read_documents
from webhooks.rules.rule import Example, Rule
from webhooks.rules.subject import Subject
from webhooks.rules.view import UNKNOWN, KnownView, Unknown

NOW: Final = datetime(2026, 11, 30, 12, tzinfo=UTC)
Objects = list[dict[str, Any]]


def staged(rule: Rule, example: Example, catalogue: Catalogue) -> tuple[Subject, KnownView]:
    """The subject of an example, and the view that stands around it."""
    kind = BY_NAME[rule.kinds[0]]
    content = _whole(_documents(example.text)[0], kind.name)
    old = _whole(_documents(example.old)[0], kind.name) if example.old else None
    groups = None if example.groups is None else frozenset(example.groups)
    subject = Subject.of(
        BY_NAME[content["kind"]], content, old, operation=example.operation, groups=groups, user=example.user
    )
    return subject, view_of(_documents(example.others), catalogue)


def view_of(objects: Objects, catalogue: Catalogue, now: datetime = NOW) -> KnownView:
    """A view of these objects: a kind of which there is none is UNKNOWN, and all of ours are when there is none."""
    ours = any(found.get("kind") in BY_NAME for found in objects)
    nodes = _labels(objects, "Node")
    return KnownView(
        catalogue,
        now,
        _models(objects, NPUNodePolicy) if ours else UNKNOWN,
        _models(objects, VGPUProfileMap) if ours else UNKNOWN,
        {(model.metadata.namespace or "", model.metadata.name): model for model in _read(objects, VNPUQuota)}
        if ours
        else UNKNOWN,
        nodes or UNKNOWN,
        _labels(objects, "Namespace") or UNKNOWN,
        {
            found["metadata"]["name"]: inventory.devices
            for found in objects
            if found.get("kind") == "NPUNodeState"
            and (inventory := read_inventory(found.get("status", {}).get("inventory"))) is not None
        },
        known_writers=("git",),
    )


def _documents(text: str) -> Objects:
    return [document.content for document in read_documents(text, "example")]


def _whole(content: dict[str, Any], kind: str) -> dict[str, Any]:
    if "apiVersion" in content:
        return content
    if kind == "NPUNodePolicy":
        content = {"nodeSelector": {}} | content
    metadata = {"name": "example"} | ({"namespace": "team-a"} if BY_NAME[kind].namespaced else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": content}


def _labels(objects: Objects, kind: str) -> dict[str, Mapping[str, str]]:
    return {
        found["metadata"]["name"]: found["metadata"].get("labels", {}) for found in objects if found["kind"] == kind
    }


def _read(objects: Objects, model: type[Any]) -> list[Any]:
    return [model.model_validate(found) for found in objects if found["kind"] == model.__name__]


def _models(objects: Objects, model: type[Any]) -> Mapping[str, Any] | Unknown:
    return {found.metadata.name: found for found in _read(objects, model)}
