"""A node whose claims are prepared: a simulated host, claims in an API server in memory, and what is offered to pods.

`World.claims` is one process of the publisher's part; `World.restart` is the next one over the same files.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from crds.device_names import NamedKind, device_name
from crds.models.node_state import DesiredDevice
from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.claims.claims import Claims
from dra_publisher.claims.lock import ClaimLock
from dra_publisher.handover.ledger import CheckpointLedger
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef
from dra_publisher.offers.offer import Offer
from node_host.boot import read_boot_id
from node_host.bounded_call import BoundedCalls
from node_host.evidence.checkpoint import CHECKPOINT, Checkpoint, decode
from node_host.host import Host
from runtime.api import Listing
from runtime.resources import RESOURCE_CLAIMS, Resource
from simulated_node.description_files import parse_description
from simulated_node.kernel import SimulatedKernel
from tests.builders.fake_objects import Object, Objects
from tests.builders.hosts import give_to_vfio
from tests.builders.memory_api import MemoryApi

T = TypeVar("T")

NODE = "node-atom"
DRIVER = "npufleet.io"
OTHER_DRIVER = "npu.rebellions.ai"
FIRST = "0000:21:00.0"
SECOND = "0000:22:00.0"
CARD = "0000:25:00.0"
"""Shares its IOMMU group with COMPANION."""
COMPANION = "0000:25:00.1"
NATIVE = "0000:2b:00.0"
ALL_VFIO = (FIRST, SECOND, CARD, COMPANION)

_HOST = """
name: claims
devices:
  - {address: "0000:20:01.0", parent: "pci0000:20", vendor: "8086", device: "2030", class: "060400", iommuGroup: 40}
  - &npu
    address: "0000:21:00.0"
    parent: "0000:20:01.0"
    vendor: "1eff"
    device: "1250"
    class: "120000"
    iommuGroup: 20
  - {<<: *npu, address: "0000:22:00.0", iommuGroup: 21}
  - {<<: *npu, address: "0000:25:00.0", iommuGroup: 24}
  - {<<: *npu, address: "0000:25:00.1", iommuGroup: 24}
  - {<<: *npu, address: "0000:2b:00.0", iommuGroup: 25}
"""


class ClaimsApi(MemoryApi):
    """With what else is done to claims. An answer that was read waits for ``gate``; then ``reading`` is set."""

    gate: asyncio.Event | None = None

    def __init__(self, objects: Objects) -> None:
        super().__init__(objects)
        self.reading = asyncio.Event()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        found = await super().get(resource, name, namespace)
        self.reading.set()
        if self.gate is not None:
            await self.gate.wait()
        return found

    async def list(
        self, resource: Resource, namespace: str | None = None, *, convert: Callable[[Object], T]
    ) -> Listing[T]:
        items: list[T] = []

        def act() -> Object:
            items.extend(convert(item) for item in self.objects.items(resource))
            return {}

        await self._call("list", act)
        return Listing(items, str(self.objects.version))

    async def apply(
        self, resource: Resource, body: Object, *, field_manager: str | None = None, subresource: str | None = None
    ) -> Object:
        metadata = body["metadata"]
        return await self._call(
            "apply",
            lambda: self.objects.apply(
                resource,
                metadata["name"],
                body,
                str(field_manager),
                metadata.get("namespace"),
                subresource or "",
            ),
        )


def order(address: str, mode: str = "Passthrough", driver: str = DRIVER, **blocks: Any) -> DesiredDevice:
    """An order for one of the host's devices."""
    return DesiredDevice.model_validate(
        {
            "address": address,
            "identity": {"vendor": "1eff", "device": "1250"},
            "mode": mode,
            "intent": "Apply",
            "driverName": driver,
            "decidedBy": {"policy": "p", "rule": "r"},
            **blocks,
        }
    )


def offer(address: str, kind: NamedKind = NamedKind.VFIO, driver: str = DRIVER, **blocks: Any) -> Offer:
    """What pods may have of it."""
    capacity = blocks.pop("capacity", {})
    mode = "Passthrough" if kind is NamedKind.VFIO else "Container"
    return Offer(
        address=address,
        kind=kind,
        name=device_name(kind, address),
        driver=driver,
        entry=order(address, mode, driver, **blocks),
        capacity=capacity,
    )


def vfio(address: str) -> str:
    return device_name(NamedKind.VFIO, address)


def result(device: str, request: str = "npu", *, driver: str = DRIVER, pool: str = NODE, **more: Any) -> Object:
    """One result of an allocation."""
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


@dataclass
class World:
    """One node. ``offers`` are found by driver and name; ``users`` are seen to have devices (by address)."""

    host: Host
    api: ClaimsApi
    boot_id: str
    offers: dict[tuple[str, str], Offer] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    changes: int = 0
    now: float = 1000.0
    users_fail: bool = False

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, *, host: Host | None = None, lock: ClaimLock | None = None) -> Claims:
        """Another process over the same files; it is not started yet."""
        seen = host or self.host
        self.store = CheckpointStore(seen)
        held = lock or ClaimLock(self.store)
        self.ledger = CheckpointLedger(self.store, held)
        self.claims = Claims(
            self.api,
            seen,
            self.store,
            lambda driver, name: self.offers.get((driver, name)),
            pool=NODE,
            boot_id=self.boot_id,
            users=self._users,
            on_change=self._changed,
            tell=lambda reason, message: self.told.append((reason, message)),
            calls=BoundedCalls(deadline_seconds=2.0),
            lock=held,
            clock=lambda: self.now,
        )
        return self.claims

    def _changed(self) -> None:
        self.changes += 1

    async def _users(self, addresses: Collection[str]) -> Mapping[str, str]:
        await asyncio.sleep(0)
        if self.users_fail:
            raise OSError("the kubelet does not answer")
        return {address: who for address, who in self.users.items() if address in addresses}

    def offer(self, *offers: Offer) -> None:
        for one in offers:
            self.offers[one.driver, one.name] = one

    def withdraw(self, address: str) -> None:
        self.offers = {key: one for key, one in self.offers.items() if one.address != address}

    def claim(
        self,
        name: str,
        *devices: str | Object,
        namespace: str = "team-a",
        uid: str | None = None,
        config: Iterable[Object] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> ClaimRef:
        """A claim in the API server with these devices allocated (names: with one request for all)."""
        results = [result(one) if isinstance(one, str) else one for one in devices]
        status = {"allocation": {"devices": {"results": results, "config": list(config)}}} if results else {}
        metadata: Object = {"name": name, "namespace": namespace, "uid": uid or str(uuid.uuid4())}
        if annotations:
            metadata["annotations"] = dict(annotations)
        self.api.objects.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {}, "status": status}, namespace)
        return ClaimRef(namespace, name, metadata["uid"])

    def delete(self, ref: ClaimRef) -> None:
        self.api.objects.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    def allocate(self, ref: ClaimRef, *devices: str | Object) -> None:
        """Give the claim other devices, or none."""
        results = [result(one) if isinstance(one, str) else one for one in devices]
        status = {"allocation": {"devices": {"results": results, "config": []}}} if results else {}
        self.api.objects.edit(RESOURCE_CLAIMS, ref.name, ref.namespace, status=status)

    async def prepare(self, *refs: ClaimRef, driver: str = DRIVER) -> dict[str, tuple[AnsweredDevice, ...] | str]:
        return dict(await self.claims.prepare(driver, refs))

    async def prepared(self, ref: ClaimRef, driver: str = DRIVER) -> tuple[AnsweredDevice, ...]:
        """The devices, where the claim has to be prepared."""
        found = (await self.prepare(ref, driver=driver))[ref.uid]
        assert isinstance(found, tuple), found
        return found

    async def refused(self, ref: ClaimRef, driver: str = DRIVER) -> str:
        """Why it was not prepared."""
        found = (await self.prepare(ref, driver=driver))[ref.uid]
        assert isinstance(found, str), found
        return found

    async def unprepare(self, *refs: ClaimRef, driver: str = DRIVER) -> dict[str, str | None]:
        return dict(await self.claims.unprepare(driver, refs))

    def holders(self, address: str) -> list[str]:
        """The claims that were prepared with the device, in messages."""
        return [one.claim for one in self.ledger.holders(address)]

    # What is on the host

    @property
    def cdi(self) -> Path:
        return self.host.local("/var/run/cdi")

    @property
    def checkpoint_path(self) -> Path:
        return self.host.local(CHECKPOINT)

    def record(self) -> Checkpoint:
        """What another process reads."""
        return decode(self.checkpoint_path.read_bytes()) if self.checkpoint_path.exists() else Checkpoint()

    def cdi_devices(self) -> dict[str, Object]:
        """Container edits by the full id of each CDI device; no id is there twice."""
        found: dict[str, Object] = {}
        for path in sorted(self.cdi.glob("*.json")) if self.cdi.exists() else ():
            spec = json.loads(path.read_bytes())
            for device in spec["devices"]:
                name = f"{spec['kind']}={device['name']}"
                assert name not in found
                assert device["containerEdits"], f"{name} has no edits"
                found[name] = device["containerEdits"]
        return found

    def nodes_of(self, devices: Iterable[AnsweredDevice]) -> list[str]:
        """Device nodes that a container with these devices gets."""
        there = self.cdi_devices()
        ids = sorted({name for device in devices for name in device.cdi_ids})
        return [node["path"] for name in ids for node in there[name].get("deviceNodes", ())]

    def files(self) -> list[str]:
        """Every file that a claim has left."""
        roots = (self.cdi, self.host.local("/var/lib/kubelet/plugins"))
        return sorted(str(path) for root in roots if root.exists() for path in root.rglob("*") if path.is_file())

    def wipe_disk(self) -> None:
        """Nothing was ever prepared on this host."""
        self.store.close()
        for directory in ("/var/lib/npufleet", "/var/lib/kubelet"):
            shutil.rmtree(self.host.local(directory), ignore_errors=True)

    def wipe_tmpfs(self) -> None:
        """What a reboot does to /run and /var/run."""
        for directory in ("/run", "/var/run"):
            shutil.rmtree(self.host.local(directory), ignore_errors=True)


@contextmanager
def machine(root: Path, *, bound: Iterable[str] = ALL_VFIO, in_memory: bool = True) -> Iterator[SimulatedKernel]:
    """The host, with these devices on vfio-pci; in files where other processes are to see it."""
    with SimulatedKernel(root / "host", parse_description(_HOST), in_memory=in_memory) as kernel:
        host = kernel.host()
        for address in bound:
            give_to_vfio(host, address)
        yield kernel


def world_of(kernel: SimulatedKernel) -> World:
    """All of its devices are offered as they are."""
    host = kernel.host()
    world = World(host, ClaimsApi(Objects()), read_boot_id(host))
    world.offer(*(offer(address) for address in ALL_VFIO), offer(NATIVE, NamedKind.NPU))
    return world
