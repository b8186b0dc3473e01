"""The metadata of a claim's devices as a container reads it, and the CDI device that mounts it. Pure.

KEP-5304: one file for each request and driver, with one JSON object for each version of the format, the newest first.
KubeVirt finds the PCI address of a VM's device here. Source: k8s.io/dynamic-resource-allocation/api/metadata.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dra_publisher.cdi.specs import VERSION as CDI_VERSION
from dra_publisher.claims.allocation import base_request

PLUGINS: Final = "/var/lib/kubelet/plugins"
DIRECTORY: Final = "dra-device-metadata"
FILE: Final = "metadata.json"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
API_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
_IN_CONTAINER: Final = "/var/run/kubernetes.io/dra-device-attributes"
_MAX_NAME: Final = 255
"""Bytes of a file's name (NAME_MAX); a namespace and a claim may have 317 letters together."""
_HASH: Final = 16


@dataclass(frozen=True, slots=True)
class DescribedDevice:
    """A device as its request got it; ``request`` may name a subrequest."""

    request: str
    pool: str
    device: str
    address: str


@dataclass(frozen=True, slots=True)
class DescribedClaim:
    """The claim at one driver. ``pod_claim_name`` is empty where it is no claim of a template."""

    driver: str
    uid: str
    namespace: str
    name: str
    pod_claim_name: str
    devices: tuple[DescribedDevice, ...]


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """What is written for one request: where on the host, what, and how a container gets it.

    ``documents`` are without their generation, which depends on what is there already.
    """

    request: str
    path: str
    documents: tuple[dict[str, Any], ...]
    cdi_id: str
    cdi_name: str
    cdi_content: bytes


def claim_directory(driver: str, namespace: str, name: str) -> str:
    """The directory on the host of all requests of a claim: `<namespace>_<name>`, its end a hash where that is longer
    than the name of a file may be. Who looks for it looks in the container.
    """
    plain = f"{namespace}_{name}"
    if len(plain.encode()) > _MAX_NAME:
        digest = hashlib.sha256(plain.encode()).hexdigest()[:_HASH]
        plain = f"{plain[: _MAX_NAME - _HASH - 1]}-{digest}"
    return f"{PLUGINS}/{driver}/{DIRECTORY}/{plain}"


def cdi_prefix(driver: str, uid: str) -> str:
    """How the names of a claim's CDI files with metadata begin."""
    return f"{driver}_metadata_{uid}_"


@lru_cache(maxsize=64)  # asked for twice in a row: for the ids, and for the files
def requests_of(claim: DescribedClaim) -> tuple[RequestMetadata, ...]:
    """One for each request, in the order in which they have devices."""
    return tuple(_request(claim, request, devices) for request, devices in _by_request(claim.devices))


def encode(documents: Iterable[dict[str, Any]], generation: int) -> bytes:
    """The file: an object a line."""
    lines = (document | {"metadata": document["metadata"] | {"generation": generation}} for document in documents)
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def generation_of(data: bytes, documents: Sequence[dict[str, Any]]) -> int:
    """The generation that these documents have beside what is in the file: its own where they are the same, else the
    next one; 1 where there is nothing that can be read.
    """
    try:
        found: Any = json.loads(data.split(b"\n", 1)[0])
        there = found["metadata"]["generation"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1
    if type(there) is not int or there < 1:
        return 1
    return there if encode(documents, there) == data else there + 1


def owner_of(data: bytes) -> str | None:
    """The UID of the claim that a file is of, None where it cannot be told."""
    try:
        uid: Any = json.loads(data.split(b"\n", 1)[0])["metadata"]["uid"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None


def _by_request(devices: Iterable[DescribedDevice]) -> Iterator[tuple[str, list[DescribedDevice]]]:
    found: dict[str, list[DescribedDevice]] = {}
    for device in devices:
        found.setdefault(device.request, []).append(device)
    yield from found.items()


def _request(claim: DescribedClaim, request: str, devices: Sequence[DescribedDevice]) -> RequestMetadata:
    base = base_request(request)
    path = f"{claim_directory(claim.driver, claim.namespace, claim.name)}/{base}/{FILE}"
    name = f"{claim.uid}_{base}"
    mount = {"hostPath": path, "containerPath": _container_path(claim, base), "options": ["ro", "bind"]}
    spec = {
        "cdiVersion": CDI_VERSION,
        "kind": f"{claim.driver}/metadata",
        "devices": [{"name": name, "containerEdits": {"mounts": [mount]}}],
    }
    return RequestMetadata(
        request=base,
        path=path,
        documents=tuple(_document(claim, request, devices, version) for version in API_VERSIONS),
        cdi_id=f"{claim.driver}/metadata={name}",
        cdi_name=f"{cdi_prefix(claim.driver, claim.uid)}{base}.json",
        cdi_content=(json.dumps(spec, sort_keys=True) + "\n").encode(),
    )


def _container_path(claim: DescribedClaim, request: str) -> str:
    template = claim.pod_claim_name
    where = f"resourceclaimtemplates/{template}" if template else f"resourceclaims/{claim.name}"
    return f"{_IN_CONTAINER}/{where}/{request}/{claim.driver}-metadata.json"


def _document(claim: DescribedClaim, request: str, devices: Sequence[DescribedDevice], version: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": "DeviceMetadata",
        "apiVersion": version,
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
    }
    if claim.pod_claim_name:
        document["podClaimName"] = claim.pod_claim_name
    described = [
        {
            "driver": claim.driver,
            "pool": device.pool,
            "name": device.device,
            "attributes": {PCI_BUS_ID: {"string": device.address}},
        }
        for device in devices
    ]
    document["requests"] = [{"name": request, "devices": described}]
    return document
