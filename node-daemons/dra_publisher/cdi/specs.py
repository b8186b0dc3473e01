"""CDI specifications of a claim's devices: pure, from what is recorded of them.

What one device has alone is a CDI device of its own; what several devices of a claim share (the node of their IOMMU
group, a driver's common nodes) is one that each of them names, so that it is there once, and there for a container
that gets only one of them.

Runtimes keep what they have read of a name, so no name ever means anything else: it carries the claim's UID and a hash
of the content. Source: Container Device Interface specification 0.5.0.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

CDI: Final = "/var/run/cdi"
VERSION: Final = "0.5.0"
_PERMISSIONS: Final = "rw"
_HASH: Final = 8


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device of a claim: its name in the pool, its PCI address, and the host's nodes that a container gets."""

    device: str
    type: str
    address: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CDIFile:
    """One file: its name below the directory, and its content."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ClaimSpecs:
    """All files of a claim at one driver, and the ids of each device by its name in the pool."""

    files: tuple[CDIFile, ...]
    ids: Mapping[str, tuple[str, ...]]


def claim_specs(driver: str, uid: str, devices: Iterable[GivenDevice]) -> ClaimSpecs:
    """One file for each type of device, the same for the same devices."""
    return _claim_specs(driver, uid, tuple({device.device: device for device in devices}.values()))


@lru_cache(maxsize=64)  # asked for twice in a row: for the ids, and for the files
def _claim_specs(driver: str, uid: str, devices: tuple[GivenDevice, ...]) -> ClaimSpecs:
    by_name = {device.device: device for device in devices}
    files: list[CDIFile] = []
    ids: dict[str, tuple[str, ...]] = {}
    for kind in sorted({device.type for device in by_name.values()}):
        given = [by_name[name] for name in sorted(by_name) if by_name[name].type == kind]
        spec, named = _spec(f"k8s.{driver}/{kind}", uid, given)
        files.append(CDIFile(file_name(driver, kind, uid), _encode(spec)))
        ids |= named
    return ClaimSpecs(tuple(files), ids)


def file_name(driver: str, kind: str, uid: str) -> str:
    """The name of the file of one type of device."""
    return f"k8s.{driver}-{kind}_{uid}.json"


def environment(device: GivenDevice) -> str:
    """What a container is told: `NPUFLEET_DEVICE_VFIO_0000_27_00_0=0000:27:00.0`."""
    return f"NPUFLEET_DEVICE_{device.device.upper().replace('-', '_')}={device.address}"


def _spec(kind: str, uid: str, devices: Sequence[GivenDevice]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    holders: dict[str, tuple[str, ...]] = {}
    for device in devices:
        for node in device.nodes:
            holders[node] = (*holders.get(node, ()), device.device)
    shared = sorted({names for names in holders.values() if len(names) > 1})
    parts: list[tuple[str, dict[str, Any]]] = []
    for device in devices:
        own = sorted(node for node in device.nodes if holders[node] == (device.device,))
        parts.append((device.device, _edits(own, environment(device))))
    for number, names in enumerate(shared):
        parts.append((f"shared-{number}", _edits(sorted(node for node, having in holders.items() if having == names))))
    digest = hashlib.sha256(json.dumps([kind, parts], sort_keys=True).encode()).hexdigest()[:_HASH]
    full = {name: f"{uid}-{digest}-{name}" for name, _ in parts}
    spec = {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [{"name": full[name], "containerEdits": edits} for name, edits in parts],
    }
    ids = {
        device.device: tuple(
            f"{kind}={full[part]}"
            for part in (
                device.device,
                *(f"shared-{number}" for number, names in enumerate(shared) if device.device in names),
            )
        )
        for device in devices
    }
    return spec, ids


def _edits(nodes: Sequence[str], variable: str | None = None) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if variable is not None:
        edits["env"] = [variable]
    if nodes:
        edits["deviceNodes"] = [{"path": node, "permissions": _PERMISSIONS} for node in nodes]
    return edits


def _encode(spec: dict[str, Any]) -> bytes:
    return (json.dumps(spec, sort_keys=True) + "\n").encode()
