"""Where vGPUs and their card stand, in the words of the report. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from crds.models.node_state import DeviceState
from crds.models.profiling import ProfileReason as Reason
from profile_writer.card import CardSeen, FunctionSeen, MdevSeen, Obstacle, Standing, Verdict

_PENDING: Final = frozenset({Reason.LIST_EMPTY, Reason.TYPING})
_FAILED: Final = frozenset(
    {
        Reason.FUNCTIONS_FAILED,
        Reason.MIXED_SIZES_FAILED,
        Reason.TYPE_FAILED,
        Reason.WRITE_STUCK,
        Reason.DEVICE_UNREADABLE,
        Reason.INTERNAL_ERROR,
    }
)
_SHOWN: Final = 12
_WORST_FIRST: Final = (DeviceState.FAILED, DeviceState.BLOCKED, DeviceState.PENDING)


def blocked(obstacle: Obstacle) -> Verdict:
    """The card as a whole."""
    return Verdict(DeviceState.BLOCKED, obstacle.reason, obstacle.message)


def report(function: FunctionSeen, state: DeviceState, reason: Reason, message: str = "") -> Standing:
    """One function."""
    return Standing(function.address, function.profile, state, reason, message, function.users)


def report_mdev(mdev: MdevSeen, state: DeviceState, reason: Reason, message: str = "") -> Standing:
    """One mediated device."""
    return Standing(mdev.parent, mdev.profile, state, reason, message, mdev.users, mdev.uuid)


def current(seen: CardSeen) -> tuple[Standing, ...]:
    """What there is, while nothing is done to it."""
    held = "the card is left as it is"
    functions = [one for one in seen.functions if one.is_typed]
    return (
        *(report(one, DeviceState.PENDING, Reason.HELD, held) for one in functions),
        *(report_mdev(one, DeviceState.PENDING, Reason.HELD, held) for one in seen.mdevs),
    )


def summed_up(standings: Sequence[Standing], *, last: Collection[str] = ()) -> Verdict:
    """The card with its vGPUs: as far as the worst of them, with that one's reason; of several that of what is `last`
    only where there is no other."""
    vgpus = tuple(sorted(standings, key=lambda one: (one.address, one.uuid or "", one.profile or "")))
    for state in _WORST_FIRST:
        found = [one for one in vgpus if one.state is state]
        if found:
            first = min(found, key=lambda one: one.address in last)
            named = f"{first.profile} on {first.address}" if first.profile else first.address
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return Verdict(state, first.reason, f"{named}: {first.message}{more}", vgpus)
    adopted = vgpus and all(one.reason is Reason.ADOPTED for one in vgpus)
    return Verdict(DeviceState.READY, Reason.ADOPTED if adopted else Reason.TYPED, "", vgpus)


def told_users(users: Iterable[str]) -> str:
    """For messages."""
    return "; ".join(users)


def state_of(why: Obstacle) -> DeviceState:
    """How far something is that this keeps from being as ordered."""
    if why.reason in _PENDING:
        return DeviceState.PENDING
    return DeviceState.FAILED if why.reason in _FAILED else DeviceState.BLOCKED


def some_of(names: Iterable[str]) -> str:
    """Names for messages, sorted."""
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
