"""The devices of claims on one simulated node: what its kubelet does for them beside playing pods."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from node_host.host import Host
from runtime.api import Api, NotFound
from runtime.resources import RESOURCE_CLAIMS
from simulated_node.kubelet.dra.claim_manager import ClaimManager
from simulated_node.kubelet.dra.paths import POD_LOGS, PODS
from simulated_node.kubelet.dra.plugin import ClaimName
from simulated_node.kubelet.dra.pod_claims import PodClaims, PodName, PodNotReadyError, claims_of, drivers_of
from simulated_node.kubelet.dra.pod_resources_server import PodResourcesServer
from simulated_node.kubelet.dra.registry import PluginRegistry
from simulated_node.kubelet.dra.slices import GRACE_SECONDS, SliceCleaner

log = logging.getLogger(__name__)

Object = dict[str, Any]


class NodeDevices:
    """Plugins, claims, slices and the PodResources socket of one node. Use it within one event loop.

    ``boot_id`` is asked whenever it starts. ``started`` is called then: every pod is to be looked at again.
    """

    def __init__(
        self,
        api: Api,
        host: Host,
        node: str,
        boot_id: Callable[[], str],
        *,
        grace_seconds: float = GRACE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._host = host
        self._boot_id = boot_id
        self.started: Callable[[], None] = lambda: None
        self._registry = PluginRegistry(host, self._plugins_changed, sleep=sleep)
        self._manager = ClaimManager(host, self._registry.plugin)
        self._cleaner = SliceCleaner(api, node, grace_seconds=grace_seconds, sleep=sleep)
        self._pods: dict[str, PodClaims] = {}
        # Pods that have their devices in this boot, by UID.
        self._ready: set[str] = set()
        self._known_drivers: set[str] = set()
        self._restart = asyncio.Event()
        self.pod_resources = PodResourcesServer(host, lambda: tuple(self._pods.values()), self._manager.devices)

    async def run(self) -> None:
        """Serve until cancelled. What an earlier kubelet has written is read first."""
        try:
            self._manager.load()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("What is known of claims cannot be read, and is forgotten: %s", error)
        self._ready = {pod.uid for pod in self._manager.pods} if self._manager.boot_id == self._boot_id() else set()
        try:
            while True:
                self._restart.clear()
                await self._live()
                self._ready.clear()
        finally:
            self._cleaner.close()

    def rebooted(self) -> None:
        """The machine came up again: nothing runs, and plugins make themselves known anew."""
        self._restart.set()

    async def _live(self) -> None:
        """Until the machine is booted again."""
        self._manager.start_boot(self._boot_id())
        self.started()
        works = [
            asyncio.ensure_future(work)
            for work in (self._cleaner.clean(), self._registry.run(), self.pod_resources.run(), self._restart.wait())
        ]
        restart = works[-1]
        try:
            while not restart.done():
                done, _ = await asyncio.wait({one for one in works if not one.done()}, return_when="FIRST_COMPLETED")
                for one in done:
                    await one
        finally:
            for one in works:
                one.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            self._cleaner.close()

    def pods_at(self, namespace: str, name: str) -> frozenset[str]:
        """UIDs of the pods of this name that have claims, or are to have them."""
        return frozenset(pod.uid for pod in self._manager.pods if (pod.namespace, pod.name) == (namespace, name))

    @property
    def pods(self) -> frozenset[PodName]:
        """Pods that have claims, or are to have them."""
        return self._manager.pods

    def is_ready(self, pod: Object) -> bool:
        """Whether a pod that ran before has in this boot what it needs."""
        return pod["metadata"]["uid"] in self._ready or not _has_claims(pod)

    async def start(self, pod: Object) -> None:
        """Have all devices of a pod prepared. Raises PodNotReadyError, ClaimError, ApiError: to be tried again."""
        wanted = claims_of(pod)
        if wanted.claims:
            claims = {}
            for name in wanted.claims:
                try:
                    claim = await self._api.get(RESOURCE_CLAIMS, name, wanted.pod.namespace)
                except NotFound as error:
                    raise PodNotReadyError(f"ResourceClaim {wanted.pod.namespace}/{name} is not there") from error
                uid = str(claim["metadata"]["uid"])
                claims[ClaimName(wanted.pod.namespace, name, uid)] = drivers_of(claim, wanted.pod)
            await self._manager.prepare(wanted.pod, claims)
            self._ready.add(wanted.pod.uid)

    def tell_of(self, pod: Object) -> None:
        """Tell others of a pod that is here, whether it has all that it needs or not."""
        with suppress(PodNotReadyError):
            wanted = claims_of(pod)
            if wanted.pod.uid not in self._pods:
                self._pods[wanted.pod.uid] = wanted
                for directory in _directories(wanted.pod):
                    self._host.local(directory).mkdir(parents=True, exist_ok=True)

    async def release(self, pod: PodName) -> None:
        """A pod has ended: take its devices back. Raises ClaimError, to be tried again."""
        self._pods.pop(pod.uid, None)
        await self._manager.release(pod.uid)
        self._ready.discard(pod.uid)
        for directory in _directories(pod):
            with suppress(OSError):
                self._host.local(directory).rmdir()

    def _plugins_changed(self) -> None:
        self._known_drivers |= self._registry.drivers
        for driver in self._known_drivers:
            if self._registry.is_connected(driver):
                self._cleaner.back(driver)
            else:
                self._cleaner.gone(driver)


def _has_claims(pod: Object) -> bool:
    status = pod.get("status") or {}
    return bool((pod.get("spec") or {}).get("resourceClaims") or status.get("extendedResourceClaimStatus"))


def _directories(pod: PodName) -> tuple[str, str]:
    return f"{POD_LOGS}/{pod.namespace}_{pod.name}_{pod.uid}", f"{PODS}/{pod.uid}"
