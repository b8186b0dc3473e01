"""The next step of a card whose driver makes mediated devices: the same orders, by UUID. Pure.

A device's UUID follows from the card, the profile and a number, so that a virtual machine that was given one by its
UUID finds it again after a reboot.
"""

import uuid
from collections import Counter
from typing import Final

from crds.models.node_state import DeviceState
from crds.models.profile_map import MixedSizes, Unassigned
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import VGPUOrder
from profile_writer.card import CardSeen, CreateMdev, MdevSeen, Obstacle, RemoveMdev, Standing, Step, Verdict
from profile_writer.placing import could_hold
from profile_writer.standing import report_mdev, some_of, state_of, summed_up

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "vgpu.npufleet.io")


def mdev_uuid(identity: str, profile: str, number: int) -> str:
    """The UUID of the card's device of a profile by number, from 0."""
    return str(uuid.uuid5(_NAMESPACE, f"{identity}/{profile}/{number}"))


def next_mdev_step(order: VGPUOrder, seen: CardSeen) -> Step | Verdict:
    """What to do now on a card that has parents of mediated devices."""
    return _Devices(order, seen).next()


class _Devices:
    def __init__(self, order: VGPUOrder, seen: CardSeen) -> None:
        self._order = order
        self._seen = seen
        self._wanted: Counter[str] = Counter()
        for entry in order.layout:
            self._wanted[entry.profile] += entry.count
        self._names = seen.names.union(*(parent.directories for parent in seen.parents))
        self._own = {
            mdev_uuid(seen.identity, profile, number): profile
            for profile, count in self._wanted.items()
            for number in range(count)
        }
        self._kept = self._keep()
        self._rest = [mdev for mdev in seen.mdevs if mdev not in self._kept]
        carried = Counter(mdev.profile for mdev in self._kept)
        by_size = sorted(self._wanted, key=lambda profile: -seen.sizes.get(profile, 0))
        self._missing = [profile for profile in by_size for _ in range(self._wanted[profile] - carried[profile])]

    def next(self) -> Step | Verdict:
        fault = self._impossible()
        if fault is not None:
            return self._verdict(fault)
        for profile in dict.fromkeys(self._missing):
            step = self._create(profile) or self._make_room(profile)
            if step is not None:
                return step
        if self._order.unassigned is Unassigned.CLEAR:
            for mdev in self._rest:
                if self._untouchable(mdev) is None:
                    return RemoveMdev(mdev.parent, mdev.uuid, mdev.profile or "")
        return self._verdict(None)

    def _keep(self) -> list[MdevSeen]:
        """Devices that are as wanted already: those in use first, then those by the right UUID."""
        left, kept = Counter(self._wanted), []

        def rank(mdev: MdevSeen) -> tuple[bool, bool, str, str]:
            return mdev.obstacle is None, mdev.uuid not in self._own, mdev.parent, mdev.uuid

        for mdev in sorted(self._seen.mdevs, key=rank):
            if mdev.profile is not None and left[mdev.profile] > 0:
                left[mdev.profile] -= 1
                kept.append(mdev)
        return kept

    def _impossible(self) -> Obstacle | None:
        unknown = [profile for profile in self._wanted if profile not in self._names]
        if unknown and not self._names:
            return Obstacle(Reason.LIST_EMPTY, "the driver offers the card no type now")
        if unknown:
            text = f"the driver has no {', '.join(unknown)}; it offers {some_of(self._names)}"
            return Obstacle(Reason.PROFILE_UNKNOWN, text)
        sizes = [self._seen.sizes.get(profile) for profile in self._wanted.elements()]
        known = [size for size in sizes if size is not None]
        if len(set(known)) > 1 and self._order.mixed_sizes is MixedSizes.FORBID:
            text = "the layout has several frame buffer sizes, and its map says mixedSizes: Forbid"
            return Obstacle(Reason.MIXED_SIZES_FORBIDDEN, text)
        if self._seen.frame_buffer is not None and sum(known) > self._seen.frame_buffer:
            text = f"the layout needs {sum(known)} GB of {self._seen.frame_buffer} GB frame buffer"
            return Obstacle(Reason.NO_ROOM, text)
        return None

    def _create(self, profile: str) -> CreateMdev | None:
        there = {mdev.uuid for mdev in self._seen.mdevs}
        free = [
            one for one, of in self._own.items() if of == profile and one not in there and one not in self._seen.failed
        ]
        for parent in sorted(self._seen.parents, key=lambda one: one.address):
            if free and parent.obstacle is None and parent.available.get(profile, 0) > 0:
                return CreateMdev(parent.address, parent.directories[profile], free[0], profile)
        return None

    def _make_room(self, profile: str) -> RemoveMdev | None:
        """Remove a device that is in the way of the profile, as far as that can help."""
        if all(one in self._seen.failed for one, of in self._own.items() if of == profile):
            return None
        movable = [mdev for mdev in self._rest if self._untouchable(mdev) is None]
        stay = [mdev.profile for mdev in self._rest if mdev not in movable]
        beside = [self._seen.sizes.get(one or "") for one in (*stay, *(mdev.profile for mdev in self._kept), profile)]
        mixed = self._order.mixed_sizes is MixedSizes.ALLOW
        if not movable or not could_hold(self._seen.frame_buffer, beside, mixed=mixed):
            return None
        biggest = max(movable, key=lambda one: self._seen.sizes.get(one.profile or "", 0))
        return RemoveMdev(biggest.parent, biggest.uuid, biggest.profile or "")

    def _untouchable(self, mdev: MdevSeen) -> Obstacle | None:
        if mdev.uuid in self._seen.failed:
            return self._seen.failed[mdev.uuid]
        if mdev.obstacle is not None:
            return mdev.obstacle
        if mdev.profile is None:
            return Obstacle(Reason.TYPE_UNKNOWN, "its type has no known name, and is left alone")
        return None

    def _verdict(self, fault: Obstacle | None) -> Verdict:
        standings = [
            report_mdev(mdev, DeviceState.READY, Reason.TYPED if mdev.uuid in self._seen.given else Reason.ADOPTED)
            for mdev in self._kept
        ]
        standings += [self._beyond(mdev) for mdev in self._rest]
        there = {mdev.uuid for mdev in self._seen.mdevs}
        for profile in self._missing:
            why = fault or self._why_missing(profile)
            places = [one for one, of in self._own.items() if of == profile and one not in there]
            place = places[0] if places else None
            if place is not None:
                there.add(place)
            address = self._seen.parents[0].address
            standings.append(Standing(address, profile, state_of(why), why.reason, why.message, uuid=place))
        verdict = summed_up(standings)
        return verdict if fault is None else Verdict(state_of(fault), fault.reason, fault.message, verdict.vgpus)

    def _beyond(self, mdev: MdevSeen) -> Standing:
        why = self._untouchable(mdev)
        if self._order.unassigned is Unassigned.LEAVE and (why is None or not self._missing):
            return report_mdev(mdev, DeviceState.READY, Reason.UNASSIGNED, "no layout asks for it")
        if why is None:
            return report_mdev(mdev, DeviceState.PENDING, Reason.TYPING, "it is to be removed")
        return report_mdev(mdev, state_of(why), why.reason, why.message)

    def _why_missing(self, profile: str) -> Obstacle:
        for one, of in self._own.items():
            if of == profile and one in self._seen.failed:
                return self._seen.failed[one]
        for mdev in (*self._rest, *self._kept):
            why = self._untouchable(mdev)
            if why is not None:
                there = mdev.profile or "a device of a type without a known name"
                text = f"there is no room for {profile}: {mdev.parent} has {there}, {mdev.uuid}: {why.message}"
                return Obstacle(Reason.NO_ROOM if why.reason is Reason.IN_USE else why.reason, text)
        for parent in self._seen.parents:
            if parent.obstacle is not None:
                return Obstacle(parent.obstacle.reason, f"{parent.address}: {parent.obstacle.message}")
        return Obstacle(Reason.NO_ROOM, f"no function of the card makes another {profile} beside the others")
