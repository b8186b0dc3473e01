"""Giving a card back: the types that npufleet gave go, what was there before comes back, step by step. Pure."""

from crds.models.node_state import DeviceState
from crds.models.profiling import ProfileReason as Reason
from profile_writer.card import CardSeen, ClearType, DisableFunctions, RemoveMdev, SetType, Standing, Step, Verdict
from profile_writer.standing import report, report_mdev, told_users


def next_step_of_release(seen: CardSeen, *, restore: bool) -> Step | Verdict:
    """What to do now; RELEASED when nothing is left of npufleet, or all of it is to stay."""
    if seen.former is None or not restore:
        return Verdict(DeviceState.RELEASED, Reason.RELEASED)
    own = seen.failed.get(seen.address)
    if own is not None:
        return Verdict(DeviceState.FAILED, Reason.RESTORE_FAILED, own.message)
    waiting: list[Standing] = []
    for function in seen.functions:
        ours = function.profile is not None and seen.given.get(function.address) == function.profile
        if not ours or function.profile == seen.former.profiles.get(function.address):
            continue
        failed = seen.failed.get(function.address)
        if failed is not None:
            waiting.append(report(function, DeviceState.FAILED, Reason.RESTORE_FAILED, failed.message))
        elif function.obstacle is not None:
            waiting.append(report(function, DeviceState.BLOCKED, function.obstacle.reason, function.obstacle.message))
        elif function.fault is not None:
            waiting.append(report(function, DeviceState.FAILED, Reason.DEVICE_UNREADABLE, function.fault))
        else:
            return ClearType(function.address, function.profile or str(function.type_id))
    for mdev in seen.mdevs:
        if seen.given.get(mdev.uuid) is None:
            continue
        why = seen.failed.get(mdev.uuid) or mdev.obstacle
        if why is None:
            return RemoveMdev(mdev.parent, mdev.uuid, mdev.profile or "")
        state = DeviceState.FAILED if mdev.uuid in seen.failed else DeviceState.BLOCKED
        reason = Reason.RESTORE_FAILED if mdev.uuid in seen.failed else why.reason
        waiting.append(report_mdev(mdev, state, reason, why.message))
    if waiting:
        first = waiting[0]
        return Verdict(first.state, first.reason, f"{first.address}: {first.message}", tuple(waiting))
    for function in seen.functions:
        before = seen.former.profiles.get(function.address)
        free = function.type_id == 0 and function.is_free and function.address not in seen.failed
        if before is not None and free and before in function.creatable:
            return SetType(function.address, function.creatable[before], before)
    return _number(seen, seen.former.number)


def _number(seen: CardSeen, before: int) -> Step | Verdict:
    if before != 0 or seen.number == 0:
        return Verdict(DeviceState.RELEASED, Reason.RELEASED)
    if seen.mdevs:
        text = f"its functions stay: {seen.mdevs[0].uuid} is on {seen.mdevs[0].parent}"
        return Verdict(DeviceState.RELEASED, Reason.RELEASED, text)
    for function in seen.functions:
        if function.is_typed or not function.is_free:
            why = function.obstacle.message if function.obstacle else "others gave it a type"
            return Verdict(DeviceState.RELEASED, Reason.RELEASED, f"its functions stay: {function.address}: {why}")
    if seen.users:
        text = f"its virtual functions are disabled when it is free: {told_users(seen.users)}"
        return Verdict(DeviceState.BLOCKED, Reason.IN_USE, text)
    return DisableFunctions()
