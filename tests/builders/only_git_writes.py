"""A cluster in which only Git writes: the policies in force, and the people and programs that meet them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crds.break_glass import GROUP, REASON_ANNOTATION, UNTIL_ANNOTATION
from tests.builders.waiting import eventually

Object = dict[str, Any]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]

COMPONENT = Path(__file__).parents[2] / "kustomize/components/only-git-writes"
SYSTEM = "npufleet-system"
ARGO = "system:serviceaccount:argocd:argocd-application-controller"
ARGO_MANAGER = "argocd-controller"
UNTIL = "2026-12-01T10:00:00Z"
SAID = {REASON_ANNOTATION: "node 7 burns", UNTIL_ANNOTATION: UNTIL}


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody with kubectl. Each call gives back what the server had against it, "" when it took it."""

    kubectl: Kubectl
    kubeconfig: Path | None = None
    impersonating: Sequence[str] = ()

    def run(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        asked = (*arguments, *self.impersonating)
        return self.kubectl(*asked, kubeconfig=self.kubeconfig, input=input, check=False)

    def does(self, *arguments: str, input: str | None = None) -> str:
        done = self.run(*arguments, input=input)
        return "" if done.returncode == 0 else done.stderr

    def create(self, obj: Object, *options: str) -> str:
        return self.does("create", *options, "-f", "-", input=json.dumps(obj))

    def apply(self, obj: Object, *options: str, manager: str = ARGO_MANAGER) -> str:
        asked = ("apply", "--server-side", "--force-conflicts", f"--field-manager={manager}", *options, "-f", "-")
        return self.does(*asked, input=json.dumps(obj))

    def patch(self, resource: str, change: Object, *options: str) -> str:
        kind, _, name = resource.partition("/")
        return self.does("patch", kind, name, "--type=merge", "-p", json.dumps(change), *options)

    def annotate(self, resource: str, annotations: Object, *options: str) -> str:
        return self.patch(resource, {"metadata": {"annotations": annotations}}, *options)


def impersonated(kubectl: Kubectl, user: str, *groups: str) -> Who:
    """Who has a right to impersonate has all that those have whose name he takes, and no more."""
    named = [f"--as-group={group}" for group in (*groups, "system:authenticated")]
    return Who(kubectl, None, [f"--as={user}", *named])


def member(kubectl: Kubectl, user: str = "eve") -> Who:
    """Who may break glass, with the rights that the component gives to the group."""
    return impersonated(kubectl, user, GROUP)


def writers(kubectl: Kubectl, text: str | None) -> None:
    """What key `writers` of the ConfigMap says; None: there is no ConfigMap."""
    if text is None:
        kubectl("delete", "configmap", "npufleet-writers", f"--namespace={SYSTEM}", "--ignore-not-found")
        return
    metadata = {"name": "npufleet-writers", "namespace": SYSTEM}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"writers": text}}
    kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=overlay", "-f", "-", input=json.dumps(body))


def probe(kubectl: Kubectl) -> subprocess.CompletedProcess[str]:
    """A write by somebody who is in no list, which is not carried out."""
    return Who(kubectl, None, ["--as=probe", "--as-group=system:masters"]).run(
        "create", "--dry-run=server", "-f", "-", input=json.dumps(policy("probe"))
    )


def in_force(kubectl: Kubectl, variant: str) -> Iterator[None]:
    """The variant `deny` or `audit`, as long as the caller wants it; policies reach the API server's admission late."""
    kubectl("apply", "--server-side", "--force-conflicts", "--kustomize", str(COMPONENT / variant))
    sign = "denied request" if variant == "deny" else "Warning: Validation failed"
    try:
        eventually(lambda: sign in probe(kubectl).stderr, what=f"variant {variant} in force")
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "--kustomize", str(COMPONENT / variant))
        eventually(lambda: probe(kubectl).stderr == "", what=f"variant {variant} gone")


def policy(name: str, **spec: Any) -> Object:
    """A policy for nodes that do not exist."""
    rule = {"name": "a", "match": {"products": ["RBLN-CA25"]}, "mode": "Passthrough"}
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "NPUNodePolicy",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"of": "nobody"}}, "devices": [rule], **spec},
    }


def quota(namespace: str, name: str = "quota", **limits: Any) -> Object:
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "VNPUQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"limits": limits or {"devices": 2}},
    }


def profile_map(name: str) -> Object:
    layout = [{"profile": "L40S-24Q", "count": 2}]
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "VGPUProfileMap",
        "metadata": {"name": name},
        "spec": {"gpus": [{"match": {"products": ["L40S"]}, "layout": layout}]},
    }


def node_state(name: str) -> Object:
    """Orders for a Node that does not exist."""
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "NPUNodeState",
        "metadata": {"name": name},
        "spec": {"revision": "", "nodeUID": "u", "devices": []},
    }


def saying(obj: Object, **annotations: str) -> Object:
    """The object with why and until when glass is broken; keywords `reason` and `until` replace or (as "") drop one."""
    said = dict(SAID)
    for key, name in (("reason", REASON_ANNOTATION), ("until", UNTIL_ANNOTATION)):
        if key in annotations:
            said[name] = annotations[key]
    return {**obj, "metadata": {**obj["metadata"], "annotations": {k: v for k, v in said.items() if v}}}


def audit_annotations(log: Path, *, since: int, name: str) -> list[tuple[str, str, dict[str, str]]]:
    """``(user, verb, annotations)`` of each request about objects of that name after the byte offset."""
    found = []
    with log.open("rb") as stream:
        stream.seek(since)
        for line in stream:
            entry = json.loads(line)
            if (entry.get("objectRef") or {}).get("name") == name:
                who = (entry.get("impersonatedUser") or entry["user"])["username"]
                found.append((who, entry["verb"], entry.get("annotations") or {}))
    return found
