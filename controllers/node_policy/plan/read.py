"""API objects to records. Nothing here raises for what an object contains: a fault becomes a text in the record.

The API server checks objects against the schema of its version; this process may be older or newer than that schema.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from controllers.break_glass import edited_by_hand
from controllers.node_policy.plan.drains import CORDONED_BY, DRAIN_DONE, DRAIN_REQUEST
from controllers.node_policy.plan.orders import Orders, read_orders, shape_of_rule
from controllers.node_policy.plan.texts import distinct, lasting
from controllers.node_policy.plan.view import (
    DeviceReportView,
    DeviceView,
    InventoryView,
    MapView,
    NodeView,
    PolicyView,
    ReportView,
    StateView,
    Subtree,
)
from controllers.reading import mapping
from crds.models.base import describe_faults
from crds.models.conditions import Status, find_condition
from crds.models.node_policy import NodePolicySpec, NodePolicyStatus
from crds.models.node_state import (
    Bindings,
    BoundDevice,
    DaemonReport,
    DeviceReport,
    DeviceState,
    DeviceUser,
    Inventory,
    InventoryDevice,
    NodeRollout,
    NodeStateSpec,
    Profiles,
    UseKind,
)
from crds.models.profile_map import ProfileMapSpec
from crds.models.vgpu_state import ProfiledCard

_REPORT_MODELS: Final[Mapping[Subtree, type[Bindings] | type[Profiles] | type[DaemonReport]]] = {
    Subtree.BINDINGS: Bindings,
    Subtree.PROFILES: Profiles,
    Subtree.PUBLICATION: DaemonReport,
    Subtree.LIBRARIES: DaemonReport,
}
_SETTLED: Final = frozenset({DeviceState.READY, DeviceState.RELEASED})
_NO_USERS: Final = frozenset({UseKind.VIRTUAL_FUNCTIONS, UseKind.PUBLISHED})
# Whom a claim is for is found through the API server.
_MOVED_BY_CLAIM: Final = frozenset({UseKind.CLAIM})
_LAST_GENERATION: Final = 2**63 - 1
_NOBODY: Final[frozenset[str]] = frozenset()


def read_node(obj: Mapping[str, Any]) -> NodeView:
    """The record of a Node."""
    metadata = mapping(obj.get("metadata"))
    info = mapping(mapping(obj.get("status")).get("nodeInfo"))
    labels = {sys.intern(str(k)): sys.intern(str(v)) for k, v in mapping(metadata.get("labels")).items()}
    marks = mapping(metadata.get("annotations"))
    return NodeView(
        str(metadata["name"]),
        str(metadata["uid"]),
        labels,
        str(info.get("bootID") or ""),
        unschedulable=mapping(obj.get("spec")).get("unschedulable") is True,
        cordoned_by=sys.intern(str(marks.get(CORDONED_BY) or "")),
        drain_request=str(marks.get(DRAIN_REQUEST) or ""),
        drain_done=str(marks.get(DRAIN_DONE) or ""),
    )


def read_policy(obj: Mapping[str, Any]) -> PolicyView:
    """The record of an NPUNodePolicy."""
    metadata = mapping(obj.get("metadata"))
    spec: NodePolicySpec | None = None
    error = ""
    try:
        spec = NodePolicySpec.model_validate(obj.get("spec"))
    except ValidationError as fault:
        error = describe_faults(fault, "spec")
    status: NodePolicyStatus | None = None
    if isinstance(obj.get("status"), Mapping):
        try:
            status = NodePolicyStatus.model_validate(obj["status"])
        except ValidationError:
            status = None  # written anew from scratch
    return PolicyView(
        sys.intern(str(metadata["name"])),
        str(metadata["uid"]),
        _generation(metadata),
        spec,
        tuple(shape_of_rule(spec, rule) for rule in spec.devices) if spec is not None else (),
        error,
        status,
        edited_by_hand(obj),
    )


def read_map(obj: Mapping[str, Any]) -> MapView:
    """The record of a VGPUProfileMap."""
    metadata = mapping(obj.get("metadata"))
    name, uid = sys.intern(str(metadata["name"])), str(metadata["uid"])
    try:
        return MapView(name, uid, _generation(metadata), ProfileMapSpec.model_validate(obj.get("spec")))
    except ValidationError as fault:
        return MapView(name, uid, _generation(metadata), None, describe_faults(fault, "spec"))


def read_state(obj: Mapping[str, Any], former: StateView | None = None) -> StateView:
    """The record of an NPUNodeState. `former`, of the same UID, spares reading orders that are the same."""
    metadata = mapping(obj.get("metadata"))
    status = mapping(obj.get("status"))
    generation = _generation(metadata)
    given = mapping(obj.get("spec"))
    revision = given.get("revision")
    orders, node_uid, error = Orders(), "", ""
    # The API server counts every change of a spec; but an etcd that was set back counts anew, with other orders.
    said = (generation, revision, given.get("nodeUID"))
    if former is not None and generation and said == (former.generation, former.revision, former.node_uid):
        orders, node_uid, error = former.orders, former.node_uid, former.error
    else:
        try:
            spec = NodeStateSpec.model_validate(obj.get("spec"))
            orders, node_uid = read_orders(spec), spec.node_uid
        except ValidationError as fault:
            error = describe_faults(fault, "spec")
    return StateView(
        name=sys.intern(str(metadata["name"])),
        uid=str(metadata["uid"]),
        generation=generation,
        node_uid=node_uid,
        orders=orders,
        inventory=read_inventory(status.get("inventory")),
        reports={
            subtree: _read_report(model, status[subtree.value], subtree)
            for subtree, model in _REPORT_MODELS.items()
            if isinstance(status.get(subtree.value), Mapping)
        },
        rollout=_read_rollout(status.get("rollout")),
        error=error,
        revision=revision if isinstance(revision, str) else "",
    )


def read_inventory(value: Any) -> InventoryView | None:
    """The record of status.inventory of an NPUNodeState; None where there is no report."""
    if not isinstance(value, Mapping):
        return None
    try:
        inventory = Inventory.model_validate(value)
    except ValidationError as fault:
        return InventoryView("", False, "Unreadable", describe_faults(fault, "status.inventory"), ())
    ready = find_condition(inventory.conditions, "Ready")
    return InventoryView(
        inventory.boot_id or "",
        ready is not None and ready.status is Status.TRUE,
        ready.reason if ready else "",
        ready.message if ready else "",
        tuple(_device(device) for device in inventory.devices),
    )


def _device(device: InventoryDevice) -> DeviceView:
    # What is published is taken back by the publisher when orders change: a device is not used for that alone.
    users = [user for user in device.used_by if user.kind not in _NO_USERS]
    return DeviceView(
        address=sys.intern(device.address),
        vendor=sys.intern(device.vendor),
        device=sys.intern(device.device),
        subsystem=_interned(device.subsystem),
        class_code=sys.intern(device.class_code),
        product=_interned(device.product),
        serial=device.serial,
        numa_node=device.numa_node,
        function=device.function,
        users=distinct(_told(user) for user in users),
        pods=frozenset(sys.intern(user.pod_uid) for user in users if user.pod_uid is not None) if users else _NOBODY,
        others=distinct(_told(user) for user in users if user.pod_uid is None and user.kind not in _MOVED_BY_CLAIM),
        own_functions="".join(_told(user) for user in device.used_by if user.kind is UseKind.VIRTUAL_FUNCTIONS),
        card=_interned(device.physical_function),
        iommu_group=device.iommu_group,
        vetoes=tuple(f"{veto.reason}: {veto.message}" for veto in device.vetoes),
    )


def _told(user: DeviceUser) -> str:
    return lasting(f"{user.name} ({user.detail})" if user.detail else user.name)


def _read_report(
    model: type[Bindings] | type[Profiles] | type[DaemonReport], value: Any, subtree: Subtree
) -> ReportView:
    try:
        report = model.model_validate(value)
    except ValidationError as fault:
        return ReportView(0, "", {}, describe_faults(fault, f"status.{subtree}"))
    return ReportView(
        report.observed_generation or 0,
        report.boot_id or "",
        {sys.intern(device.address): _device_report(device) for device in report.devices},
    )


def _device_report(device: DeviceReport) -> DeviceReportView:
    former, parts = (device.former_driver, device.virtual_functions) if isinstance(device, BoundDevice) else (None, ())
    begun = former is not None and any(part.state not in _SETTLED for part in parts)
    return DeviceReportView(
        device.state,
        sys.intern(device.reason),
        sys.intern(lasting(device.message)),
        _interned(former),
        begun,
        tuple(_as_wanted(device)) if isinstance(device, ProfiledCard) else (),
    )


def _as_wanted(card: ProfiledCard) -> Iterator[tuple[str, str]]:
    for one in card.vgpus:
        if one.is_of_layout and one.profile is not None:
            yield sys.intern(one.address), sys.intern(one.profile)


def _read_rollout(value: Any) -> NodeRollout | None:
    try:
        return NodeRollout.model_validate(value) if isinstance(value, Mapping) else None
    except ValidationError:
        return None  # ours alone: written anew


def _generation(metadata: Mapping[str, Any]) -> int:
    """0 where there is none, or one that no API server gives."""
    found = metadata.get("generation")
    return found if isinstance(found, int) and 0 <= found <= _LAST_GENERATION else 0


def _interned(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)
