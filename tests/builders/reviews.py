"""AdmissionReviews as an API server sends them, and the views of a cluster that they are judged by."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from crds.catalogue import Catalogue, load_catalogue
from webhooks.rules.fleet import Fleet
from webhooks.server.cluster_view import ClusterView
from webhooks.server.request import read_request
from webhooks.server.review import Outcome, review

Object = dict[str, Any]
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@cache
def catalogue() -> Catalogue:
    return load_catalogue()


def NOTHING_KNOWN() -> ClusterView:  # noqa: N802 - a state of the world
    """Copies that were never complete, or have lost their server."""
    return ClusterView(catalogue=catalogue(), now=NOW)


def ALL_KNOWN(  # noqa: N802 - a state of the world
    nodes: Mapping[str, Mapping[str, str]] | None = None, *, now: datetime = NOW, writers: Collection[str] = ()
) -> ClusterView:
    """A cluster in which there is nothing yet but these Nodes with their labels."""
    return ClusterView(
        catalogue=catalogue(),
        now=now,
        known_policies={},
        known_maps={},
        known_quotas={},
        known_nodes=Fleet(nodes or {}),
        known_namespaces={},
        known_inventories={},
        known_writers=writers,
    )


def policy(*, products: list[str] | None = None, mode: str = "Passthrough", **given: Any) -> Object:
    """A node policy with one rule; `vgpu` and other blocks go into the rule, other fields into the spec."""
    rule: Object = {"name": "all", "match": {"products": products or ["RBLN-CA25"]}, "mode": mode}
    for block in ("vgpu", "softVNPU", "hardVNPU", "passthrough"):
        if block in given:
            rule[block] = given.pop(block)
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "NPUNodePolicy",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"nodeSelector": {}, "devices": [rule], **given},
    }


def quota(**limits: Any) -> Object:
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "VNPUQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"limits": limits or {"cores": 400}},
    }


def review_document(
    *,
    uid: str = "11111111-2222-3333-4444-555555555555",
    api_version: str = "admission.k8s.io/v1",
    group: str = "npufleet.io",
    version: str = "v1alpha1",
    kind: str = "NPUNodePolicy",
    operation: str = "CREATE",
    content: Any = None,
    old: Any = None,
    name: str | None = None,
    namespace: str = "",
    subresource: str = "",
    groups: tuple[str, ...] = ("system:authenticated",),
    dry_run: Any = False,
) -> Object:
    """A review as Go writes it: what is empty is left out, objects that are not there are null."""
    of = {"group": group, "version": version, "kind": kind}
    if name is None:
        metadata = (content if isinstance(content, dict) else {}).get("metadata") or {}
        name = str(metadata.get("name", "a"))
    request: Object = {
        "uid": uid,
        "kind": of,
        "resource": {"group": group, "version": version, "resource": kind.lower() + "s"},
        "requestKind": of,
        "operation": operation,
        "userInfo": {"username": "someone", "groups": list(groups)},
        "object": content,
        "oldObject": old,
        "dryRun": dry_run,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    for key, value in (("name", name), ("namespace", namespace), ("subResource", subresource)):
        if value:
            request[key] = value
    return {"kind": "AdmissionReview", "apiVersion": api_version, "request": request}


def reviewed(
    document: Object, view: ClusterView | None = None, *, still_time: Callable[[], bool] = lambda: True
) -> Outcome:
    """The outcome of a review that went over the wire."""
    request = read_request(json.dumps(document).encode())
    return review(request, view or ALL_KNOWN(), rules="test", clock=time.perf_counter, still_time=still_time)
