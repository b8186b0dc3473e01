"""npufleet's webhook on a real API server: installed with certificates of its own making, and taken away again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.cluster.run.control_plane import ControlPlane
from runtime.api import Api, ApiError
from runtime.resources import NPU_NODE_POLICIES
from tests.builders.waiting import eventually
from tests.builders.webhook_process import (
    CONFIGURATION,
    Kubectl,
    WebhookProcess,
    in_force,
    is_asked,
    write_installation,
)

SECRET = "secret/npufleet-webhook-tls"
IN_SYSTEM = "--namespace=npufleet-system"


def policy(name: str, *, products: tuple[str, ...] = ("RBLN-CA25",), **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "NPUNodePolicy",
        "metadata": {"name": name, **metadata},
        "spec": {
            "nodeSelector": {"matchLabels": {"npufleet.io/pool": "none"}},
            "devices": [{"name": "all", "match": {"products": list(products)}, "mode": "Passthrough"}],
        },
    }


GOOD = json.dumps(policy("webhook-probe"))
BAD = json.dumps(policy("webhook-probe", products=("RBLN-CA2",)))


@dataclass(frozen=True)
class Webhook:
    """The process, the directory of its installation, and how it is reached."""

    process: WebhookProcess
    kubectl: Kubectl

    def works(self) -> None:
        """Wait until the API server asks it and gets an answer, and a bad object is refused by a rule."""
        eventually(self.process.is_ready, seconds=60, what="the webhook is ready")
        eventually(lambda: is_asked(self.kubectl, GOOD), seconds=30, what="a good object is let in")
        eventually(lambda: in_force(self.kubectl, BAD, "NPF-NP-101"), seconds=30, what="a bad object is refused")

    def apply(self, *objects: dict[str, Any], check: bool = True, options: tuple[str, ...] = ()) -> Any:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.kubectl("apply", "-f", "-", *options, input=text, check=check)


@contextmanager
def live_webhook(plane: ControlPlane, kubectl: Kubectl, directory: Path) -> Iterator[Webhook]:
    """It works when the block begins; whoever comes after it meets a cluster without a webhook."""
    process = WebhookProcess(plane, directory, "--drain-seconds", "0.5")
    with ExitStack() as stack:
        stack.callback(process.stop)
        stack.callback(remove, kubectl)
        process.start()
        kubectl("apply", "--server-side", "--kustomize", str(write_installation(directory, process.url)))
        found = Webhook(process, kubectl)
        found.works()
        yield found


def remove(kubectl: Kubectl) -> None:
    """What the component has added, and what tests may have left."""
    kubectl("delete", CONFIGURATION, "--ignore-not-found")
    kubectl("delete", SECRET, IN_SYSTEM, "--ignore-not-found")
    kubectl("delete", "npunodepolicies,vgpuprofilemaps", "--all", "--wait=false")


def point_at(kubectl: Kubectl, url: str) -> None:
    patch = [{"op": "replace", "path": f"/webhooks/{number}/clientConfig/url", "value": url} for number in range(2)]
    kubectl("patch", CONFIGURATION, "--type=json", "-p", json.dumps(patch))


async def load(plane: ControlPlane, least: int, steps: list[Callable[[], None]]) -> tuple[list[str], int]:
    """Ask for reviews all the time while the steps are gone, and until there were `least`: failures, and how many."""
    over = asyncio.Event()
    failed: list[str] = []
    asked = 0

    async def caller(api: Api, number: int) -> None:
        nonlocal asked
        while not over.is_set() or asked < least:
            asked += 1
            try:
                await api.create(NPU_NODE_POLICIES, policy(f"load-{number}-{asked}"), dry_run=True)
            except ApiError as error:
                failed.append(str(error))

    connection = Api.connect(
        kubeconfig=plane.admin_kubeconfig, component="load", writes_per_second=10**6, burst=10**6, timeout_seconds=30
    )
    async with connection as api, asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(caller(api, number))
        try:
            for step in steps:
                await asyncio.to_thread(step)
        finally:
            over.set()
    return failed, asked
