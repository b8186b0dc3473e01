"""What the bench plays on: an API server with a fleet's Nodes and policies, and one replica of the webhook."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.kubectl import find_kubectl
from cli.cluster.run.control_plane import ControlPlane
from cli.progress import Progress
from runtime.api import Api
from runtime.resources import NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, VALIDATING_WEBHOOKS
from tests.builders.paper_binder import Card, address, report_on
from tests.builders.waiting import eventually
from tests.builders.webhook_process import CONFIGURATION, WebhookProcess, write_installation

_WRITERS = 16
_NO_LIMIT = 10**6
_POOLS = 10


class BenchError(Exception):
    """The bench cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`authorities`: what a client of the replica has to trust, PEM."""

    plane: ControlPlane
    api: Api
    replica: WebhookProcess
    authorities: str
    progress: Progress

    async def ask_webhook(self, wanted: bool) -> None:
        """Whether the API server asks the webhook for what is created from now on."""
        operations = ["CREATE", "UPDATE"] if wanted else ["UPDATE"]
        patch = [{"op": "replace", "path": "/webhooks/0/rules/0/operations", "value": operations}]
        await self.api.patch(VALIDATING_WEBHOOKS, "npufleet.io", patch)
        await asyncio.sleep(3)  # the API server learns of it by its own watch, and tells nobody when


@asynccontextmanager
async def stage(directory: Path, *, nodes: int, policies: int, progress: Progress) -> AsyncIterator[Stage]:
    """Set everything up in `directory`; all processes have ended when the block is left."""
    with ControlPlane.start(directory / "plane", components=(), progress=progress) as plane:
        run = _Kubectl(plane)
        run("apply", "--server-side", "--kustomize", str(Path(__file__).parents[3] / "kustomize/base"))
        run("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        connection = Api.connect(
            kubeconfig=plane.admin_kubeconfig,
            component="bench",
            writes_per_second=_NO_LIMIT,
            burst=_NO_LIMIT,
            timeout_seconds=60,
        )
        async with connection as api:
            with progress.step(f"making {nodes} Nodes and {policies} policies", f"{nodes} Nodes, {policies} policies"):
                await _fleet(api, nodes, policies)
            replica = WebhookProcess(plane, directory)
            try:
                replica.start()
                run("apply", "--server-side", "--kustomize", str(write_installation(directory, replica.url)))
                await asyncio.to_thread(eventually, replica.is_ready, seconds=120, what="the webhook is ready")
                found = json.loads(run("get", CONFIGURATION, "-o", "json"))
                bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]).decode()
                yield Stage(plane, api, replica, bundle, progress)
            finally:
                replica.stop()


class _Kubectl:
    def __init__(self, plane: ControlPlane) -> None:
        self._command = [str(find_kubectl()), f"--kubeconfig={plane.admin_kubeconfig}"]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


async def _fleet(api: Api, nodes: int, policies: int) -> None:
    """Nodes in pools, each with the inventory of eight cards; one policy for each pool, and some for nobody yet."""
    cards = {address(number): Card() for number in range(8)}

    async def node(number: int) -> None:
        name = f"bench-{number:05}"
        labels = {"npufleet.io/pool": f"pool-{number % _POOLS}", "kubernetes.io/hostname": name}
        made = await api.create(NODES, {"metadata": {"name": name, "labels": labels}})
        spec = {"revision": "", "nodeUID": made["metadata"]["uid"], "devices": []}
        state = await api.create(NPU_NODE_STATES, {"metadata": {"name": name}, "spec": spec})
        state["status"] = report_on(state, cards, f"boot-{name}")
        await api.replace(NPU_NODE_STATES, state, subresource="status")

    async def policy(number: int) -> None:
        rule = {"name": "all", "match": {"products": ["RBLN-CA25"]}, "mode": "Passthrough"}
        selector = {"matchLabels": {"npufleet.io/pool": f"pool-{number}"}}
        body = {"metadata": {"name": f"fleet-{number}"}, "spec": {"nodeSelector": selector, "devices": [rule]}}
        await api.create(NPU_NODE_POLICIES, body)

    work = [node(number) for number in range(nodes)] + [policy(number) for number in range(policies)]
    rest = iter(work)

    async def writer() -> None:
        for one in rest:
            await one

    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(writer())
