"""Which claims pods were prepared for, as the DRA publisher wrote it down: the format of its checkpoint. Pure but for
``read_checkpoint``.

The publisher is the only writer (`dra_publisher/checkpoint/store.py`); whoever changes devices reads it, because a pod
may start with a prepared device any moment, long before anything is open. It lives over reboots: a claim keeps its
device while its pod is started again.

`{"version": 1, "minReader": 1, "checksum": …, "content": {…}}`, the checksum being the SHA-256 of the content's
canonical JSON. A version that adds fields keeps `minReader`, so that the one before it can still read the file.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from node_host.host import Host
from node_host.pci.device import is_address

CHECKPOINT: Final = "/var/lib/npufleet/publisher/checkpoint.json"
VERSION: Final = 1
MIN_READER: Final = 1
UNKNOWN_SHAPE: Final = "0" * 64
"""Stands for a shape that nobody recorded; it is never that of an order."""
_MAX_BYTES: Final = 16 << 20
_TOO_LONG: Final = f"more than {_MAX_BYTES} bytes"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class CheckpointUnreadableError(ValueError):
    """It is no checkpoint, or one that this version cannot read; the text says why."""


class ClaimState(StrEnum):
    """How far a claim has come: from `Started` on its pod may have the devices."""

    STARTED = "Started"
    COMPLETED = "Completed"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device of a claim. ``device`` is its name in ``pool``, ``address`` its PCI address.

    ``requests`` are as in the allocation (`npu/large` for a subrequest); ``cdi_ids`` are what the kubelet was answered,
    ``nodes`` the host's device nodes behind them; ``shape`` is the digest of what the device was ordered to be then
    (`node_host.handover.entry.shape_digest`); ``consumed`` is what a share takes of the device's capacities.

    ``profile`` is that of a vGPU, None of every other device.

    ``is_earlier``: it is from a boot before the claim's. In this one other devices of the claim, of another driver,
    were prepared, and this one was not yet.
    """

    driver: str
    pool: str
    device: str
    address: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str | None
    admin_access: bool
    shape: str
    nodes: tuple[str, ...] = ()
    consumed: Mapping[str, str] = field(default_factory=dict)
    is_earlier: bool = False
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that is, or is being, prepared. ``boot_id`` is the boot in which it was last.

    ``pod_claim_name`` is what its pod calls it where it was made from a template, else empty.
    """

    uid: str
    namespace: str
    name: str
    boot_id: str
    state: ClaimState
    devices: tuple[PreparedDevice, ...]
    pod_claim_name: str = ""

    @property
    def title(self) -> str:
        """The claim in messages."""
        return f"claim {self.namespace}/{self.name}"

    def has(self, device: PreparedDevice, boot_id: str) -> bool:
        """Whether its pod may have one of its devices in this boot; else it had it in an earlier one."""
        return self.boot_id == boot_id and not device.is_earlier


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Claims by UID; ``published`` are the devices, by address, that pods could have had in whatever boot, with the
    digest of their shape.

    ``doubt`` says why claims may be missing, because an earlier checkpoint was lost; None when none can.
    """

    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    doubt: str | None = None

    def claims_of(self, address: str) -> tuple[PreparedClaim, ...]:
        """The claims that have a device, by UID."""
        found = (self.claims[uid] for uid in sorted(self.claims))
        return tuple(claim for claim in found if any(device.address == address for device in claim.devices))


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content; the same for equal checkpoints."""
    content: dict[str, Any] = {
        "claims": {uid: _claim_to_json(claim) for uid, claim in checkpoint.claims.items()},
        "published": dict(checkpoint.published),
    }
    if checkpoint.doubt is not None:
        content["doubt"] = checkpoint.doubt
    text = _canonical(content)
    head = f'{{"version":{VERSION},"minReader":{MIN_READER},"checksum":"{_checksum(text)}"'
    return f'{head},"content":{text}}}\n'.encode()


def decode(data: bytes) -> Checkpoint:
    """Raises CheckpointUnreadableError for anything but a whole checkpoint; fields that are not known are passed over.

    A version that needs a newer reader says so in `minReader`.
    """
    if len(data) > _MAX_BYTES:
        raise CheckpointUnreadableError(_TOO_LONG)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointUnreadableError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("content"), dict):
        raise CheckpointUnreadableError("not a checkpoint")
    min_reader, content = document.get("minReader"), document["content"]
    if type(min_reader) is not int or min_reader > VERSION:
        version = document.get("version")
        raise CheckpointUnreadableError(f"version {version!r} needs a reader of {min_reader!r}; this one is {VERSION}")
    if document.get("checksum") != _checksum(_canonical(content)):
        raise CheckpointUnreadableError("the checksum does not fit the content")
    return _from_content(content)


def read_checkpoint(host: Host) -> Checkpoint | str:
    """The checkpoint of a host, an empty one where there is none; why it cannot be read, as a text. Never raises."""
    try:
        with suppress(FileNotFoundError):  # it may come before it is read
            if host.stat(CHECKPOINT).st_size > _MAX_BYTES:
                raise CheckpointUnreadableError(_TOO_LONG)
        return decode(host.read(CHECKPOINT))
    except FileNotFoundError:
        return Checkpoint()
    except OSError as error:
        return f"{CHECKPOINT}: {error.strerror or error}"
    except CheckpointUnreadableError as error:
        return f"{CHECKPOINT}: {error}"


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _claim_to_json(claim: PreparedClaim) -> dict[str, Any]:
    value: dict[str, Any] = {
        "namespace": claim.namespace,
        "name": claim.name,
        "bootID": claim.boot_id,
        "state": str(claim.state),
        "devices": [_device_to_json(device) for device in claim.devices],
    }
    if claim.pod_claim_name:
        value["podClaimName"] = claim.pod_claim_name
    return value


def _device_to_json(device: PreparedDevice) -> dict[str, Any]:
    value: dict[str, Any] = {
        "driver": device.driver,
        "pool": device.pool,
        "device": device.device,
        "address": device.address,
        "requests": list(device.requests),
        "cdiIDs": list(device.cdi_ids),
        "adminAccess": device.admin_access,
        "shape": device.shape,
    }
    if device.share_id is not None:
        value["shareID"] = device.share_id
    if device.nodes:
        value["nodes"] = list(device.nodes)
    if device.consumed:
        value["consumed"] = dict(device.consumed)
    if device.is_earlier:
        value["earlier"] = True
    if device.profile is not None:
        value["profile"] = device.profile
    return value


def _from_content(content: dict[str, Any]) -> Checkpoint:
    claims, published, doubt = content.get("claims"), content.get("published"), content.get("doubt")
    if not isinstance(claims, dict) or not isinstance(published, dict) or not isinstance(doubt, str | None):
        raise CheckpointUnreadableError("the content is not one of a checkpoint")
    for address, shape in published.items():
        if not is_address(address) or not _is_digest(shape):
            raise CheckpointUnreadableError(f"published: {address!r} is no device with its shape")
    found = {uid: _claim_from_json(uid, value) for uid, value in claims.items()}
    return Checkpoint(MappingProxyType(found), MappingProxyType(published), doubt)


def _claim_from_json(uid: str, value: Any) -> PreparedClaim:
    fault = CheckpointUnreadableError(f"claim {uid!r} is not one")
    if not isinstance(value, dict) or not isinstance(value.get("devices"), list):
        raise fault
    namespace, name, boot_id, state = (value.get(key) for key in ("namespace", "name", "bootID", "state"))
    pod_claim_name = value.get("podClaimName", "")
    if not all(isinstance(text, str) for text in (namespace, name, boot_id, pod_claim_name)):
        raise fault
    if state not in tuple(ClaimState):
        raise CheckpointUnreadableError(f"claim {uid!r} is in no known state: {state!r}")
    devices = tuple(_device_from_json(uid, device) for device in value["devices"])
    texts = (str(namespace), str(name), str(boot_id))
    return PreparedClaim(uid, *texts, ClaimState(state), devices, pod_claim_name)


def _device_from_json(uid: str, value: Any) -> PreparedDevice:
    fault = CheckpointUnreadableError(f"a device of claim {uid!r} is not one")
    if not isinstance(value, dict):
        raise fault
    driver, pool, device, address = (value.get(key) for key in ("driver", "pool", "device", "address"))
    share_id, admin_access, shape = (value.get(key) for key in ("shareID", "adminAccess", "shape"))
    if not (isinstance(driver, str) and isinstance(pool, str) and isinstance(device, str) and isinstance(address, str)):
        raise fault
    if not (is_address(address) and isinstance(share_id, str | None) and type(admin_access) is bool):
        raise fault
    if not _is_digest(shape):
        raise fault
    requests, cdi_ids = _texts(value.get("requests")), _texts(value.get("cdiIDs"))
    nodes, consumed = _texts(value.get("nodes", [])), value.get("consumed", {})
    if requests is None or cdi_ids is None or nodes is None:
        raise fault
    if not isinstance(consumed, dict) or not all(isinstance(amount, str) for amount in consumed.values()):
        raise fault
    is_earlier = value.get("earlier", False)
    profile = value.get("profile")
    if type(is_earlier) is not bool or not isinstance(profile, str | None):
        raise fault
    known = (driver, pool, device, address, requests, cdi_ids, share_id, admin_access, str(shape))
    return PreparedDevice(*known, nodes, consumed, is_earlier, profile)


def _texts(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
