"""What becomes of a claim that is to be prepared: from its allocation, what is offered, and what is recorded. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from crds.device_names import NamedKind, address_of
from crds.models.modes import IOMMUBackend
from crds.models.node_state import DesiredDevice
from dra_publisher.cdi.specs import CDIFile, GivenDevice, claim_specs
from dra_publisher.claims.allocation import AllocatedDevice, Allocation, base_request
from dra_publisher.claims.config import refuse_for_others, settled, wished
from dra_publisher.claims.shape import Wanted
from dra_publisher.kubelet.service import AnsweredDevice
from dra_publisher.metadata.documents import DescribedClaim, DescribedDevice, RequestMetadata, requests_of
from node_host.evidence.checkpoint import UNKNOWN_SHAPE, ClaimState, PreparedClaim, PreparedDevice


class Offered(Protocol):
    """What is offered to pods under a name now (`dra_publisher.offers.offer.Offer`)."""

    @property
    def address(self) -> str: ...
    @property
    def kind(self) -> NamedKind: ...
    @property
    def entry(self) -> DesiredDevice: ...
    @property
    def capacity(self) -> Mapping[str, str]: ...
    @property
    def profile(self) -> str | None: ...
    @property
    def shape(self) -> str: ...


class UnknownDeviceError(Exception):
    """Nobody offers the device, and it was not prepared for this claim before; the text says so."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that a claim is to get: what has to be true of the host, and what is recorded then."""

    allocated: AllocatedDevice
    wanted: Wanted
    shape: str
    capacity: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """All files of a claim at one driver. ``ids`` are those of each device by its name, without metadata."""

    cdi: tuple[CDIFile, ...]
    metadata: tuple[RequestMetadata, ...]
    ids: Mapping[str, tuple[str, ...]]


def held_by(entry: PreparedClaim | None, driver: str) -> tuple[PreparedDevice, ...]:
    """What the record has of a claim at a driver."""
    return () if entry is None else tuple(device for device in entry.devices if device.driver == driver)


def has_files(entry: PreparedClaim | None, driver: str, boot_id: str) -> bool:
    """Whether it was prepared at the driver in this boot, as far as that the kubelet may have been told."""
    held = held_by(entry, driver)
    return entry is not None and entry.boot_id == boot_id and bool(held) and all(device.cdi_ids for device in held)


def is_same(held: Iterable[PreparedDevice], allocation: Allocation) -> bool:
    """Whether the record is of this allocation."""
    recorded = sorted((one.requests, one.pool, one.device, one.share_id or "", one.admin_access) for one in held)
    allocated = sorted(
        ((one.request,), one.pool, one.device, one.share_id or "", one.admin_access) for one in allocation.devices
    )
    return recorded == allocated


def candidate(
    allocation: Allocation, device: AllocatedDevice, offer: Offered | None, entry: PreparedClaim | None
) -> Candidate:
    """What the device is, by what is offered under its name, or by what this claim had before a reboot.

    Raises UnknownDeviceError, and ConfigError where the configuration cannot be met.
    """
    recorded = next((one for one in held_by(entry, device.driver) if one.device == device.device), None)
    address = offer.address if offer is not None else recorded.address if recorded else None
    if address is None:
        raise UnknownDeviceError(_unknown(device.device))
    kind = offer.kind if offer is not None else kind_of(device.device)
    if kind is None:
        raise UnknownDeviceError(_unknown(device.device))
    policy = _policy(offer) if offer is not None else _backend_of(recorded.nodes if recorded else ())
    if kind in (NamedKind.VFIO, NamedKind.VGPU):
        backend = settled(policy, wished(allocation.configs, device.request))
    else:
        refuse_for_others(allocation.configs, device.request, device.device)
        backend = IOMMUBackend.AUTO
    identity = offer.entry.identity if offer is not None and offer.entry.address == address else None
    wanted = Wanted(
        address,
        kind,
        backend,
        None if identity is None else identity.vendor,
        None if identity is None else identity.device,
        # What the claim had stays what it was promised, whatever is offered under the name since.
        (recorded.profile if recorded else None) or (offer.profile if offer is not None else None),
    )
    shape = offer.shape if offer is not None else recorded.shape if recorded else UNKNOWN_SHAPE
    return Candidate(device, wanted, shape, offer.capacity if offer is not None else {})


def _unknown(device: str) -> str:
    return (
        f"{device} is not offered by this node (now): waits until it is as ordered in this boot, "
        "or for another allocation"
    )


def _policy(offer: Offered) -> IOMMUBackend:
    settings = offer.entry.passthrough
    return IOMMUBackend.AUTO if settings is None else settings.iommu


def _backend_of(nodes: Sequence[str]) -> IOMMUBackend:
    """How a device was given before, as its nodes tell."""
    is_legacy, is_iommufd = "/dev/vfio/vfio" in nodes, "/dev/iommu" in nodes
    if is_legacy == is_iommufd:
        return IOMMUBackend.AUTO
    return IOMMUBackend.LEGACY if is_legacy else IOMMUBackend.IOMMUFD


def kind_of(device: str) -> NamedKind | None:
    """What a device is by its name; None for a name that npufleet does not make."""
    return NamedKind(device.partition("-")[0]) if address_of(device) is not None else None


def started(
    allocation: Allocation,
    found: Sequence[tuple[Candidate, tuple[str, ...]]],
    *,
    driver: str,
    boot_id: str,
    before: PreparedClaim | None,
) -> PreparedClaim:
    """The record of a claim whose devices have these nodes; what it has of other drivers is kept.

    What those had in another boot has no nodes in this one: it is prepared anew when its driver is asked.
    """
    kept = tuple(one for one in (before.devices if before else ()) if one.driver != driver)
    if before is not None and before.boot_id != boot_id:
        kept = tuple(replace(one, nodes=(), cdi_ids=(), is_earlier=True) for one in kept)
    devices = tuple(
        PreparedDevice(
            driver=driver,
            pool=one.allocated.pool,
            device=one.allocated.device,
            address=one.wanted.address,
            requests=(one.allocated.request,),
            cdi_ids=(),
            share_id=one.allocated.share_id,
            admin_access=one.allocated.admin_access,
            shape=one.shape,
            nodes=nodes,
            consumed=one.allocated.consumed,
            profile=one.wanted.profile,
        )
        for one, nodes in found
    )
    claim = PreparedClaim(
        allocation.uid,
        allocation.namespace,
        allocation.name,
        boot_id,
        ClaimState.STARTED,
        kept + devices,
        allocation.pod_claim_name,
    )
    return with_ids(claim, driver)


def with_ids(claim: PreparedClaim, driver: str) -> PreparedClaim:
    """With the ids of the CDI devices that its files hold; that of a request's metadata is at its first device."""
    files = files_of(claim, driver)
    metadata = {one.request: one.cdi_id for one in files.metadata}
    devices = []
    for device in claim.devices:
        if device.driver != driver:
            devices.append(device)
            continue
        first = metadata.pop(base_request(device.requests[0]), None)
        ids = files.ids[device.device]
        devices.append(replace(device, cdi_ids=ids if first is None else (*ids, first)))
    return replace(claim, devices=tuple(devices))


def files_of(claim: PreparedClaim, driver: str) -> ClaimFiles:
    """The files that a claim has at a driver, from the record alone."""
    held = held_by(claim, driver)
    given = [GivenDevice(one.device, str(kind_of(one.device)), one.address, one.nodes) for one in held]
    described = DescribedClaim(
        driver,
        claim.uid,
        claim.namespace,
        claim.name,
        claim.pod_claim_name,
        tuple(DescribedDevice(one.requests[0], one.pool, one.device, one.address) for one in held),
    )
    specs = claim_specs(driver, claim.uid, given)
    return ClaimFiles(specs.files, requests_of(described), specs.ids)


def answer(claim: PreparedClaim, driver: str) -> tuple[AnsweredDevice, ...]:
    """What the kubelet is told."""
    return tuple(
        AnsweredDevice(
            tuple(base_request(request) for request in device.requests),
            device.pool,
            device.device,
            device.cdi_ids,
            device.share_id,
        )
        for device in held_by(claim, driver)
    )


def without(claim: PreparedClaim, driver: str) -> PreparedClaim | None:
    """The record once a driver's devices are taken back; None when nothing is left of it."""
    kept = tuple(device for device in claim.devices if device.driver != driver)
    return replace(claim, devices=kept) if kept else None


def recovered(
    uid: str, namespace: str, name: str, pod_claim_name: str, devices: Sequence[AllocatedDevice], boot_id: str
) -> PreparedClaim:
    """The record of a claim that may have been prepared, from its allocation: it holds the devices, no more."""
    held = tuple(
        PreparedDevice(
            driver=one.driver,
            pool=one.pool,
            device=one.device,
            address=address,
            requests=(one.request,),
            cdi_ids=(),
            share_id=one.share_id,
            admin_access=one.admin_access,
            shape=UNKNOWN_SHAPE,
            consumed=one.consumed,
        )
        for one in devices
        if (address := address_of(one.device)) is not None
    )
    return PreparedClaim(uid, namespace, name, boot_id, ClaimState.STARTED, held, pod_claim_name)
