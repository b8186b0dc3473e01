"""Where vGPUs and their card stand, in the words of the report. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from crds.models.node_state import DeviceState
from crds.models.profiling import ProfileReason as Reason
from profile_writer.card import CardSeen, FunctionSeen, Obstacle, Standing, Verdict

_WORST_FIRST: Final = (DeviceState.FAILED, DeviceState.BLOCKED, DeviceState.PENDING)


def blocked(obstacle: Obstacle) -> Verdict:
    """The card as a whole."""
    return Verdict(DeviceState.BLOCKED, obstacle.reason, obstacle.message)


def report(function: FunctionSeen, state: DeviceState, reason: Reason, message: str = "") -> Standing:
    """One function."""
    return Standing(function.address, function.profile, state, reason, message, function.users)


def current(seen: CardSeen) -> tuple[Standing, ...]:
    """What there is, while nothing is done to it."""
    held = "the card is left as it is"
    return tuple(
        report(function, DeviceState.PENDING, Reason.HELD, held) for function in seen.functions if function.is_typed
    )


def summed_up(standings: Sequence[Standing]) -> Verdict:
    """The card with its vGPUs: as far as the worst of them, with that one's reason."""
    vgpus = tuple(sorted(standings, key=lambda one: (one.address, one.profile or "")))
    for state in _WORST_FIRST:
        found = [one for one in vgpus if one.state is state]
        if found:
            first = found[0]
            named = f"{first.profile} on {first.address}" if first.profile else first.address
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return Verdict(state, first.reason, f"{named}: {first.message}{more}", vgpus)
    adopted = vgpus and all(one.reason is Reason.ADOPTED for one in vgpus)
    return Verdict(DeviceState.READY, Reason.ADOPTED if adopted else Reason.TYPED, "", vgpus)


def told_users(users: Iterable[str]) -> str:
    """For messages."""
    return "; ".join(users)
