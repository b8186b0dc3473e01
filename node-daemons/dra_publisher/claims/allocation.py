"""What was allocated to a claim, read from a ResourceClaim as the API server gives it. Pure.

Nothing of the object is taken for granted: whatever is wrong with it is one sentence about this claim, and costs no
other claim anything. Source of the shape: k8s.io/api/resource/v1 (ResourceClaim.status.allocation).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was made from a template: the name that its pod has for it."""

_MOST: Final = 32  # results and configurations of one claim, a limit of the API
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DEVICE: Final = re.compile(_LABEL)
_REQUEST: Final = re.compile(rf"{_LABEL}(?:/{_LABEL})?")
_POOL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9./]{0,251}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_SHARE: Final = re.compile(r"[0-9A-Fa-f-]{1,64}")
_UID: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,62}[0-9A-Za-z])?")
_SHOWN: Final = 60


class AllocationError(ValueError):
    """Nothing can be prepared from this object; the text says what is wrong with it."""


class Source(StrEnum):
    """Who wrote a configuration."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result. ``request`` may name a subrequest ("npu/large"); ``consumed`` are quantities by capacity name."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    consumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str | None]:
        """What tells it from every other device, and share of a device, in the cluster."""
        return (self.driver, self.pool, self.device, self.share_id)


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """A configuration for our driver, not decoded; for all requests where ``requests`` is empty."""

    source: Source
    requests: tuple[str, ...]
    parameters: Any

    def applies_to(self, request: str) -> bool:
        """Whether it is for a request; one for `npu` is for `npu/large` too."""
        return not self.requests or request in self.requests or base_request(request) in self.requests


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one claim has of one driver in one pool."""

    uid: str
    namespace: str
    name: str
    pod_claim_name: str
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[OpaqueConfig, ...] = ()


def base_request(request: str) -> str:
    """`npu` of `npu/large`."""
    return request.partition("/")[0]


def is_uid(text: str) -> bool:
    """Whether it can be the UID of an object, and hence a part of a file's name."""
    return _UID.fullmatch(text) is not None


def read_allocation(claim: object, *, uid: str, namespace: str, name: str, driver: str, pool: str) -> Allocation:
    """What the claim has of ``driver`` in ``pool``, in the order of its results. Results of other drivers are not
    looked at.

    Raises AllocationError: the object is another one than the kubelet means, has no allocation, or is malformed.
    """
    metadata, allocation = _identified(claim, uid, namespace, name)
    devices = _mapping(allocation.get("devices", {}), "status.allocation.devices")
    found = tuple(_results(devices, lambda one: one == driver))
    if not found:
        raise AllocationError(f"no device of {driver} is allocated to it")
    strange = next((device for device in found if device.pool != pool), None)
    if strange is not None:
        raise AllocationError(f"{strange.device} is allocated from pool {strange.pool}; this node has pool {pool} only")
    _refuse_twins(found)
    annotations = _mapping(metadata.get("annotations") or {}, "metadata.annotations")
    pod_claim_name = annotations.get(POD_CLAIM_NAME, "")
    if pod_claim_name != "" and not _matches(_DEVICE, pod_claim_name):
        raise AllocationError(f"metadata.annotations[{POD_CLAIM_NAME}]: {_shown(pod_claim_name)} is no name")
    return Allocation(uid, namespace, name, pod_claim_name, found, tuple(_configs(devices, driver)))


def devices_in_pool(claim: object, *, pool: str, drivers: Collection[str] | None = None) -> tuple[AllocatedDevice, ...]:
    """What any claim has in the pool, of these drivers or of all (None); none where it has no allocation.

    Raises AllocationError.
    """
    allocation = _mapping(_mapping(claim, "the claim").get("status") or {}, "status").get("allocation")
    if allocation is None:
        return ()
    devices = _mapping(_mapping(allocation, "status.allocation").get("devices", {}), "status.allocation.devices")
    found = _results(devices, lambda driver: drivers is None or driver in drivers)
    return tuple(device for device in found if device.pool == pool)


def _identified(claim: object, uid: str, namespace: str, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Metadata and allocation of the claim that is meant."""
    found = _mapping(claim, "the claim")
    metadata = _mapping(found.get("metadata"), "metadata")
    has = (metadata.get("namespace"), metadata.get("name"))
    if has != (namespace, name) or not (_matches(_DEVICE, namespace) and _matches(_NAME, name)):
        raise AllocationError(f"the API server answered with claim {_shown(has[0])}/{_shown(has[1])}")
    if metadata.get("uid") != uid:
        raise AllocationError(f"its UID is {_shown(metadata.get('uid'))} now: it was deleted and made anew")
    allocation = _mapping(found.get("status") or {}, "status").get("allocation")
    if allocation is None:
        raise AllocationError("nothing is allocated to it (any more)")
    return metadata, _mapping(allocation, "status.allocation")


def _results(devices: Mapping[str, Any], is_meant: Callable[[str], bool]) -> Iterator[AllocatedDevice]:
    for index, value in enumerate(_list(devices.get("results"), "status.allocation.devices.results")):
        path = f"status.allocation.devices.results[{index}]"
        result = _mapping(value, path)
        driver = result.get("driver")
        if not isinstance(driver, str):
            raise AllocationError(f"{path}.driver: {_shown(driver)} is no text")
        if is_meant(driver):
            yield _result(result, path, driver)


def _result(result: Mapping[str, Any], path: str, driver: str) -> AllocatedDevice:
    share_id, admin_access = result.get("shareID"), result.get("adminAccess")
    if share_id is not None and not _matches(_SHARE, share_id):
        raise AllocationError(f"{path}.shareID: {_shown(share_id)} is no UUID")
    if not isinstance(admin_access, bool | None):
        raise AllocationError(f"{path}.adminAccess: {_shown(admin_access)} is neither true nor false")
    consumed = _mapping(result.get("consumedCapacity") or {}, f"{path}.consumedCapacity")
    wrong = next((key for key, amount in consumed.items() if not isinstance(amount, str)), None)
    if wrong is not None:
        raise AllocationError(f"{path}.consumedCapacity[{wrong}]: {_shown(consumed[wrong])} is no quantity")
    return AllocatedDevice(
        request=_text(result, "request", _REQUEST, path),
        driver=driver,
        pool=_text(result, "pool", _POOL, path),
        device=_text(result, "device", _DEVICE, path),
        share_id=share_id,
        admin_access=bool(admin_access),
        consumed=consumed,
    )


def _refuse_twins(devices: tuple[AllocatedDevice, ...]) -> None:
    held: set[tuple[str, str, str, str | None]] = set()
    for device in devices:
        if device.admin_access:
            continue
        if device.key in held:
            raise AllocationError(f"{device.device} is allocated to it twice")
        held.add(device.key)


def _configs(devices: Mapping[str, Any], driver: str) -> Iterator[OpaqueConfig]:
    for index, value in enumerate(_list(devices.get("config"), "status.allocation.devices.config")):
        path = f"status.allocation.devices.config[{index}]"
        config = _mapping(value, path)
        if config.get("opaque") is None:
            continue  # a kind of configuration that came after this version, and is not ours
        opaque = _mapping(config["opaque"], f"{path}.opaque")
        if opaque.get("driver") != driver:
            continue
        if config.get("source") not in tuple(Source):
            raise AllocationError(f"{path}.source: {_shown(config.get('source'))} is not {' or '.join(Source)}")
        requests = _list(config.get("requests"), f"{path}.requests")
        for request in requests:
            if not _matches(_REQUEST, request):
                raise AllocationError(f"{path}.requests: {_shown(request)} is no name of a request")
        yield OpaqueConfig(Source(config["source"]), tuple(requests), opaque.get("parameters"))


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise AllocationError(f"{path}: {_shown(value)} is no object")
    return value


def _list(value: object, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise AllocationError(f"{path}: {_shown(value)} is no list")
    if len(value) > _MOST:
        raise AllocationError(f"{path}: {len(value)} items, more than the {_MOST} of the API")
    return value


def _text(value: Mapping[str, Any], name: str, form: re.Pattern[str], path: str) -> str:
    found = value.get(name)
    if not _matches(form, found):
        raise AllocationError(f"{path}.{name}: {_shown(found)} is no name of a {name}")
    return str(found)


def _matches(form: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
