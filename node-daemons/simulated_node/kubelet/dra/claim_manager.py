"""Prepares claims before their pods start, and takes them back after the last pod is gone.

What was begun is on disk before a plugin is called, so that a claim of a pod that went away while nobody looked is
taken back later. After a start of the kubelet a pod that starts has its claims prepared anew, whatever is on disk.
Source: kubelet pkg/kubelet/cm/dra (manager.go, claiminfo.go).
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from node_host.durable_file import write_durably
from node_host.host import Host
from simulated_node.kubelet.dra.paths import STATE
from simulated_node.kubelet.dra.plugin import ClaimName, GivenDevice, PluginError
from simulated_node.kubelet.dra.pod_claims import PodName

VERSION: Final = 1


class ClaimError(Exception):
    """Claims of a pod could not be prepared or taken back; the text says why."""


class DRAPlugin(Protocol):
    """A plugin as the manager calls it."""

    async def prepare(self, claims: Sequence[ClaimName]) -> Mapping[str, tuple[GivenDevice, ...] | str]:
        """Devices, or the plugin's error, by the claim's UID. Raises PluginError."""
        ...

    async def unprepare(self, claims: Sequence[ClaimName]) -> Mapping[str, str]:
        """The plugin's error by the claim's UID, empty for none. Raises PluginError."""
        ...


@dataclass
class KnownClaim:
    """A claim that a pod of this node has, or is to have. ``pods`` are the pods, by UID."""

    claim: ClaimName
    drivers: tuple[str, ...]
    pods: dict[str, PodName] = field(default_factory=dict)
    is_prepared: bool = False
    devices: tuple[GivenDevice, ...] = ()


class ClaimManager:
    """All claims of one node. ``plugin`` gives the plugin that is called for a driver, or None."""

    def __init__(self, host: Host, plugin: Callable[[str], DRAPlugin | None]) -> None:
        self._path = host.local(STATE)
        self._plugin = plugin
        self._claims: dict[str, KnownClaim] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.boot_id = ""
        """The boot in which the pods were started that it knows; empty when it knows none."""

    def load(self) -> None:
        """What an earlier kubelet has written. Raises OSError, ValueError for what is none of a kubelet's."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise ValueError(f"{STATE}: not of version {VERSION}")
        self.boot_id = str(document["bootID"])
        self._claims = {one["uid"]: _from_json(one) for one in document["claims"]}

    def start_boot(self, boot_id: str) -> None:
        """The machine runs in this boot: where it is another one, claims have to be prepared anew.

        What plugins gave is told until then all the same, as a real kubelet does.
        """
        if boot_id != self.boot_id:
            for known in self._claims.values():
                known.is_prepared = False
            self.boot_id = boot_id
            self._save()

    @property
    def pods(self) -> frozenset[PodName]:
        """Pods that have claims, or are to have them."""
        return frozenset(pod for known in self._claims.values() for pod in known.pods.values())

    def devices(self, claim: str, namespace: str) -> tuple[GivenDevice, ...]:
        """The devices that plugins gave for a claim."""
        for known in self._claims.values():
            if (known.claim.namespace, known.claim.name) == (namespace, claim):
                return known.devices
        return ()

    async def prepare(self, pod: PodName, claims: Mapping[ClaimName, tuple[str, ...]]) -> None:
        """Have a pod's claims prepared; the values are the drivers of their devices. Raises ClaimError."""
        async with self._alone(claim.uid for claim in claims):
            missing = sorted({driver for drivers in claims.values() for driver in drivers if not self._plugin(driver)})
            if missing:
                raise ClaimError(f"DRA driver {', '.join(missing)} is not registered")
            for claim, drivers in claims.items():
                known = self._claims.setdefault(claim.uid, KnownClaim(claim, drivers))
                known.pods[pod.uid] = pod
            self._save()
            unprepared = [known for claim in claims if not (known := self._claims[claim.uid]).is_prepared]
            given: defaultdict[str, list[GivenDevice]] = defaultdict(list)
            for driver, names in _by_driver(unprepared).items():
                for uid, devices in (await self._prepared(driver, names)).items():
                    given[uid] += devices
            for known in unprepared:
                known.devices, known.is_prepared = tuple(given[known.claim.uid]), True
            if unprepared:
                self._save()

    async def release(self, pod_uid: str) -> None:
        """The pod is gone: take back claims that no other pod has. Raises ClaimError, to be tried again."""
        theirs = [uid for uid, known in self._claims.items() if pod_uid in known.pods]
        async with self._alone(theirs):
            known = [self._claims[uid] for uid in theirs if uid in self._claims]
            last = [one for one in known if set(one.pods) == {pod_uid}]
            # From here on nobody is told of them as prepared, whatever comes of the call.
            for one in last:
                one.is_prepared, one.devices = False, ()
            for driver, names in _by_driver(last).items():
                await self._unprepared(driver, names)
            for one in known:
                one.pods.pop(pod_uid, None)
                if not one.pods:
                    del self._claims[one.claim.uid]
            if known:
                self._save()

    async def _prepared(self, driver: str, names: Sequence[ClaimName]) -> dict[str, tuple[GivenDevice, ...]]:
        plugin = self._plugin(driver)
        try:
            answers = await plugin.prepare(names) if plugin is not None else {}
        except PluginError as error:
            raise ClaimError(f"NodePrepareResources of driver {driver}: {error}") from error
        found = {}
        for claim in names:
            answer = answers.get(claim.uid, f"DRA driver {driver} is not registered")
            if isinstance(answer, str):
                title = f"{claim.namespace}/{claim.name}"
                raise ClaimError(f"NodePrepareResources failed for ResourceClaim {title}: {answer}")
            found[claim.uid] = answer
        return found

    async def _unprepared(self, driver: str, names: Sequence[ClaimName]) -> None:
        plugin = self._plugin(driver)
        if plugin is None:
            raise ClaimError(f"DRA driver {driver} is not registered")
        try:
            answers = await plugin.unprepare(names)
        except PluginError as error:
            raise ClaimError(f"NodeUnprepareResources of driver {driver}: {error}") from error
        for claim in names:
            if answers[claim.uid]:
                title = f"{claim.namespace}/{claim.name}"
                raise ClaimError(f"NodeUnprepareResources failed for ResourceClaim {title}: {answers[claim.uid]}")

    @asynccontextmanager
    async def _alone(self, uids: Iterable[str]) -> AsyncIterator[None]:
        """Nobody else is at these claims meanwhile."""
        async with AsyncExitStack() as stack:
            for uid in sorted(uids):
                await stack.enter_async_context(self._turns[uid])
            yield

    def _save(self) -> None:
        claims = [_to_json(known) for _, known in sorted(self._claims.items())]
        document = {"version": VERSION, "bootID": self.boot_id, "claims": claims}
        write_durably(self._path, json.dumps(document).encode())


def _by_driver(claims: Iterable[KnownClaim]) -> dict[str, list[ClaimName]]:
    found: defaultdict[str, list[ClaimName]] = defaultdict(list)
    for known in claims:
        for driver in known.drivers:
            found[driver].append(known.claim)
    return dict(sorted(found.items()))


def _to_json(known: KnownClaim) -> dict[str, Any]:
    pods = [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in known.pods.values()]
    claim = known.claim
    return {
        "uid": claim.uid,
        "namespace": claim.namespace,
        "name": claim.name,
        "drivers": list(known.drivers),
        "pods": pods,
        "devices": [asdict(device) for device in known.devices],
    }


def _from_json(value: dict[str, Any]) -> KnownClaim:
    claim = ClaimName(value["namespace"], value["name"], value["uid"])
    pods = {one["uid"]: PodName(one["namespace"], one["name"], one["uid"]) for one in value["pods"]}
    devices = tuple(
        GivenDevice(**{**one, "requests": tuple(one["requests"]), "cdi_ids": tuple(one["cdi_ids"])})
        for one in value["devices"]
    )
    return KnownClaim(claim, tuple(value["drivers"]), pods, devices=devices)
