"""A ResourceSlice as it is on the server, as far as planning and finding other plugins need it."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dra_publisher.offers.attributes import PCI_BUS_ID

COMPONENT: Final = "npufleet-dra-publisher"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MAX_NAME: Final = 253
_NUMBER: Final = 5  # "-000" and room for a fourth digit
_HASH: Final = 10
_KNOWN: Final = frozenset({"driver", "pool", "nodeName", "devices"})

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """The Node that slices belong to, and go with."""

    name: str
    uid: str

    @property
    def reference(self) -> Object:
        """The owner reference of its slices."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class Slice:
    """One object. Of those of others `devices` is empty and `addresses` tells which PCI functions they list.

    `extra` are fields of the spec that the publisher does not write; `kept` is metadata that is others' to write.
    """

    name: str
    uid: str
    # A write that changes nothing that counts is no change.
    resource_version: str = field(compare=False)
    labelled: bool
    driver: str
    pool: str
    node: str
    generation: int
    count: int
    devices: tuple[Object, ...] = ()
    addresses: frozenset[str] = frozenset()
    owners: tuple[Object, ...] = ()
    extra: frozenset[str] = frozenset()
    kept: Object = field(default_factory=dict)


def read_slice(item: Mapping[str, Any]) -> Slice:
    """Raises KeyError, TypeError or ValueError for what no API server sends."""
    metadata, spec = item["metadata"], item["spec"]
    labels = metadata.get("labels") or {}
    labelled = labels.get(COMPONENT_LABEL) == COMPONENT
    devices = spec.get("devices") or []
    return Slice(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        labelled=labelled,
        driver=spec["driver"],
        pool=spec["pool"]["name"],
        node=spec.get("nodeName") or "",
        generation=int(spec["pool"].get("generation") or 0),
        count=int(spec["pool"].get("resourceSliceCount") or 0),
        devices=tuple(devices) if labelled else (),
        addresses=frozenset() if labelled else frozenset(filter(None, map(_address, devices))),
        owners=tuple(metadata.get("ownerReferences") or ()),
        extra=frozenset(spec) - _KNOWN,
        kept={key: metadata[key] for key in ("labels", "annotations", "finalizers") if metadata.get(key)},
    )


def slice_prefix(node: str, driver: str, *, hashed: bool = False) -> str:
    """What the names of a pool's slices begin with, before the hyphen and the number.

    Names that would be too long, and those that another node's slice has already (`a-b` + `c` and `a` + `b-c` make the
    same), are told apart by a hash.
    """
    plain = f"{node}-{driver}"
    if not hashed and len(plain) + _NUMBER <= MAX_NAME:
        return plain
    digest = hashlib.sha256(f"{node}/{driver}".encode()).hexdigest()[:_HASH]
    return f"{plain[: MAX_NAME - _NUMBER - _HASH - 1].rstrip('.-')}-{digest}"


def is_ours(one: Slice, node: str) -> bool:
    """Whether this node's publisher has written the slice: by its label, or, should that be gone, by its plain name."""
    if one.node != node:
        return False
    prefix = f"{node}-{one.driver}"
    named = one.name.startswith(prefix) and re.fullmatch(r"-[0-9]{3,4}", one.name.removeprefix(prefix)) is not None
    return one.labelled or (one.pool == node and named)


def _address(device: Mapping[str, Any]) -> str | None:
    value = ((device.get("attributes") or {}).get(PCI_BUS_ID) or {}).get("string")
    return value.lower() if isinstance(value, str) else None
