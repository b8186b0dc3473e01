"""Objects of the API for tests, as the dicts that the API server hands out.

Each builder fills in the least that is valid; keyword arguments in snake_case replace or add fields. A test states
only what it is about. Nothing here is read back from the code under test but the names of fields.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from crds.models.base import API_VERSION, api_name

Object = dict[str, Any]

ATOM_MAX = {"vendor": "1eff", "device": "1250"}
BOOT = "7f1c0f7e-3a52-4a0a-9d0b-6f3f6f1f9f11"
NODE_UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
NOW = "2026-11-30T12:00:00Z"


def metadata(
    name: str,
    *,
    namespace: str | None = None,
    uid: str | None = None,
    generation: int = 1,
    resource_version: str = "1",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Metadata as the API server fills it in; the UID is made from the name unless it is given."""
    found: Object = {
        "name": name,
        "uid": uid or f"uid-of-{name}",
        "generation": generation,
        "resourceVersion": resource_version,
        "creationTimestamp": NOW,
    }
    if namespace is not None:
        found["namespace"] = namespace
    if labels is not None:
        found["labels"] = dict(labels)
    if annotations is not None:
        found["annotations"] = dict(annotations)
    return found


def fields(**given: Any) -> Object:
    """Keyword arguments as fields of the API: ``on_release="Leave"`` is ``{"onRelease": "Leave"}``."""
    return {api_name(name): value for name, value in given.items()}


def device_rule(
    name: str = "rule",
    *,
    products: Iterable[str] = ("RBLN-CA25",),
    match: Object | None = None,
    mode: str = "Passthrough",
    **given: Any,
) -> Object:
    """A rule of a policy; ``match`` replaces ``products``."""
    criteria = {"products": list(products)} if match is None else match
    return {"name": name, "match": criteria, "mode": mode} | fields(**given)


def node_policy(
    name: str = "policy",
    *,
    rules: Iterable[Object] | None = None,
    products: Iterable[str] = ("RBLN-CA25",),
    mode: str = "Passthrough",
    nodes: Mapping[str, str] | None = None,
    node_selector: Object | None = None,
    meta: Mapping[str, Any] | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    """A policy with the rules given, or one rule for ``products`` and ``mode``.

    ``nodes`` are labels that select; without them and without ``node_selector`` every node is selected.
    """
    selector = node_selector if node_selector is not None else {"matchLabels": dict(nodes)} if nodes else {}
    devices = list(rules) if rules is not None else [device_rule(products=products, mode=mode)]
    return _object(
        "NPUNodePolicy",
        metadata(name, **(meta or {})),
        {"nodeSelector": selector, "devices": devices} | fields(**spec),
        status,
    )


def profile_map(
    name: str = "map",
    *,
    products: Iterable[str] = ("L40S",),
    layout: Mapping[str, int] | None = None,
    gpus: Iterable[Object] | None = None,
    meta: Mapping[str, Any] | None = None,
    status: Object | None = None,
    **card: Any,
) -> Object:
    """A profile map; ``layout`` is the count by profile, further keywords belong to the one entry of ``gpus``."""
    entries = [{"profile": profile, "count": count} for profile, count in (layout or {"L40S-24Q": 2}).items()]
    cards = (
        [{"match": {"products": list(products)}, "layout": entries} | fields(**card)] if gpus is None else list(gpus)
    )
    return _object("VGPUProfileMap", metadata(name, **(meta or {})), {"gpus": cards}, status)


def quota(
    name: str = "quota",
    namespace: str = "team-a",
    *,
    meta: Mapping[str, Any] | None = None,
    status: Object | None = None,
    per_pod: Mapping[str, Any] | None = None,
    match: Object | None = None,
    when_exceeded: str | None = None,
    enforcement: str | None = None,
    **limits: Any,
) -> Object:
    """A quota; keywords that are not named here are limits: ``quota(cores=300, memory="96Gi")``."""
    spec: Object = {"limits": fields(**limits)} if limits else {}
    settings = fields(match=match, when_exceeded=when_exceeded, enforcement=enforcement)
    spec |= {key: value for key, value in settings.items() if value is not None}
    if per_pod is not None:
        spec["perPod"] = fields(**per_pod)
    return _object("VNPUQuota", metadata(name, namespace=namespace, **(meta or {})), spec, status)


def desired_device(
    address: str = "0000:23:00.0",
    *,
    identity: Mapping[str, str] | None = None,
    mode: str = "Passthrough",
    intent: str = "Apply",
    policy: str = "policy",
    rule: str = "rule",
    **given: Any,
) -> Object:
    """An order for one device, an ATOM-Max unless ``identity`` says otherwise."""
    return {
        "address": address,
        "identity": dict(identity or ATOM_MAX),
        "mode": mode,
        "intent": intent,
        "decidedBy": {"policy": policy, "rule": rule},
    } | fields(**given)


def inventory_device(address: str = "0000:23:00.0", *, kind: Mapping[str, str] | None = None, **given: Any) -> Object:
    """A device as the binder reports it: an ATOM-Max on its own driver, alone in its IOMMU group, used by nobody."""
    given = {("class" if name == "class_code" else name): value for name, value in given.items()}
    return {
        "address": address,
        **(kind or ATOM_MAX),
        "class": "120000",
        "driver": "rebellions",
        "groupViability": "Viable",
    } | fields(**given)


def device_report(address: str = "0000:23:00.0", state: str = "Ready", reason: str = "Bound", **given: Any) -> Object:
    """What a daemon says of one device."""
    return {"address": address, "state": state, "reason": reason} | fields(**given)


def report(
    devices: Iterable[Object] = (),
    *,
    generation: int = 1,
    boot_id: str = BOOT,
    ready: str = "True",
    reason: str = "AsOrdered",
) -> Object:
    """A daemon's subtree of the status, with its condition Ready."""
    return {
        "observedGeneration": generation,
        "bootID": boot_id,
        "devices": list(devices),
        "conditions": [condition("Ready", ready, reason, generation=generation)],
    }


def condition(
    type: str, status: str, reason: str, message: str = "", *, generation: int = 1, since: str = NOW
) -> Object:
    """A condition in the shape of metav1."""
    return {
        "type": type,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }


def node_state(
    name: str = "node-atom",
    *,
    node_uid: str = NODE_UID,
    revision: str = "",
    devices: Iterable[Object] = (),
    rollouts: Iterable[Object] = (),
    meta: Mapping[str, Any] | None = None,
    **subtrees: Object,
) -> Object:
    """The state of a node; keywords are subtrees of its status: ``node_state(inventory=report([...]))``."""
    spec = {"revision": revision, "nodeUID": node_uid, "devices": list(devices), "rollouts": list(rollouts)}
    return _object("NPUNodeState", metadata(name, **(meta or {})), spec, dict(subtrees) or None)


def node(
    name: str = "node-atom",
    *,
    uid: str = NODE_UID,
    boot_id: str = BOOT,
    labels: Mapping[str, str] | None = None,
    unschedulable: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A core/v1 Node with the fields that npufleet reads."""
    found: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(name, uid=uid, labels=labels or {}, annotations=annotations),
        "spec": {},
        "status": {"nodeInfo": {"bootID": boot_id}},
    }
    if unschedulable:
        found["spec"]["unschedulable"] = True
    return found


def _object(kind: str, meta: Object, spec: Object, status: Object | None) -> Object:
    found: Object = {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}
    return found if status is None else found | {"status": status}
