"""The next step of a card towards its orders, or why there is none. Pure: what is seen decides, nothing is remembered.

One step at a time, because the driver decides what is possible after each: it shrinks the lists of all functions of the
card. So a writer that dies after any step goes on with the next one.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from crds.models.node_state import DeviceState, Intent
from crds.models.profile_map import MixedSizes, Unassigned
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import VGPUOrder
from profile_writer.card import (
    CardSeen,
    ClearType,
    DisableFunctions,
    EnableFunctions,
    FindDriver,
    FunctionSeen,
    MixSizes,
    Obstacle,
    SetType,
    Standing,
    Step,
    Switch,
    Verdict,
)
from profile_writer.release import next_step_of_release
from profile_writer.standing import blocked, current, report, summed_up, told_users

_SHOWN: Final = 12


def next_step(order: VGPUOrder, intent: Intent, seen: CardSeen, *, restore: bool = True) -> Step | Verdict:
    """What to do now. `restore`: on release the card gets back what it had before npufleet."""
    if seen.obstacle is not None:
        if intent is Intent.RELEASE and seen.obstacle.reason is Reason.DEVICE_MISSING:
            return Verdict(DeviceState.RELEASED, Reason.RELEASED, seen.obstacle.message)
        return blocked(seen.obstacle)
    if intent is Intent.RELEASE:
        return next_step_of_release(seen, restore=restore)
    if intent is Intent.HOLD or not order.layout:
        return Verdict(DeviceState.PENDING, Reason.HELD, "the orders are to leave it as it is", current(seen))
    own = seen.failed.get(seen.address)
    # Without mixed sizes the profiles of one size still go on the card: those that had one get it back.
    if own is not None and own.reason is not Reason.MIXED_SIZES_FAILED:
        return Verdict(DeviceState.FAILED, own.reason, own.message, current(seen))
    return _functions(order, seen) or _Layout(order, seen).next()


def _functions(order: VGPUOrder, seen: CardSeen) -> Step | Verdict | None:
    """Until the card's functions are there as vGPU functions; None when they are."""
    if seen.driver is None or seen.is_on_vfio:
        if seen.driver is None and seen.former is not None:
            return FindDriver()
        text = f"the card is on {seen.driver or 'no driver'}: its vGPU host driver is not loaded, or has not taken it"
        return Verdict(DeviceState.BLOCKED, Reason.DRIVER_MISSING, text)
    if seen.mig is Switch.ON:
        text = "MIG mode is on, so the driver offers no time-sliced types: turn it off (nvidia-smi -mig 0)"
        return Verdict(DeviceState.BLOCKED, Reason.MIG_ENABLED, text, current(seen))
    needed = sum(entry.count for entry in order.layout)
    if not seen.total:
        return Verdict(DeviceState.BLOCKED, Reason.FRAMEWORK_MISSING, f"{seen.driver} makes no virtual functions of it")
    if seen.total < needed:
        text = f"{needed} vGPUs are ordered, and the card makes {seen.total} virtual functions at most"
        return Verdict(DeviceState.BLOCKED, Reason.TOO_FEW_FUNCTIONS, text, current(seen))
    if seen.number == 0:
        if seen.users:
            text = f"its virtual functions cannot be enabled while it is in use by {told_users(seen.users)}"
            return Verdict(DeviceState.BLOCKED, Reason.IN_USE, text)
        return EnableFunctions(seen.total)
    if seen.number < needed:
        return _too_few(seen, needed)
    if not any(function.is_vgpu for function in seen.functions):
        text = (
            f"{seen.driver} makes no vGPUs of its virtual functions (there is no nvidia/current_vgpu_type): the host's "
            "vGPU mode is another one, or the driver is none for vGPUs"
        )
        return Verdict(DeviceState.BLOCKED, Reason.FRAMEWORK_MISSING, text)
    return None


def _too_few(seen: CardSeen, needed: int) -> Step | Verdict:
    """Fewer functions than vGPUs. All go before there are more, so none may be in the way."""
    text = f"{needed} vGPUs are ordered and {seen.number} virtual functions are enabled"
    for function in seen.functions:
        if function.is_typed or not function.is_free:
            why = function.obstacle.message if function.obstacle else f"it is {function.profile or 'typed'}"
            message = f"{text}; more are made only when none is in use: {function.address}: {why}"
            return Verdict(DeviceState.BLOCKED, Reason.TOO_FEW_FUNCTIONS, message, current(seen))
    if seen.users:
        message = f"{text}; the card is in use by {told_users(seen.users)}"
        return Verdict(DeviceState.BLOCKED, Reason.IN_USE, message, current(seen))
    return DisableFunctions()


class _Layout:
    """The types of a card whose functions are there."""

    def __init__(self, order: VGPUOrder, seen: CardSeen) -> None:
        self._order = order
        self._seen = seen
        self._wanted = Counter({entry.profile: 0 for entry in order.layout})
        for entry in order.layout:
            self._wanted[entry.profile] += entry.count
        functions = [function for function in seen.functions if function.is_vgpu]
        self._typed = [function for function in functions if function.is_typed]
        self._untyped = [function for function in functions if function.type_id == 0]
        self._kept = self._keep()
        kept = {function.address for function in self._kept}
        self._rest = [function for function in self._typed if function.address not in kept]
        carried = Counter(function.profile for function in self._kept)
        self._missing = [p for p in self._by_size() for _ in range(self._wanted[p] - carried[p])]

    def next(self) -> Step | Verdict:
        fault = self._impossible()
        if fault is not None:
            return self._verdict(fault)
        if not self._missing:
            return self._surplus()
        step = self._mode()
        if step is None:
            for profile in dict.fromkeys(self._missing):
                step = self._give(profile)
                if step is not None:
                    break
        return step or self._verdict(None)

    def _keep(self) -> list[FunctionSeen]:
        """Functions that are as wanted already: those in use first, then those that had it before."""
        left, kept = Counter(self._wanted), []

        def rank(function: FunctionSeen) -> tuple[bool, bool, str]:
            return function.obstacle is None, function.former != function.profile, function.address

        for function in sorted(self._typed, key=rank):
            if function.profile is not None and left[function.profile] > 0:
                left[function.profile] -= 1
                kept.append(function)
        return kept

    def _by_size(self) -> list[str]:
        """Profiles, the big ones first: small ones may lie where a big one has to begin."""
        order = {profile: place for place, profile in enumerate(self._wanted)}
        return sorted(self._wanted, key=lambda profile: (-self._seen.sizes.get(profile, 0), order[profile]))

    def _impossible(self) -> Obstacle | None:
        """What keeps the layout from ever being made on this card by this driver."""
        seen, names = self._seen, self._seen.names
        unknown = [profile for profile in self._wanted if profile not in names]
        if unknown and not names:
            unread = [function for function in seen.functions if function.fault is not None]
            why = f"{unread[0].address}: {unread[0].fault}" if unread else "its lists of types are empty"
            return Obstacle(Reason.LIST_EMPTY, f"the driver offers the card no type now: {why}")
        if unknown:
            text = f"the driver has no {', '.join(unknown)}; it offers {_some(sorted(names))}"
            return Obstacle(Reason.PROFILE_UNKNOWN, text)
        if self._is_mixed and self._order.mixed_sizes is MixedSizes.FORBID:
            text = "the layout has several frame buffer sizes, and its map says mixedSizes: Forbid"
            return Obstacle(Reason.MIXED_SIZES_FORBIDDEN, text)
        sizes = [seen.sizes.get(profile) for profile in self._wanted.elements()]
        if seen.frame_buffer is not None and sum(size or 0 for size in sizes) > seen.frame_buffer:
            text = f"the layout needs {sum(size or 0 for size in sizes)} GB of {seen.frame_buffer} GB frame buffer"
            return Obstacle(Reason.NO_ROOM, text)
        return None

    @property
    def _is_mixed(self) -> bool:
        return len({self._seen.sizes[p] for p in self._wanted if p in self._seen.sizes}) > 1

    def _mode(self) -> Step | Verdict | None:
        """Mixed sizes, which change only while no function has a type."""
        seen = self._seen
        if not self._is_mixed:
            if seen.mixed is Switch.ON and not self._typed and seen.has_smi and seen.former is not None:
                return MixSizes(False)
            return None
        if seen.mixed is Switch.ON or seen.address in seen.failed:
            return None
        if not seen.has_smi:
            text = "several frame buffer sizes on a card need its mixed-size mode, which nvidia-smi sets: there is none"
            return self._verdict(Obstacle(Reason.TOOL_MISSING, text))
        for function in self._typed:
            if not function.is_free:
                return self._verdict(self._blocker(function, "the mixed-size mode is set while no function has a type"))
        if self._typed:
            first = self._typed[0]
            return ClearType(first.address, first.profile or str(first.type_id), rearranges=first in self._kept)
        return MixSizes(True)

    def _give(self, profile: str) -> Step | None:
        """How another function gets the profile: by its type, or by room made for it."""
        reserved = {function.address for function in self._untyped if function.former in self._missing}
        candidates = [f for f in self._untyped if f.is_free and f.address not in self._seen.failed]

        def rank(function: FunctionSeen) -> tuple[bool, bool, str]:
            return function.former != profile, function.address in reserved, function.address

        for function in sorted(candidates, key=rank):
            type_id = function.creatable.get(profile)
            if type_id is not None:
                return SetType(function.address, type_id, profile)
        if not candidates and any(f.is_free for f in self._untyped):
            return None  # those that are left have failed
        return self._make_room()

    def _make_room(self) -> ClearType | None:
        failed = self._seen.failed
        for function in self._rest:
            if function.is_free and function.address not in failed:
                return ClearType(function.address, function.profile or str(function.type_id))
        may = self._seen.may_rearrange and self._seen.address not in failed
        if may and not any(not function.is_free for function in self._typed):
            for function in self._kept:
                if function.is_free and function.address not in failed:
                    return ClearType(function.address, function.profile or "", rearranges=True)
        return None

    def _surplus(self) -> Step | Verdict:
        """The layout is there; what is done with types beyond it."""
        if self._order.unassigned is Unassigned.CLEAR:
            for function in self._rest:
                if function.is_free and function.address not in self._seen.failed:
                    return ClearType(function.address, function.profile or str(function.type_id))
        return self._verdict(None)

    def _blocker(self, function: FunctionSeen, why: str) -> Obstacle:
        obstacle = function.obstacle or Obstacle(Reason.DEVICE_UNREADABLE, function.fault or "")
        return Obstacle(obstacle.reason, f"{why}: {function.address}: {obstacle.message}")

    def _verdict(self, fault: Obstacle | None) -> Verdict:
        """Where each vGPU stands now."""
        standings = [self._as_wanted(function) for function in self._kept]
        standings += [self._beyond(function) for function in self._rest]
        standings += self._missing_ones(fault)
        standings += [report(f, DeviceState.FAILED, Reason.DEVICE_UNREADABLE, f.fault or "") for f in self._unread()]
        verdict = summed_up(standings)
        if fault is None:
            return verdict
        pending = fault.reason is Reason.LIST_EMPTY
        state = DeviceState.PENDING if pending else DeviceState.BLOCKED
        return Verdict(state, fault.reason, fault.message, verdict.vgpus)

    def _unread(self) -> Iterable[FunctionSeen]:
        """Functions whose type is not known; of others a list that cannot be read costs nothing but itself."""
        return [f for f in self._seen.functions if f.is_vgpu and f.type_id is None]

    def _as_wanted(self, function: FunctionSeen) -> Standing:
        ours = self._seen.given.get(function.address) == function.profile
        return report(function, DeviceState.READY, Reason.TYPED if ours else Reason.ADOPTED)

    def _beyond(self, function: FunctionSeen) -> Standing:
        failed = self._seen.failed.get(function.address)
        if failed is not None:
            return report(function, DeviceState.FAILED, failed.reason, failed.message)
        unnamed = f"its type {function.type_id} has no known name; " if function.profile is None else ""
        if self._order.unassigned is Unassigned.LEAVE and not self._missing:
            return report(function, DeviceState.READY, Reason.UNASSIGNED, f"{unnamed}no layout asks for it")
        if function.obstacle is not None:
            text = f"{unnamed}it is to be cleared: {function.obstacle.message}"
            return report(function, DeviceState.BLOCKED, function.obstacle.reason, text)
        if function.fault is not None:
            return report(function, DeviceState.FAILED, Reason.DEVICE_UNREADABLE, function.fault)
        return report(function, DeviceState.PENDING, Reason.TYPING, f"{unnamed}it is to be cleared")

    def _missing_ones(self, fault: Obstacle | None) -> list[Standing]:
        """Each vGPU that is not there, at the function that would carry it."""
        failed = [f for f in self._untyped if f.address in self._seen.failed]
        free = [f for f in self._untyped if f.is_free and f.address not in self._seen.failed]
        places = [*failed, *free, *[f for f in self._untyped if not f.is_free]]
        found = []
        for number, profile in enumerate(self._missing):
            function = places[number] if number < len(places) else None
            address = function.address if function else self._seen.address
            why = self._why_missing(profile, function, fault)
            state = DeviceState.FAILED if why in self._seen.failed.values() else _state_of(why)
            found.append(Standing(address, profile, state, why.reason, why.message))
        return found

    def _why_missing(self, profile: str, function: FunctionSeen | None, fault: Obstacle | None) -> Obstacle:
        if fault is not None:
            return fault
        if function is not None and function.address in self._seen.failed:
            return self._seen.failed[function.address]
        if self._seen.address in self._seen.failed:
            return self._seen.failed[self._seen.address]
        in_the_way = [f for f in self._rest if not f.is_free] or [f for f in self._typed if not f.is_free]
        if in_the_way:
            return self._blocker(in_the_way[0], f"there is no room for {profile}")
        if function is not None and function.obstacle is not None:
            return self._blocker(function, f"the function that would carry {profile} may not be changed")
        return Obstacle(Reason.NO_ROOM, f"no function of the card can become {profile} beside the others")


def _state_of(why: Obstacle) -> DeviceState:
    return DeviceState.PENDING if why.reason in (Reason.LIST_EMPTY, Reason.TYPING) else DeviceState.BLOCKED


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
