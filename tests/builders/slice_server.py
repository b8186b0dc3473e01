"""An API server that treats ResourceSlices as the real one does, in memory: limits, defaults, fields that it drops.

What it refuses is judged here anew, from the server's own rules, and not by the code under test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from runtime.resources import RESOURCE_SLICES
from tests.builders.fake_api import FakeApi, Request
from tests.builders.fake_objects import Object, Objects, Refused, copied

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def faults_of(body: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    """Field and fault, by the rules of resource.k8s.io/v1."""
    spec = body["spec"]
    name = body["metadata"]["name"]
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield "metadata.name", "must be a DNS subdomain"
    if len(spec["driver"]) > 63 or not _SUBDOMAIN.fullmatch(spec["driver"]):
        yield "spec.driver", "must be a DNS subdomain of at most 63 characters"
    pool = spec["pool"]
    if pool["resourceSliceCount"] < 1:
        yield "spec.pool.resourceSliceCount", "must be greater than zero"
    if not 0 <= pool["generation"] < 2**63:
        yield "spec.pool.generation", "must be an integer of 64 bits, not negative"
    for field in ("driver", "nodeName"):
        if old is not None and old["spec"].get(field) != spec.get(field):
            yield f"spec.{field}", "field is immutable"
    if old is not None and old["spec"]["pool"]["name"] != pool["name"]:
        yield "spec.pool.name", "field is immutable"
    devices = spec.get("devices") or []
    limit = 64 if any(one.get("taints") or one.get("consumesCounters") for one in devices) else 128
    if len(devices) > limit:
        yield "spec.devices", f"must have at most {limit} items"
    for index, device in enumerate(devices):
        for field, fault in _device_faults(device):
            yield f"spec.devices[{index}]{field}", fault
    if len({device["name"] for device in devices}) != len(devices):
        yield "spec.devices", "duplicate name"


def _guard_faults(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """By the admission policy that npufleet brings along, of a slice that is new."""
    prefix = f"{body['spec']['nodeName']}-"[:200]
    if not body["metadata"]["name"].startswith(prefix):
        yield "metadata.name", f"begins with {prefix}"


def _device_faults(device: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if not _LABEL.fullmatch(device["name"]):
        yield ".name", "must be a DNS label"
    if len(attributes) + len(capacity) > 32:
        yield "", "the total number of attributes and capacities must not exceed 32"
    for name in (*attributes, *capacity):
        if not _NAME.fullmatch(name):
            yield f".attributes[{name}]", "must be a qualified name"
    for name, value in attributes.items():
        if len(value) != 1:
            yield f".attributes[{name}]", "exactly one value must be specified"
        if len(str(value.get("string", "")).encode()) > 64:
            yield f".attributes[{name}].string", "may not be more than 64 bytes"
    if len(device.get("taints") or []) > 16:
        yield ".taints", "must have at most 16 items"


class SliceServer(FakeApi):
    """`keeps_taints` False: as a server without the feature. `refuses` may find further faults in a device."""

    def __init__(self, *, keeps_taints: bool = True) -> None:
        super().__init__()
        self.keeps_taints = keeps_taints
        self.refuses: Callable[[Object], Iterable[tuple[str, str]]] = lambda device: ()
        self.dry_runs = 0

    def slices(self) -> list[Object]:
        return list(self.objects.items(RESOURCE_SLICES))

    def slice_writes(self) -> list[Request]:
        """Those that were meant to be stored."""
        return [one for one in self.writes() if one.resource == RESOURCE_SLICES and "dryRun" not in one.query]

    def _answer(self, request: Request, content_type: str) -> Object:
        if request.resource != RESOURCE_SLICES or request.verb not in {"POST", "PUT"}:
            return super()._answer(request, content_type)
        body: Object = copied(request.body)
        old = self.objects.find(RESOURCE_SLICES, body["metadata"]["name"])
        if (old is None) is not (request.verb == "POST"):
            return super()._answer(request, content_type)
        self._default(body, old)
        guarded = _guard_faults(body) if old is None else ()
        faults = [*faults_of(body, old), *guarded] + [
            (f"spec.devices[{index}]{field}", fault)
            for index, device in enumerate(body["spec"].get("devices") or [])
            for field, fault in self.refuses(device)
        ]
        if faults:
            causes = [{"field": field, "message": fault, "reason": "FieldValueInvalid"} for field, fault in faults]
            raise Refused(422, "Invalid", "; ".join(f"{field}: {fault}" for field, fault in faults), causes)
        if "dryRun" in request.query:
            self.dry_runs += 1
            return body
        request.body.clear()
        request.body.update(body)
        return super()._answer(request, content_type)

    def _default(self, body: Object, old: Object | None) -> None:
        was_tainted = old is not None and any(one.get("taints") for one in old["spec"].get("devices") or [])
        for device in body["spec"].get("devices") or []:
            if not self.keeps_taints and not was_tainted:
                device.pop("taints", None)
            for taint in device.get("taints") or []:
                taint.setdefault("timeAdded", f"2026-12-01T00:00:{self.objects.version % 60:02d}Z")
            for amount in (device.get("capacity") or {}).values():
                amount["value"] = {"1024Mi": "1Gi"}.get(amount["value"], amount["value"])
        if not body["spec"].get("devices"):
            body["spec"].pop("devices", None)


def stored(objects: Objects) -> dict[str, Object]:
    """Slices by name."""
    return {one["metadata"]["name"]: one for one in objects.items(RESOURCE_SLICES)}
