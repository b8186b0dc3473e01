"""Which writes make the slices of a node say what is offered: pure, and none where they say it already.

Any change gives all slices of a pool a new generation: who allocates uses only the newest generation, and only when it
is whole, so nobody sees half a change. A write that fails in between leaves a pool that is not whole, and the next plan
makes it whole.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dra_publisher.offers.limits import fault_of, fault_of_driver
from dra_publisher.offers.offer import Offer
from dra_publisher.slices.device import as_before, device_of, essence
from dra_publisher.slices.foreign import foreign_pools
from dra_publisher.slices.resource_slice import (
    COMPONENT,
    COMPONENT_LABEL,
    Object,
    Owner,
    Slice,
    is_ours,
    slice_prefix,
)

MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_TAINTS: Final = 64
"""The limit on a slice in which any device has taints or consumes counters."""

MAX_GENERATION: Final = 2**63 - 1

DeviceName = tuple[str, str]
"""Driver and name of a device."""


class Verb(StrEnum):
    """What is done with an object."""

    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Write:
    """One write. `uid` and `resource_version` are what it replaces or deletes, and its preconditions."""

    verb: Verb
    name: str
    driver: str
    body: Object = field(default_factory=dict)
    uid: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is known of the server beyond its slices.

    `keeps_taints` False: it drops taints, so devices that have one are left out. `refused` are devices, as they would
    be written, that it did not take, with its words. `generations` are the newest of each driver's pool that this
    process has seen. `hashed` are drivers whose plain names of slices are another node's.
    """

    keeps_taints: bool = True
    refused: Mapping[DeviceName, tuple[Object, str]] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    hashed: Collection[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The writes in order; what is not published although it was offered, and why; drivers that another serves."""

    writes: tuple[Write, ...] = ()
    left_out: Mapping[DeviceName, str] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)


DROPS_TAINTS: Final = "this API server drops taints, and without its taint the device must not be offered"
EVERYTHING: Final = Wishes()


def plan(
    offers: Mapping[str, Sequence[Offer]], existing: Iterable[Slice], node: Owner, wishes: Wishes = EVERYTHING
) -> PoolPlan:
    """`offers` by driver; a driver without devices gets an empty slice, one that is not there loses its slices.

    `existing` are all slices of the node, those of others included. A pool in which somebody else has slices is left to
    them: two that write one pool make it useless for both.
    """
    slices = sorted(existing, key=lambda one: one.name)
    ours = [one for one in slices if is_ours(one, node.name)]
    conflicts = foreign_pools((one for one in slices if not is_ours(one, node.name)), offers, node.name)
    writes: list[Write] = []
    left_out: dict[DeviceName, str] = {}
    wanted: set[str] = set()
    for driver in sorted(offers):
        bad_name = fault_of_driver(driver) or conflicts.get(driver)
        if bad_name is not None:
            left_out.update({(driver, offer.name): bad_name for offer in offers[driver]})
            continue
        devices = []
        for device, name, fault in _checked(driver, offers[driver], wishes):
            if fault is None:
                devices.append(device)
            else:
                left_out[driver, name] = fault
        prefix = slice_prefix(node.name, driver, hashed=driver in wishes.hashed)
        chunks = split(devices)
        named = {f"{prefix}-{number:03}": chunk for number, chunk in enumerate(chunks)}
        wanted |= named.keys()
        have = {one.name: one for one in ours}
        pool = [one for one in slices if (one.driver, one.pool) == (driver, node.name)]
        writes += _pool_writes(driver, named, have, pool, node, wishes.generations.get(driver, 0))
    # What is not wanted goes last: it is of an older generation than what was written, and nobody looks at it.
    gone = {write.name for write in writes if write.verb is Verb.DELETE}
    writes += [_delete(one) for one in ours if one.name not in wanted | gone]
    return PoolPlan(tuple(writes), left_out, conflicts)


def split(devices: Sequence[Object]) -> list[list[Object]]:
    """The devices by slices, each as full as its limit allows; one empty slice for no devices."""
    chunks: list[list[Object]] = []
    start = 0
    while start < len(devices) or not chunks:
        chunk = list(devices[start : start + MAX_DEVICES])
        if any("taints" in device or "consumesCounters" in device for device in chunk):
            chunk = chunk[:MAX_DEVICES_WITH_TAINTS]
        chunks.append(chunk)
        start += len(chunk)
    return chunks


def _checked(driver: str, offers: Sequence[Offer], wishes: Wishes) -> Iterator[tuple[Object, str, str | None]]:
    """Entries in the order of their names, with names, and why one is left out."""
    seen: set[str] = set()
    for offer in sorted(offers, key=lambda offer: offer.name):
        fault = fault_of(offer)
        if fault is None and offer.driver != driver:
            fault = f"it is offered under {offer.driver}, not {driver}"
        if fault is None and offer.name in seen:
            fault = f"two devices have the name {offer.name}"
        if fault is not None:
            yield {}, offer.name, fault
            continue
        seen.add(offer.name)
        device = device_of(offer)
        refused = wishes.refused.get((driver, offer.name))
        if offer.taints and not wishes.keeps_taints:
            yield device, offer.name, DROPS_TAINTS
        elif refused is not None and refused[0] == device:
            yield device, offer.name, refused[1]
        else:
            yield device, offer.name, None


def _pool_writes(
    driver: str,
    named: Mapping[str, list[Object]],
    ours: Mapping[str, Slice],
    pool: Sequence[Slice],
    node: Owner,
    newest: int,
) -> Iterator[Write]:
    there = [ours.get(name) for name in named]
    generations = {one.generation for one in pool}
    if len(pool) == len(named) and len(generations) == 1 and min(generations) >= newest:
        pairs = zip(there, named.values(), strict=True)
        if all(one is not None and _says(one, chunk, driver, len(named), node) for one, chunk in pairs):
            return
    generation = max({newest, *generations}) + 1
    if generation > MAX_GENERATION:
        # Somebody has set it to the last one: the pool starts anew, when nothing is left of it.
        yield from (_delete(one) for one in pool)
        generation, there = 1, [None] * len(named)
    for (name, chunk), before in zip(named.items(), there, strict=True):
        if before is not None and (before.driver, before.pool) != (driver, node.name):
            yield _delete(before)  # driver and pool cannot be changed
            before = None  # noqa: PLW2901 - it is gone
        devices = {device["name"]: device for device in before.devices} if before is not None else {}
        spec = {
            "driver": driver,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": generation, "resourceSliceCount": len(named)},
            "devices": [as_before(device, devices.get(device["name"], {})) for device in chunk],
        }
        kept = before.kept if before is not None else {}
        metadata = {
            **kept,
            "name": name,
            "labels": {**kept.get("labels", {}), COMPONENT_LABEL: COMPONENT},
            "ownerReferences": [node.reference],
        }
        if before is None:
            yield Write(Verb.CREATE, name, driver, {"metadata": metadata, "spec": spec})
        else:
            precondition = {"uid": before.uid, "resourceVersion": before.resource_version}
            body = {"metadata": metadata | precondition, "spec": spec}
            yield Write(Verb.REPLACE, name, driver, body, before.uid, before.resource_version)


def _says(one: Slice, chunk: Sequence[Object], driver: str, count: int, node: Owner) -> bool:
    """Whether the slice says what is wanted of it, but for its generation."""
    return (
        (one.driver, one.pool, one.node, one.count) == (driver, node.name, node.name, count)
        and one.labelled
        and not one.extra
        and [dict(owner) for owner in one.owners] == [node.reference]
        and [essence(device) for device in one.devices] == [essence(device) for device in chunk]
    )


def _delete(one: Slice) -> Write:
    return Write(Verb.DELETE, one.name, one.driver, {}, one.uid, one.resource_version)
