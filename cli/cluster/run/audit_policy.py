"""What the API server writes to its audit log: who changed what, without the control plane's own noise."""

from __future__ import annotations

import yaml

_READS = ["get", "list", "watch"]
_WRITES = ["create", "update", "patch", "delete", "deletecollection"]

_RULES: list[dict[str, object]] = [
    # Credentials are never written to a log, whoever handles them.
    {
        "level": "Metadata",
        "resources": [
            {"group": "", "resources": ["secrets", "serviceaccounts/token"]},
            {"group": "authentication.k8s.io", "resources": ["tokenreviews"]},
        ],
    },
    {"level": "RequestResponse", "verbs": _WRITES, "resources": [{"group": "npufleet.io"}]},
    # Reads of our kinds: who asked for which name is what counts; whole lists of a large fleet would drown it.
    {"level": "Metadata", "verbs": _READS, "resources": [{"group": "npufleet.io"}]},
    {
        "level": "None",
        "verbs": _READS,
        "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"],
    },
    {"level": "None", "verbs": _READS, "userGroups": ["system:serviceaccounts:kube-system"]},
    {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/api*", "/openapi*", "/version"]},
    {
        "level": "Metadata",
        "resources": [
            {"group": "", "resources": ["events"]},
            {"group": "events.k8s.io", "resources": ["events"]},
            {"group": "coordination.k8s.io", "resources": ["leases"]},
        ],
    },
    # Who marked a Node and how it stood then; kubelets' reports (nodes/status) are too many for that.
    {"level": "RequestResponse", "verbs": _WRITES, "resources": [{"group": "", "resources": ["nodes"]}]},
    {
        "level": "Request",
        "verbs": _WRITES,
        "resources": [
            {"group": "", "resources": ["nodes/status", "pods", "pods/*", "configmaps"]},
            {"group": "resource.k8s.io"},
            {"group": "policy"},
            {"group": "apps"},
        ],
    },
    {"level": "Metadata"},
]


def audit_policy() -> str:
    """The policy file (audit.k8s.io/v1; the first rule that matches a request decides)."""
    return yaml.safe_dump(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "omitManagedFields": True,
            "rules": _RULES,
        },
        sort_keys=False,
    )
