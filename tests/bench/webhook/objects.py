"""Objects of the size that people write, each review another one: nothing is answered from memory."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from typing import Any

from runtime.resources import NPU_NODE_POLICIES, VGPU_PROFILE_MAPS, VNPU_QUOTAS, Resource
from tests.builders.samples import VALID

Object = dict[str, Any]
NAMESPACE = "default"
_RESOURCES = {"NPUNodePolicy": NPU_NODE_POLICIES, "VGPUProfileMap": VGPU_PROFILE_MAPS, "VNPUQuota": VNPU_QUOTAS}


def full_samples() -> list[Object]:
    """One object of each kind with every field in use, as the samples show it: a fleet's policies are no longer."""
    longest: dict[str, Object] = {}
    for obj in VALID:
        kind = obj["kind"]
        if kind in _RESOURCES and len(json.dumps(obj)) > len(json.dumps(longest.get(kind, {}))):
            longest[kind] = obj
    return [longest[kind] for kind in _RESOURCES]


def variants(base: Object) -> Iterator[Object]:
    """The same object under ever new names."""
    number = 0
    while True:
        number += 1
        made = copy.deepcopy(base)
        made["metadata"] = {"name": f"bench-{uuid.uuid4().hex[:8]}-{number}"}
        if made["kind"] == "VNPUQuota":
            made["metadata"]["namespace"] = NAMESPACE
        yield made


def resource_of(obj: Object) -> Resource:
    return _RESOURCES[obj["kind"]]


def review_of(obj: Object) -> bytes:
    """An AdmissionReview as the API server sends it: with metadata as it has filled them in."""
    resource = resource_of(obj)
    of = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    owned: Object = {"f:spec": {f"f:{key}": {} for key in obj["spec"]}}
    filled = obj["metadata"] | {
        "uid": str(uuid.uuid4()),
        "generation": 1,
        "creationTimestamp": "2026-12-01T00:00:00Z",
        "managedFields": [
            {
                "manager": "argocd-controller",
                "operation": "Apply",
                "apiVersion": resource.api_version,
                "time": "2026-12-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": owned,
            }
        ],
    }
    request: Object = {
        "uid": str(uuid.uuid4()),
        "kind": of,
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "requestKind": of,
        "requestResource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "name": name,
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:argocd:argocd-application-controller",
            "uid": str(uuid.uuid4()),
            "groups": ["system:serviceaccounts", "system:serviceaccounts:argocd", "system:authenticated"],
        },
        "object": obj | {"metadata": filled},
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "argocd-controller"},
    }
    if namespace:
        request["namespace"] = namespace
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()
