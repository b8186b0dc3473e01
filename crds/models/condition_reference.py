"""What the conditions and reasons of each kind mean: the text of the reference and of ``npufleet explain``.

Kept beside the constants, apart from them because code that sets a reason needs no prose.
"""

from dataclasses import dataclass
from typing import Final

from crds.models.node_policy import PolicyConditionType, PolicyReason


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """A reason, the status that it stands with, and what it means."""

    reason: str
    status: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ConditionDoc:
    """A condition of a kind and its reasons."""

    type: str
    meaning: str
    reasons: tuple[ReasonDoc, ...]


_POLICY: Final = (
    ConditionDoc(
        PolicyConditionType.READY,
        "Every device that the policy decides is as it asks, on every node, observed in this boot.",
        (
            ReasonDoc(PolicyReason.ALL_DEVICES_READY, "True", "All devices are as asked."),
            ReasonDoc(PolicyReason.NO_NODES_MATCHED, "True", "The selector selects no node: nothing to do."),
            ReasonDoc(PolicyReason.NO_DEVICES_MATCHED, "True", "No device of the nodes matches: nothing to do."),
            ReasonDoc(
                PolicyReason.INVENTORY_PENDING, "False", "A selected node has not told its devices in this boot yet."
            ),
            ReasonDoc(PolicyReason.ROLLING_OUT, "False", "Nodes are changing, or wait for their turn."),
            ReasonDoc(
                PolicyReason.DEVICES_BLOCKED,
                "False",
                "Devices may not be touched: in use, needed by the host, or their IOMMU group does not allow it; see "
                "`blockers`.",
            ),
            ReasonDoc(PolicyReason.DEVICES_FAILED, "False", "The host refused a change; see `blockers`."),
            ReasonDoc(PolicyReason.DAEMON_MISSING, "False", "The mode needs a daemon that does not report on a node."),
            ReasonDoc(
                PolicyReason.DAEMON_SILENT, "Unknown", "A node's daemon has not renewed its Lease for 15 minutes."
            ),
            ReasonDoc(PolicyReason.REBOOTED, "Unknown", "A node has booted and not reported since."),
            ReasonDoc(
                PolicyReason.PAUSED, "Unknown", "The policy is paused: what was in force stays, nothing is written."
            ),
            ReasonDoc(
                PolicyReason.REMOVAL_HELD,
                "Unknown",
                "Many policies vanished at once: their devices stay as they are until the removal is confirmed.",
            ),
        ),
    ),
    ConditionDoc(
        PolicyConditionType.ACCEPTED,
        "The policy can be carried out as it is written.",
        (
            ReasonDoc(PolicyReason.VALID, "True", "The policy is understood."),
            ReasonDoc(
                PolicyReason.INVALID,
                "False",
                "The policy cannot be understood; its devices stay as they are. The message names the field.",
            ),
        ),
    ),
    ConditionDoc(
        PolicyConditionType.PROGRESSING,
        "The rollout goes on.",
        (
            ReasonDoc(PolicyReason.ROLLING_OUT, "True", "Nodes are changing, or wait for their turn."),
            ReasonDoc(PolicyReason.COMPLETE, "False", "Every node has the present orders and has answered them."),
            ReasonDoc(
                PolicyReason.PROGRESS_STALLED, "False", "Nothing has moved for `rollout.progressDeadlineSeconds`."
            ),
            ReasonDoc(PolicyReason.PAUSED, "False", "The policy is paused."),
        ),
    ),
    ConditionDoc(
        PolicyConditionType.DEGRADED,
        "Something is wrong that does not mend by waiting.",
        (
            ReasonDoc(PolicyReason.AS_EXPECTED, "False", "Nothing is wrong."),
            ReasonDoc(PolicyReason.DEVICES_FAILED, "True", "The host refused a change; see `blockers`."),
            ReasonDoc(
                PolicyReason.PROGRESS_STALLED, "True", "Nothing has moved for `rollout.progressDeadlineSeconds`."
            ),
        ),
    ),
    ConditionDoc(
        PolicyConditionType.CONFLICTED,
        "Another policy decides devices of this one differently; see `conflicts`.",
        (
            ReasonDoc(PolicyReason.NO_CONFLICT, "False", "No other policy decides these devices differently."),
            ReasonDoc(PolicyReason.LOST_DEVICES, "True", "Another policy wins some of its devices."),
            ReasonDoc(PolicyReason.WON_DEVICES, "True", "It wins devices that another policy wants differently."),
        ),
    ),
)

CONDITIONS: Final[dict[str, tuple[ConditionDoc, ...]]] = {"NPUNodePolicy": _POLICY}
