"""The next step of a card towards its orders, or why there is none. Pure: what is seen decides, nothing is remembered.

One step at a time, because the driver decides what is possible after each: it shrinks the lists of all functions of the
card. So a writer that dies after any step goes on with the next one.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from crds.models.node_state import DeviceState, Intent
from crds.models.profile_map import Framework, MixedSizes, Unassigned
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import VGPUOrder
from profile_writer.card import (
    FOR_MODE,
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
from profile_writer.mdev_plan import next_mdev_step
from profile_writer.placing import could_hold
from profile_writer.release import next_step_of_release
from profile_writer.standing import blocked, current, report, some_of, state_of, summed_up, told_users

_PROMISED: Final = (
    "pods could have it as something else before the boot, and may still come to it; "
    "waits for npufleet-dra-publisher to hand it over"
)


def next_step(order: VGPUOrder, intent: Intent, seen: CardSeen, *, restore: bool = True) -> Step | Verdict:
    """What to do now. `restore`: on release the card gets back what it had before npufleet."""
    if seen.obstacle is not None:
        if intent is Intent.RELEASE and seen.obstacle.reason is Reason.DEVICE_MISSING:
            return Verdict(DeviceState.RELEASED, Reason.RELEASED, seen.obstacle.message)
        return blocked(seen.obstacle)
    if intent is Intent.RELEASE:
        return next_step_of_release(seen, restore=restore)
    if intent is Intent.HOLD or not order.layout:
        return _as_it_is(order, seen)
    own = seen.failed.get(seen.address)
    # Without mixed sizes the profiles of one size still go on the card: those that had one get it back.
    if own is not None and own.reason is not Reason.MIXED_SIZES_FAILED:
        return Verdict(DeviceState.FAILED, own.reason, own.message, current(seen))
    return _functions(order, seen) or _Layout(order, seen).next()


def _as_it_is(order: VGPUOrder, seen: CardSeen) -> Verdict:
    """A card that is left as it is. One that carries its layout is ready all the same: that is how cards in use are
    adopted.
    """
    if order.layout:
        follows = _functions(order, seen) or _Layout(order, seen).next()
        if isinstance(follows, Verdict) and follows.state is DeviceState.READY:
            return follows
    return Verdict(DeviceState.PENDING, Reason.HELD, "the orders are to leave it as it is", current(seen))


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
    has_vgpu_functions = any(function.is_vgpu for function in seen.functions)
    if order.framework is not Framework.VENDOR_VFIO and seen.parents and not has_vgpu_functions:
        return next_mdev_step(order, seen)
    if seen.parents and not has_vgpu_functions:
        text = f"{seen.driver} makes mediated devices of the card, and VendorVFIO is ordered"
        return Verdict(DeviceState.BLOCKED, Reason.FRAMEWORK_MISSING, text, current(seen))
    if order.framework is Framework.MDEV and (seen.number > 0 or not seen.total):
        text = f"{seen.driver} makes no mediated devices of the card or of its virtual functions, and Mdev is ordered"
        return Verdict(DeviceState.BLOCKED, Reason.FRAMEWORK_MISSING, text, current(seen))
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
    if not has_vgpu_functions:
        text = (
            f"{seen.driver} makes no vGPUs of its virtual functions (there is no nvidia/current_vgpu_type): the host's "
            "vGPU mode is another one, or the driver is none for vGPUs"
        )
        return Verdict(DeviceState.BLOCKED, Reason.FRAMEWORK_MISSING, text)
    if seen.number < needed:
        return _too_few(seen, needed)
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
        self._in_the_way: set[str] = set()
        """Kept functions that have to move, or be without a type for a while, and cannot: nobody new is to get them."""
        self._missing = [p for p in self._by_size() for _ in range(self._wanted[p] - carried[p])]

    def next(self) -> Step | Verdict:
        fault = self._impossible()
        if fault is not None:
            return self._verdict(fault)
        answer = self._mode() if self._missing else None
        if answer is None:
            gives = (self._give(profile) for profile in dict.fromkeys(self._missing))
            answer = next((step for step in gives if step is not None), None)
        if answer is None or isinstance(answer, Verdict):
            return self._surplus() or answer or self._verdict(None)
        return answer

    def _keep(self) -> list[FunctionSeen]:
        """Functions that are as wanted already: those in use first, then those that had it before."""
        left, kept = Counter(self._wanted), []

        def rank(function: FunctionSeen) -> tuple[bool, bool, bool, str]:
            why = function.obstacle
            is_used = why is not None and why.reason is not Reason.PUBLISHED
            return not is_used, why is None, function.former != function.profile, function.address

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
            text = f"the driver has no {', '.join(unknown)}; it offers {some_of(names)}"
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
        seen, wanted = self._seen, self._is_mixed
        if seen.address in seen.failed or self._has_mode(wanted):
            return None
        if not seen.has_smi:
            if not wanted:
                return None
            text = "several frame buffer sizes on a card need its mixed-size mode, which nvidia-smi sets: there is none"
            return self._verdict(Obstacle(Reason.TOOL_MISSING, text))
        for function in self._typed:
            why = self._unclearable(function)
            if why is not None:
                text = f"the mixed-size mode changes while no function has a type: {function.address}: {why.message}"
                self._in_the_way |= {one.address for one in self._kept}
                return self._verdict(Obstacle(why.reason, text))
        if self._kept and FOR_MODE in seen.rearranged.done:
            text = "the mixed-size mode changes while no function has a type, and was tried so already"
            return self._verdict(Obstacle(Reason.MIXED_SIZES_FAILED, text))
        if self._typed:
            first = self._typed[0]
            return self._cleared(first, rearranges=FOR_MODE if first in self._kept else None)
        return MixSizes(wanted)

    def _has_mode(self, wanted: bool) -> bool:
        """Whether the card's mode does for the layout."""
        seen = self._seen
        carried = {seen.sizes.get(function.profile or "") for function in self._typed} - {None}
        if wanted:
            return seen.mixed is Switch.ON or len(carried) > 1
        if seen.mixed is not Switch.ON:
            return True
        # One size fits more often without the mode: then any place will do.
        return could_hold(seen.frame_buffer, self._sizes_of(self._wanted.elements()), mixed=True)

    def _sizes_of(self, profiles: Iterable[str | None]) -> list[int | None]:
        return [self._seen.sizes.get(profile or "") for profile in profiles]

    def _give(self, profile: str) -> Step | None:
        """How another function gets the profile: by its type, or by room made for it."""
        reserved = {function.address for function in self._untyped if function.former in self._missing}
        candidates = [function for function in self._untyped if self._untouchable(function) is None]

        def rank(function: FunctionSeen) -> tuple[bool, bool, str]:
            return function.former != profile, function.address in reserved, function.address

        candidates = [f for f in candidates if f.promised is None or profile in f.promised]
        for function in sorted(candidates, key=rank):
            type_id = function.creatable.get(profile)
            if type_id is not None:
                return SetType(function.address, type_id, profile)
        return self._make_room(profile, lacks_function=not candidates)

    def _make_room(self, profile: str, *, lacks_function: bool) -> ClearType | None:
        """Clear a function that is in the way of the profile, as far as that can help."""
        movable = [function for function in self._rest if self._unclearable(function) is None]
        stay = [function for function in self._rest if function not in movable]
        beside = self._sizes_of([*(f.profile for f in (*stay, *self._kept)), profile])
        mixed = self._has_mode(True)
        may_be_mixed = mixed or self._seen.mixed is Switch.UNKNOWN
        if not any(could_hold(self._seen.frame_buffer, beside, mixed=mode) for mode in {mixed, may_be_mixed}):
            return None
        if movable:
            # The biggest makes most room.
            return self._cleared(max(movable, key=self._size_of))
        if lacks_function or not mixed or profile in self._seen.rearranged.done:
            return None
        # Those of its own size begin where it could begin, and bigger ones lie at its places, too.
        size = self._seen.sizes.get(profile)
        again = [
            function
            for function in self._kept
            if function.profile != profile and (size is None or self._size_of(function) < size)
        ]
        free = [function for function in again if self._unclearable(function) is None]
        if not free:
            if not stay:
                self._in_the_way |= {function.address for function in again}
            return None
        return self._cleared(min(free, key=self._size_of), rearranges=profile)

    def _size_of(self, function: FunctionSeen) -> int:
        return self._seen.sizes.get(function.profile or "", 0)

    def _untouchable(self, function: FunctionSeen) -> Obstacle | None:
        """Why the function is not changed in this pass."""
        if function.address in self._seen.failed:
            return self._seen.failed[function.address]
        if function.obstacle is not None:
            return function.obstacle
        if function.fault is not None:
            return Obstacle(Reason.DEVICE_UNREADABLE, function.fault)
        if function.is_typed and function.profile is None:
            # It may be one of those that are wanted.
            return Obstacle(Reason.TYPE_UNKNOWN, f"its type {function.type_id} has no known name, and is left alone")
        return None

    def _unclearable(self, function: FunctionSeen) -> Obstacle | None:
        """Why the type of a function is not taken off it in this pass."""
        why = self._untouchable(function)
        return Obstacle(Reason.PUBLISHED, _PROMISED) if why is None and function.promised is not None else why

    @staticmethod
    def _cleared(function: FunctionSeen, *, rearranges: str | None = None) -> ClearType:
        return ClearType(function.address, function.profile or "", rearranges)

    def _surplus(self) -> ClearType | None:
        """A type beyond the layout that is not to stay."""
        if self._order.unassigned is Unassigned.LEAVE:
            return None
        return next((self._cleared(one) for one in self._rest if self._unclearable(one) is None), None)

    def _verdict(self, fault: Obstacle | None) -> Verdict:
        """Where each vGPU stands now."""
        standings = [self._as_wanted(function) for function in self._kept]
        standings += [self._beyond(function) for function in self._rest]
        standings += self._missing_ones(fault)
        told = {one.address for one in standings}
        standings += [
            report(function, DeviceState.FAILED, Reason.DEVICE_UNREADABLE, function.fault or "")
            for function in self._unread()
            if function.address not in told
        ]
        verdict = summed_up(standings, last=self._in_the_way)
        if fault is None:
            return verdict
        return Verdict(state_of(fault), fault.reason, fault.message, verdict.vgpus)

    def _unread(self) -> Iterable[FunctionSeen]:
        """Functions whose type is not known; of others a list that cannot be read costs nothing but itself."""
        return [f for f in self._seen.functions if f.is_vgpu and f.type_id is None]

    def _as_wanted(self, function: FunctionSeen) -> Standing:
        why = self._unclearable(function) if function.address in self._in_the_way else None
        if why is not None:
            text = f"others of the layout can have their places only once it has none: {why.message}"
            return report(function, state_of(why), why.reason, text)
        ours = self._seen.given.get(function.address) == function.profile
        return report(function, DeviceState.READY, Reason.TYPED if ours else Reason.ADOPTED)

    def _beyond(self, function: FunctionSeen) -> Standing:
        why = self._unclearable(function)
        if self._order.unassigned is Unassigned.LEAVE and (why is None or not self._missing):
            return report(function, DeviceState.READY, Reason.UNASSIGNED, "no layout asks for it")
        if why is None:
            return report(function, DeviceState.PENDING, Reason.TYPING, "it is to be cleared")
        return report(function, state_of(why), why.reason, why.message)

    def _missing_ones(self, fault: Obstacle | None) -> list[Standing]:
        """Each vGPU that is not there, at the function that would carry it."""

        def rank(function: FunctionSeen) -> tuple[bool, bool, bool, str]:
            has_failed, why = function.address in self._seen.failed, self._untouchable(function)
            return not has_failed, why is not None, function.promised is not None, function.address

        places = sorted(self._untyped, key=rank)
        found = []
        for number, profile in enumerate(self._missing):
            function = places[number] if number < len(places) else None
            address = function.address if function else self._seen.address
            why = fault or self._why_missing(profile, function)
            found.append(Standing(address, profile, state_of(why), why.reason, why.message))
        return found

    def _why_missing(self, profile: str, function: FunctionSeen | None) -> Obstacle:
        failed = self._seen.failed
        if function is not None and function.address in failed:
            return failed[function.address]
        if self._seen.address in failed:
            return failed[self._seen.address]
        own = self._untouchable(function) if function is not None else None
        if own is None and function is not None and function.promised is not None and profile not in function.promised:
            own = Obstacle(Reason.PUBLISHED, _PROMISED)
        if own is not None:
            return Obstacle(own.reason, f"the function that would carry {profile} is not changed: {own.message}")
        if not self._typed and not any(one.creatable for one in self._untyped):
            return Obstacle(Reason.LIST_EMPTY, "the driver offers no type on any function now, though none has one")
        in_the_way = [*self._rest, *(one for one in self._kept if one.address in self._in_the_way)]
        found = [(one, why) for one in in_the_way if (why := self._unclearable(one)) is not None]
        # What comes without anybody leaving is waited for first.
        for other, why in sorted(found, key=lambda pair: pair[1].reason is not Reason.PUBLISHED):
            there = other.profile or "a type"
            text = f"there is no room for {profile}: {other.address} has {there}: {why.message}"
            return Obstacle(why.reason, text)
        return Obstacle(Reason.NO_ROOM, f"no function of the card can become {profile} beside the others")
