"""Status of one policy, rolled up from its shares in all nodes: conditions, counts, what stands in the way.

Texts and lists are the same for the same objects, whatever their order of arrival, and nothing in them moves by
itself: a status is written when something happened, not because time passed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from controllers.node_policy.plan.evaluate import Evaluation, Obstacle, Share
from controllers.node_policy.plan.moments import happened, in_future, later
from controllers.node_policy.plan.progress import Progress
from controllers.node_policy.plan.view import BlockerReason, NodeConditionType, PolicyView
from crds.device_classes import classes_of_modes
from crds.models.conditions import (
    Condition,
    Status,
    condition,
    find_condition,
    merge_conditions,
    parse_timestamp,
    timestamp,
    truncate_message,
)
from crds.models.node_policy import (
    Blocker,
    Conflict,
    ConflictOutcome,
    DeviceCounts,
    NodeCounts,
    NodePolicySpec,
    NodePolicyStatus,
    PolicyConditionType,
    PolicyReason,
)

MOST_BLOCKERS: Final = 16
MOST_CONFLICTS: Final = 16
_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class Rollup:
    """A policy's status as it should be; `check_at`: when time alone would change it, None if never.

    `blocked` counts stuck nodes by reason, for the metrics.
    """

    status: NodePolicyStatus
    check_at: datetime | None
    blocked: Counter[str]


def roll_up(
    policy: PolicyView,
    evaluations: Iterable[Evaluation],
    now: datetime,
    *,
    stateless: int = 0,
    waiting: Mapping[str, tuple[str, ...]] | None = None,
    device_classes: frozenset[str] | None = None,
) -> Rollup:
    """The status of `policy`; `evaluations` are those of the nodes that have a share of it, sorted by node.

    `stateless`: selected nodes without an NPUNodeState (not made yet, or its kind is not served): nothing is known
    of them. `waiting`: by node that may not change yet, the policies that have no room for it. `device_classes`: the
    names of those that exist, None when nobody knows.
    """
    found = [(evaluation, evaluation.shares[policy.name]) for evaluation in evaluations]
    known = _Tally.of([share for _, share in found])
    tally = replace(known, nodes=known.nodes + stateless, pending_inventory=known.pending_inventory + stateless)
    missing = _missing_classes(policy.spec, device_classes) if tally.devices else ""
    blockers = _blockers(found, waiting or {}, missing)
    conflicts = _conflicts(share for _, share in found)
    if policy.spec is None:
        verdicts, check_at = _invalid(policy), None
    else:
        moved = _last_move(found, now)
        verdicts, check_at = _verdicts(policy, policy.spec, tally, bool(missing), blockers, conflicts, moved, now)
    if policy.by_hand is not None:
        message = truncate_message(policy.by_hand.message, _MESSAGE)
        verdicts.append((PolicyConditionType.BREAK_GLASS, True, PolicyReason.EDITED_BY_HAND, message))
    known_since = policy.status.conditions if policy.status is not None else ()
    old = [found for found in known_since if not in_future(found.last_transition_time, now)]
    fresh = [
        condition(kind, status, reason, message, now=timestamp(now), observed_generation=policy.generation)
        for kind, status, reason, message in verdicts
    ]
    status = NodePolicyStatus(
        observed_generation=policy.generation,
        conditions=merge_conditions(old, fresh),
        nodes=NodeCounts(matched=tally.nodes, updated=tally.updated, ready=tally.complete, blocked=tally.stuck),
        devices=DeviceCounts(matched=tally.devices, ready=tally.ready),
        blockers=blockers,
        conflicts=conflicts,
    )
    blocked: Counter[str] = Counter()
    for _, share in found:
        if share.stuck:
            blocked.update({obstacle.reason for obstacle in share.obstacles if obstacle.serious})
    return Rollup(status, check_at, blocked)


@dataclass(frozen=True, slots=True)
class _Tally:
    nodes: int
    updated: int
    complete: int
    stuck: int
    devices: int
    ready: int
    releasing: int
    rolling: int
    pending_inventory: int
    removal_held: int
    map_faults: frozenset[BlockerReason]
    progress: frozenset[Progress]

    @classmethod
    def of(cls, shares: list[Share]) -> "_Tally":
        selected = [share for share in shares if share.selected]
        return cls(
            nodes=len(selected),
            updated=sum(share.updated for share in selected),
            complete=sum(share.complete for share in selected),
            stuck=sum(share.stuck for share in shares),
            devices=sum(share.devices for share in shares),
            ready=sum(share.ready for share in shares),
            releasing=sum(share.releasing for share in shares),
            rolling=sum(share.rolling for share in shares),
            pending_inventory=sum(share.pending_inventory for share in shares),
            removal_held=sum(share.removal_held for share in shares),
            map_faults=frozenset().union(*(share.map_faults for share in shares)),
            progress=frozenset().union(*(share.progress for share in shares)),
        )

    def summary(self) -> str:
        text = f"{self.ready} of {self.devices} devices ready, {self.updated} of {self.nodes} nodes up to date"
        return f"{text}, {self.releasing} devices to be given back" if self.releasing else text


_Verdict = tuple[str, bool | None, str, str]


def _invalid(policy: PolicyView) -> list[_Verdict]:
    message = f"{policy.error}. Its devices stay as they are until the policy is corrected"
    return [
        (PolicyConditionType.READY, False, PolicyReason.INVALID, message),
        (PolicyConditionType.ACCEPTED, False, PolicyReason.INVALID, message),
        (PolicyConditionType.PROGRESSING, False, PolicyReason.INVALID, ""),
        (PolicyConditionType.DEGRADED, True, PolicyReason.INVALID, message),
        (PolicyConditionType.CONFLICTED, False, PolicyReason.NO_CONFLICT, ""),
    ]


def _verdicts(
    policy: PolicyView,
    spec: NodePolicySpec,
    tally: _Tally,
    without_classes: bool,
    blockers: tuple[Blocker, ...],
    conflicts: tuple[Conflict, ...],
    moved: datetime | None,
    now: datetime,
) -> tuple[list[_Verdict], datetime | None]:
    ready, reason, message = _readiness(tally, without_classes)
    if blockers and ready is not True:
        first = blockers[0]
        place = f"{first.node} {first.device}".strip()
        message = f"{message}; {': '.join(filter(None, (place, first.reason, first.message)))}"
    check_at: datetime | None = None
    stalled = False
    if policy.paused:
        ready, reason, message = None, PolicyReason.PAUSED, f"paused: {tally.summary()}"
        progressing: tuple[bool, str, str] = (False, PolicyReason.PAUSED, "")
    elif ready is True:
        progressing = (False, PolicyReason.COMPLETE, "")
    else:
        deadline = spec.rollout.progress_deadline_seconds
        last = _last_progress(policy, moved, now)
        stalled = last is None or now >= later(last, deadline)
        if stalled:
            progressing = (False, PolicyReason.PROGRESS_STALLED, f"no progress for {deadline} s: {message}")
        else:
            progressing = (True, PolicyReason.ROLLING_OUT, tally.summary())
            assert last is not None
            check_at = later(last, deadline)
    failed = Progress.FAILED in tally.progress
    degraded: tuple[bool, str, str] = (False, PolicyReason.AS_EXPECTED, "")
    if failed:
        degraded = (True, PolicyReason.DEVICES_FAILED, message)
    elif stalled:
        degraded = (True, PolicyReason.PROGRESS_STALLED, progressing[2])
    return [
        (PolicyConditionType.READY, ready, reason, truncate_message(message, _MESSAGE)),
        (PolicyConditionType.ACCEPTED, True, PolicyReason.VALID, ""),
        (PolicyConditionType.PROGRESSING, progressing[0], progressing[1], truncate_message(progressing[2], _MESSAGE)),
        (PolicyConditionType.DEGRADED, degraded[0], degraded[1], truncate_message(degraded[2], _MESSAGE)),
        _conflicted(conflicts),
    ], check_at


def _readiness(tally: _Tally, without_classes: bool) -> tuple[bool | None, str, str]:
    """Ready: what needs a person comes before what needs patience, and both before what nobody knows."""
    summary = tally.summary()
    if Progress.FAILED in tally.progress:
        return False, PolicyReason.DEVICES_FAILED, summary
    if Progress.DAEMON_MISSING in tally.progress:
        return False, PolicyReason.DAEMON_MISSING, summary
    if without_classes:
        return False, PolicyReason.DEVICE_CLASS_MISSING, summary
    if tally.removal_held:
        return None, PolicyReason.REMOVAL_HELD, summary
    if BlockerReason.PROFILE_MAP_MISSING in tally.map_faults:
        return False, PolicyReason.PROFILE_MAP_MISSING, summary
    if BlockerReason.NO_LAYOUT_FOR_CARD in tally.map_faults:
        return False, PolicyReason.NO_LAYOUT_FOR_CARD, summary
    if Progress.BLOCKED in tally.progress:
        return False, PolicyReason.DEVICES_BLOCKED, summary
    if tally.rolling:
        return False, PolicyReason.ROLLING_OUT, summary
    if tally.pending_inventory:
        return False, PolicyReason.INVENTORY_PENDING, f"{summary}, without inventory: {tally.pending_inventory}"
    if Progress.SILENT in tally.progress:
        return None, PolicyReason.DAEMON_SILENT, summary
    if Progress.REBOOTED in tally.progress:
        return None, PolicyReason.REBOOTED, summary
    if not tally.nodes:
        return True, PolicyReason.NO_NODES_MATCHED, "no node matches nodeSelector; nothing to do"
    if not tally.devices:
        return (
            True,
            PolicyReason.NO_DEVICES_MATCHED,
            f"no device of {tally.nodes} nodes is decided by a rule; nothing to do",
        )
    return True, PolicyReason.ALL_DEVICES_READY, summary


def _conflicted(conflicts: tuple[Conflict, ...]) -> _Verdict:
    kind = PolicyConditionType.CONFLICTED
    lost = [conflict for conflict in conflicts if conflict.outcome is ConflictOutcome.LOST]
    shown = lost or list(conflicts)
    if not shown:
        return (kind, False, PolicyReason.NO_CONFLICT, "")
    names = ", ".join(f"{conflict.policy}/{conflict.rule}" for conflict in shown)
    if lost:
        return (kind, True, PolicyReason.LOST_DEVICES, truncate_message(f"devices go to {names}", _MESSAGE))
    return (kind, True, PolicyReason.WON_DEVICES, truncate_message(f"devices are also wanted by {names}", _MESSAGE))


def _last_progress(policy: PolicyView, moved: datetime | None, now: datetime) -> datetime | None:
    """When the rollout last went on; None: not since it was found to have stalled.

    A node's condition Available turns when a change begins and when it is done, so its transition times tell, and
    survive a restart of this process.
    """
    status = policy.status
    old = find_condition(status.conditions, PolicyConditionType.PROGRESSING) if status is not None else None
    if old is None or status is None or status.observed_generation != policy.generation:
        return now
    if old.status is Status.TRUE:
        since = happened(old.last_transition_time, now)
        return max(since, moved) if moved is not None else since
    if old.reason == PolicyReason.PROGRESS_STALLED:
        return moved
    return now


def _last_move(found: list[tuple[Evaluation, Share]], now: datetime) -> datetime | None:
    moves = [moment for evaluation, _ in found if (moment := _moved(evaluation)) is not None and moment <= now]
    return max(moves, default=None)


def _moved(evaluation: Evaluation) -> datetime | None:
    rollout = evaluation.state.rollout
    available: Condition | None = None
    # A change that is tried again and again while its drain is given up each time is no progress.
    if rollout is not None and (rollout.drain is None or rollout.drain.aborts is None):
        available = find_condition(rollout.conditions, NodeConditionType.AVAILABLE)
    return parse_timestamp(available.last_transition_time) if available is not None else None


# What comes first in `blockers`: as in `_readiness`, so that the first one is what the reason of Ready speaks of.
_FIRST: Final = (
    Progress.FAILED,
    Progress.DAEMON_MISSING,
    BlockerReason.DEVICE_CLASS_MISSING,
    BlockerReason.REMOVAL_HELD,
    BlockerReason.PROFILE_MAP_MISSING,
    BlockerReason.NO_LAYOUT_FOR_CARD,
    Progress.BLOCKED,
)


def _missing_classes(spec: NodePolicySpec | None, existing: frozenset[str] | None) -> str:
    """Which DeviceClasses its devices are asked for by and do not exist, in words; "" when none is missing."""
    if spec is None or existing is None:
        return ""
    driver = spec.driver_name
    missing = [name for name in classes_of_modes(driver, (rule.mode for rule in spec.devices)) if name not in existing]
    if not missing:
        return ""
    return (
        f"nobody can ask for the devices: DeviceClass {' and '.join(missing)} does not exist; "
        f"`npufleet deviceclasses {driver}` prints what belongs into Git"
    )


def _blockers(
    found: list[tuple[Evaluation, Share]], waiting: Mapping[str, tuple[str, ...]], missing: str
) -> tuple[Blocker, ...]:
    """The first 16: serious ones first, the worst before the others, then nodes that may not change yet, then the rest.

    Among equals by node and address.
    """
    ranked: list[list[Blocker]] = [[] for _ in range(len(_FIRST) + 3)]
    ranked[-2] = _waiting(found, waiting)
    if missing:
        word = BlockerReason.DEVICE_CLASS_MISSING
        ranked[_FIRST.index(word)] = [Blocker(node="", device="", reason=word, message=missing)]
    for evaluation, share in found:
        for obstacle in share.obstacles:
            alike = ranked[_weight(obstacle)]
            if len(alike) < MOST_BLOCKERS:
                message = truncate_message(obstacle.message, _MESSAGE)
                name = evaluation.node.name
                alike.append(Blocker(node=name, device=obstacle.address, reason=obstacle.reason, message=message))
    return tuple(blocker for alike in ranked for blocker in alike)[:MOST_BLOCKERS]


def _weight(obstacle: Obstacle) -> int:
    if not obstacle.serious:
        return len(_FIRST) + 2
    words = (obstacle.progress, obstacle.reason)
    return next((weight for weight, word in enumerate(_FIRST) if word in words), len(_FIRST))


def _waiting(found: list[tuple[Evaluation, Share]], waiting: Mapping[str, tuple[str, ...]]) -> list[Blocker]:
    picked = []
    for evaluation, share in found if waiting else ():
        full = waiting.get(evaluation.node.name)
        if full is not None and not share.updated:
            message = f"waits for room in maxUnavailable of {', '.join(full)}"
            reason = BlockerReason.WAITING_FOR_BUDGET
            picked.append(
                Blocker(
                    node=evaluation.node.name, device="", reason=reason, message=truncate_message(message, _MESSAGE)
                )
            )
            if len(picked) == MOST_BLOCKERS:
                break
    return picked


def _conflicts(shares: Iterable[Share]) -> tuple[Conflict, ...]:
    """The first 16: lost ones first, then by policy and rule."""
    counts: Counter[tuple[str, str, ConflictOutcome]] = Counter()
    for share in shares:
        counts.update(share.clashes)
    ranked = sorted(counts.items(), key=lambda item: (item[0][2] is ConflictOutcome.WON, item[0]))
    return tuple(
        Conflict(policy=policy, rule=rule, nodes=nodes, outcome=outcome)
        for (policy, rule, outcome), nodes in ranked[:MOST_CONFLICTS]
    )
