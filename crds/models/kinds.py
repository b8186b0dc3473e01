"""The kinds of the API and how the API server shows them."""

from dataclasses import dataclass
from typing import Final, Literal

from crds.models.base import GROUP, VERSION, KubeObject
from crds.models.node_policy import NPUNodePolicy
from crds.models.node_state import NPUNodeState
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import VNPUQuota

CATEGORY: Final = "npu"


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column; priority 1 shows it with ``-o wide`` only."""

    name: str
    json_path: str
    type: Literal["string", "integer", "date"] = "string"
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind: names, scope, columns, and the model that its schema is made from."""

    model: type[KubeObject]
    plural: str
    singular: str
    short_name: str
    namespaced: bool
    columns: tuple[Column, ...]
    group: str = GROUP
    version: str = VERSION

    @property
    def name(self) -> str:
        """The kind's name, e.g. ``NPUNodePolicy``."""
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"


def _condition(type: str, field: str, holder: str = ".status") -> str:
    return f'{holder}.conditions[?(@.type=="{type}")].{field}'


_AGE = Column("Age", ".metadata.creationTimestamp", "date", "Since creation.")
_READY_REASON = Column("Reason", _condition("Ready", "reason"), description="Reason of condition Ready.")

KINDS: Final = (
    Kind(
        NPUNodePolicy,
        "npunodepolicies",
        "npunodepolicy",
        "npunp",
        namespaced=False,
        columns=(
            Column("Matched", ".status.nodes.matched", "integer", "Nodes that the selector selects."),
            Column("Ready", ".status.nodes.ready", "integer", "Nodes on which every device of the policy is ready."),
            Column("Updated", ".status.nodes.updated", "integer", "Nodes that have the present policy's orders."),
            _READY_REASON,
            Column("Blocked", ".status.nodes.blocked", "integer", "Nodes that cannot go on.", priority=1),
            Column("Progressing", _condition("Progressing", "reason"), description="How the rollout goes.", priority=1),
            Column(
                "Degraded", _condition("Degraded", "status"), description="Whether somebody has to look.", priority=1
            ),
            Column("Devices", ".status.devices.matched", "integer", "Devices that the policy decides.", priority=1),
            Column("Devices-Ready", ".status.devices.ready", "integer", "Devices that are as asked.", priority=1),
            Column("Priority", ".spec.priority", "integer", "Higher wins; 100 when absent.", priority=1),
            _AGE,
        ),
    ),
    Kind(
        VGPUProfileMap,
        "vgpuprofilemaps",
        "vgpuprofilemap",
        "vgpum",
        namespaced=False,
        columns=(
            Column("Desired", ".status.totals.desired", "integer", "vGPUs asked for."),
            Column("Ready", ".status.totals.ready", "integer", "vGPUs that are there."),
            Column("In Use", ".status.totals.inUse", "integer", "vGPUs that a VM holds."),
            _READY_REASON,
            _AGE,
        ),
    ),
    Kind(
        VNPUQuota,
        "vnpuquotas",
        "vnpuquota",
        "vnpuq",
        namespaced=True,
        columns=(
            Column("Cores", ".status.used.cores", "integer", "Cores in use, percent of one NPU."),
            Column("Max-Cores", ".spec.limits.cores", "integer", "Limit of cores."),
            Column("Memory", ".status.used.memory", description="Memory in use."),
            Column("Max-Memory", ".spec.limits.memory", description="Limit of memory."),
            Column("Queued", ".status.pods.queued", "integer", "Pods that wait."),
            _READY_REASON,
            _AGE,
        ),
    ),
    Kind(
        NPUNodeState,
        "npunodestates",
        "npunodestate",
        "npuns",
        namespaced=False,
        columns=(
            Column(
                "Ready",
                _condition("Ready", "status", ".status.bindings"),
                description=(
                    "Whether the drivers are as ordered, by the binder's last report; it may speak of earlier orders "
                    "while Available is False, and for 10 s after new ones."
                ),
            ),
            Column("Reason", _condition("Ready", "reason", ".status.bindings"), description="Why READY is so."),
            Column(
                "Available",
                _condition("Available", "status", ".status.rollout"),
                description="Whether no device is away; a change that is over within 10 s is not told.",
            ),
            Column(
                "Updated",
                _condition("Updated", "status", ".status.rollout"),
                description="Whether the orders are those that the present policies give.",
            ),
            Column("Revision", ".spec.revision", description="Hash of the orders."),
            Column(
                "Rollout", ".status.rollout.admitted", description="Where the node stands in the rollouts.", priority=1
            ),
            Column(
                "Draining",
                _condition("Draining", "reason", ".status.rollout"),
                description="What the drain waits for, or how the last one ended.",
                priority=1,
            ),
            Column(
                "Cordoned-By",
                ".status.rollout.cordonedBy",
                description="The policy for which the node was cordoned.",
                priority=1,
            ),
            _AGE,
        ),
    ),
)

BY_NAME: Final = {kind.name: kind for kind in KINDS}
