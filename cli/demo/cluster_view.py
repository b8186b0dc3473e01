"""What the demo reads from the API server, through kubectl as a user would."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.cluster.kubectl import find_kubectl
from cli.errors import CommandError
from cli.progress import Step

_POLL_SECONDS = 0.3
# Reasons of a policy's condition Ready that are about to become others.
_ON_THE_WAY = ("", "RollingOut", "InventoryPending", "Rebooted", "DaemonMissing")


class ClusterView:
    """kubectl with one kubeconfig. Raises CommandError with kubectl's own words when a call fails."""

    def __init__(self, kubeconfig: Path) -> None:
        # The cache of discovery belongs to this cluster, not to the home of whoever runs the demo.
        cache = kubeconfig.parent / "kubectl-cache"
        self._command = [str(find_kubectl()), "--kubeconfig", str(kubeconfig), "--cache-dir", str(cache)]

    def run(self, *arguments: str, seconds: float = 60) -> str:
        """The standard output of one call."""
        try:
            done = subprocess.run(
                [*self._command, *arguments], capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"kubectl {' '.join(arguments)}: no answer within {seconds:.0f} s") from error
        if done.returncode != 0:
            raise CommandError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, folder: Path) -> str:
        """``kubectl apply -k`` of a folder, server-side."""
        return self.run("apply", "--server-side", "--kustomize", str(folder))

    def exists(self, kind: str, name: str) -> bool:
        """Whether there is such an object in the default namespace."""
        return bool(self.run("get", kind, name, "--ignore-not-found", "--output", "name"))

    def items(self, resource: str) -> list[dict[str, Any]]:
        """The objects of a resource."""
        return list(json.loads(self.run("get", resource, "--output", "json"))["items"])

    def until(
        self, step: Step, what: str, done: Callable[[], str], *, check: Callable[[], None], seconds: float = 120
    ) -> None:
        """Poll until ``done`` returns an empty text; what it returns otherwise says what is still missing."""
        deadline = time.monotonic() + seconds
        while missing := done():
            check()
            if time.monotonic() > deadline:
                raise CommandError(f"{what}: not within {seconds:.0f} s, still waiting for {missing}")
            step.tick(f"waiting for {missing}")
            time.sleep(_POLL_SECONDS)


def unsettled(policies: list[dict[str, Any]], states: list[dict[str, Any]]) -> str:
    """The names of policies and nodes that are still on their way.

    A device that is blocked, failed or held has arrived: nothing happens to it before something else does.
    """
    waiting = [policy["metadata"]["name"] for policy in policies if not _answered(policy)]
    waiting += [
        state["metadata"]["name"]
        for state in states
        if not (_is_bound(state) and _is_carved(state) and _is_published(state))
    ]
    return ", ".join(waiting)


def unsettled_maps(maps: list[dict[str, Any]]) -> str:
    """The names of profile maps whose vGPUs are still on their way."""
    return ", ".join(one["metadata"]["name"] for one in maps if not _is_told(one))


def _is_told(profile_map: dict[str, Any]) -> bool:
    status = profile_map.get("status", {})
    ready = next((found["reason"] for found in status.get("conditions", []) if found["type"] == "Ready"), "")
    current = status.get("observedGeneration") == profile_map["metadata"]["generation"]
    return current and ready not in ("", "CardsPending", "Rebooted", "DaemonMissing")


def _answered(policy: dict[str, Any]) -> bool:
    status = policy.get("status", {})
    nodes = status.get("nodes", {})
    current = status.get("observedGeneration") == policy["metadata"]["generation"]
    ready = next((found["reason"] for found in status.get("conditions", []) if found["type"] == "Ready"), "")
    arrived = nodes.get("updated", 0) + nodes.get("blocked", 0) >= nodes.get("matched", 0)
    return current and arrived and ready not in _ON_THE_WAY


def _is_bound(state: dict[str, Any]) -> bool:
    bindings = state.get("status", {}).get("bindings", {})
    held = {order["address"] for order in state["spec"].get("devices", []) if order["intent"] == "Hold"}
    return bindings.get("observedGeneration") == state["metadata"]["generation"] and not any(
        device["state"] in ("Pending", "Released") and device["address"] not in held
        for device in bindings.get("devices", [])
    )


def _is_carved(state: dict[str, Any]) -> bool:
    """Whether the profile writer has answered the same orders in the same boot, and no card is on its way."""
    if not any(order["mode"] == "VGPU" for order in state["spec"].get("devices", [])):
        return True
    status = state.get("status", {})
    bindings, profiles = status.get("bindings", {}), status.get("profiles", {})
    if any(profiles.get(key) != bindings.get(key) for key in ("observedGeneration", "bootID")):
        return False
    return all(card["state"] != "Pending" for card in profiles.get("devices", []))


def _is_published(state: dict[str, Any]) -> bool:
    """Whether the publisher has answered the same orders in the same boot, and nothing that is bound waits for it."""
    status = state.get("status", {})
    bindings, publication = status.get("bindings", {}), status.get("publication", {})
    if any(publication.get(key) != bindings.get(key) for key in ("observedGeneration", "bootID")):
        return False
    bound = {device["address"] for device in bindings.get("devices", []) if device["state"] == "Ready"}
    return not any(
        device["state"] == "Pending" and device["address"] in bound for device in publication.get("devices", [])
    )
