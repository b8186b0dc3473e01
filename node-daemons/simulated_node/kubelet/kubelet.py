"""The simulated kubelet: registers the node, keeps it alive, and plays the life of the pods bound to it.

Like the real one it registers its Node when it starts (here also when the machine reboots) and not again when
somebody deletes it. Without an API server it waits and tries again; nothing of it is remembered but the Node's UID.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from runtime.api import Api, ApiError, Conflict, NotFound
from runtime.backoff import Backoff
from runtime.list_watch import ListWatch
from runtime.resources import LEASES, NODES, PODS
from runtime.store import Change, Key, Store
from runtime.work_queue import WorkQueue
from simulated_node.kubelet import objects
from simulated_node.kubelet.objects import NodeFacts, Object

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 300.0
_WORKERS = 2


class SimulatedKubelet:
    """Runs until cancelled. ``facts`` is asked whenever the node is described, so that a reboot is seen."""

    def __init__(
        self,
        api: Api,
        facts: Callable[[], NodeFacts],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self._api = api
        self._facts = facts
        self._now = now
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._rebooted = asyncio.Event()
        self._uid: str | None = None
        self._reported: tuple[str, datetime] | None = None
        self._pods: Store[Object] = Store(_compact)
        self._queue: WorkQueue[Key] = WorkQueue("simulated-kubelet", base_delay=0.2, max_delay=10.0)

    def rebooted(self) -> None:
        """The machine came up again: describe it anew at once. Call it in the kubelet's loop."""
        self._rebooted.set()

    async def run(self) -> None:
        name = self._facts().name
        feed = ListWatch(self._api, PODS, self._pods, field_selector=f"spec.nodeName={name}", max_backoff_seconds=5.0)
        self._pods.subscribe(self._changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_alive(), name="node")
            group.create_task(feed.run(), name="pods")
            group.create_task(self._queue.run(_WORKERS, self._play), name="pod lives")

    def _changed(self, changes: Sequence[Change[Object]]) -> None:
        for change in changes:
            self._queue.add(change.key)

    async def _keep_alive(self) -> None:
        backoff = Backoff(0.2, HEARTBEAT_SECONDS, self._random)
        while True:
            try:
                await self._beat()
            except ApiError as error:
                pause = backoff.next()
                log.warning("Node %s: again in %.1f s: %s", self._facts().name, pause, error)
            else:
                backoff.reset()
                pause = HEARTBEAT_SECONDS
            await self._pause(pause)

    async def _beat(self) -> None:
        facts = self._facts()
        if self._rebooted.is_set():
            self._rebooted.clear()
            self._uid = None
        if self._uid is None:
            registered = await self._api.apply(NODES, objects.node(facts))
            self._uid = str(registered["metadata"]["uid"])
            self._reported = None
        try:
            await self._report(facts, self._uid)
            await self._api.apply(LEASES, objects.node_lease(facts, uid=self._uid, now=_micro(self._now())))
        except (NotFound, Conflict) as error:
            # Somebody deleted the Node, or made another of its name: a kubelet leaves that as it is.
            log.warning("Node %s is not the one that was registered: %s", facts.name, error)

    async def _report(self, facts: NodeFacts, uid: str) -> None:
        now = self._now()
        if self._reported is not None:
            boot_id, when = self._reported
            if boot_id == facts.boot_id and (now - when).total_seconds() < STATUS_SECONDS:
                return
        # Apply makes what is missing; a Node that was deleted must stay so.
        await self._api.get(NODES, facts.name)
        await self._api.apply(NODES, objects.node_status(facts, uid=uid, now=_seconds(now)), subresource="status")
        self._reported = (facts.boot_id, now)

    async def _pause(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        rebooting = asyncio.ensure_future(self._rebooted.wait())
        try:
            await asyncio.wait({sleeping, rebooting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            rebooting.cancel()

    async def _play(self, key: Key) -> float | None:
        """One step in the life of a pod, whatever happened to it."""
        pod = self._pods.get(key.name, key.namespace)
        if pod is None:
            return None
        uid = str(pod["metadata"]["uid"])
        try:
            if pod["metadata"].get("deletionTimestamp"):
                await self._api.delete(PODS, key.name, key.namespace, uid=uid, grace_seconds=0)
            elif (pod.get("status") or {}).get("phase") in (None, "Pending"):
                status = objects.running_status(pod, now=_seconds(self._now()))
                await self._api.apply(PODS, status, subresource="status")
        except (NotFound, Conflict) as error:
            # It went away, or is another by now: its own event tells.
            log.info("Pod %s: %s", key, error)
        return None


def _compact(pod: Object) -> Object:
    """What the kubelet plays with, and nothing else of the pod."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}

    def short(containers: list[Object] | None) -> list[Object]:
        return [{key: one[key] for key in ("name", "image", "restartPolicy") if key in one} for one in containers or []]

    kept: dict[str, Any] = {
        "metadata": {
            key: metadata[key] for key in ("name", "namespace", "uid", "deletionTimestamp") if metadata.get(key)
        },
        "spec": {
            "containers": short(spec.get("containers")),
            "initContainers": short(spec.get("initContainers")),
            "hostNetwork": bool(spec.get("hostNetwork")),
            "nodeName": spec.get("nodeName"),
        },
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }
    return kept


def _seconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
