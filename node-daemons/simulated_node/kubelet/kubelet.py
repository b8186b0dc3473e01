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
from runtime.event_recorder import EventRecorder
from runtime.list_watch import ListWatch
from runtime.resources import LEASES, NODES, PODS
from runtime.store import Change, Key, Store
from runtime.work_queue import WorkQueue
from simulated_node.kubelet import objects
from simulated_node.kubelet.dra.claim_manager import ClaimError
from simulated_node.kubelet.dra.node_devices import NodeDevices
from simulated_node.kubelet.dra.pod_claims import PodName, PodNotReadyError
from simulated_node.kubelet.objects import NodeFacts, Object

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 300.0
PREPARE_AGAIN_SECONDS = 13.0
RELEASE_AGAIN_SECONDS = 11.0
_UNTIL_LISTED_SECONDS = 0.5
_WORKERS = 8
_ENDED = frozenset({"Succeeded", "Failed"})


class SimulatedKubelet:
    """Runs until cancelled. ``facts`` is asked whenever the node is described, so that a reboot is seen.

    Without ``devices`` pods run whatever claims they have. What could not be prepared, or taken back, is tried again
    after as many seconds as by a real kubelet.
    """

    def __init__(
        self,
        api: Api,
        facts: Callable[[], NodeFacts],
        devices: NodeDevices | None = None,
        *,
        prepare_again_seconds: float = PREPARE_AGAIN_SECONDS,
        release_again_seconds: float = RELEASE_AGAIN_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self._api = api
        self._facts = facts
        self._devices = devices
        self._prepare_again = prepare_again_seconds
        self._release_again = release_again_seconds
        self._events = EventRecorder(api, component="kubelet", instance=facts().name)
        # Pods that ran before the machine was booted, and were told to wait for their devices.
        self._waiting: set[str] = set()
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
        if self._devices is not None:
            self._devices.rebooted()

    async def run(self) -> None:
        name = self._facts().name
        feed = ListWatch(self._api, PODS, self._pods, field_selector=f"spec.nodeName={name}", max_backoff_seconds=5.0)
        self._pods.subscribe(self._changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_alive(), name="node")
            group.create_task(feed.run(), name="pods")
            group.create_task(self._queue.run(_WORKERS, self._play), name="pod lives")
            group.create_task(self._events.run(), name="events")
            if self._devices is not None:
                self._devices.started = self._look_at_all
                group.create_task(self._devices.run(), name="devices")

    def _look_at_all(self) -> None:
        known = self._devices.pods if self._devices is not None else frozenset()
        for key in {*self._pods.keys(), *(Key(pod.namespace, pod.name) for pod in known)}:
            self._queue.add(key)

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
        if not self._pods.synced:
            return _UNTIL_LISTED_SECONDS  # what is not there may only not have been read yet
        pod = self._pods.get(key.name, key.namespace)
        again = await self._release_former(key, None if pod is None else str(pod["metadata"]["uid"]))
        if pod is None:
            return again
        try:
            later = await self._step(pod)
        except (NotFound, Conflict) as error:
            # It went away, or is another by now: its own event tells.
            log.info("Pod %s: %s", key, error)
            later = None
        return min((seconds for seconds in (again, later) if seconds is not None), default=None)

    async def _step(self, pod: Object) -> float | None:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        name = PodName(str(metadata["namespace"]), str(metadata["name"]), str(metadata["uid"]))
        if metadata.get("deletionTimestamp"):
            again = await self._release(name)
            if again is None:
                await self._api.delete(PODS, name.name, name.namespace, uid=name.uid, grace_seconds=0)
            return again
        if phase in _ENDED:
            return await self._release(name)
        if self._devices is not None:
            self._devices.tell_of(pod)
        if phase in (None, "Pending"):
            return await self._start(pod)
        if self._devices is not None and not self._devices.is_ready(pod):
            return await self._start_again(pod)
        return None

    async def _start(self, pod: Object) -> float | None:
        if self._devices is not None:
            try:
                await self._devices.start(pod)
            except (PodNotReadyError, ClaimError) as error:
                text = f"Failed to prepare dynamic resources: {error}"
                self._events.warning(PODS, pod, "FailedPrepareDynamicResources", text)
                return self._prepare_again
        status = objects.running_status(pod, now=_seconds(self._now()))
        await self._api.apply(PODS, status, subresource="status")
        return None

    async def _start_again(self, pod: Object) -> float | None:
        """A pod that ran when the machine was switched off."""
        uid = str(pod["metadata"]["uid"])
        if uid not in self._waiting:
            status = objects.running_status(pod, now=_seconds(self._now()), started=False)
            await self._api.apply(PODS, status, subresource="status")
            self._waiting.add(uid)
        again = await self._start(pod)
        if again is None:
            self._waiting.discard(uid)
        return again

    async def _release(self, pod: PodName) -> float | None:
        """Seconds after which to try again, or None."""
        self._waiting.discard(pod.uid)
        if self._devices is None:
            return None
        try:
            await self._devices.release(pod)
        except ClaimError as error:
            log.warning("Pod %s/%s: %s", pod.namespace, pod.name, error)
            return self._release_again
        return None

    async def _release_former(self, key: Key, uid: str | None) -> float | None:
        """Pods of this name that went away without a word have ended as well."""
        if self._devices is None:
            return None
        former = self._devices.pods_at(key.namespace, key.name) - {uid}
        waits = [await self._release(PodName(key.namespace, key.name, one)) for one in sorted(former)]
        return min((seconds for seconds in waits if seconds is not None), default=None)


def _compact(pod: Object) -> Object:
    """What the kubelet plays with, and nothing else of the pod."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}

    def short(containers: list[Object] | None) -> list[Object]:
        keys = ("name", "image", "restartPolicy")
        return [
            {key: one[key] for key in keys if key in one}
            | {"resources": {"claims": (one.get("resources") or {}).get("claims") or []}}
            for one in containers or []
        ]

    kept: dict[str, Any] = {
        "metadata": {
            key: metadata[key] for key in ("name", "namespace", "uid", "deletionTimestamp") if metadata.get(key)
        },
        "spec": {
            "containers": short(spec.get("containers")),
            "initContainers": short(spec.get("initContainers")),
            "hostNetwork": bool(spec.get("hostNetwork")),
            "nodeName": spec.get("nodeName"),
            "resourceClaims": spec.get("resourceClaims") or [],
        },
        "status": {
            key: status[key]
            for key in ("phase", "resourceClaimStatuses", "extendedResourceClaimStatus")
            if key in status
        },
    }
    return kept


def _seconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
