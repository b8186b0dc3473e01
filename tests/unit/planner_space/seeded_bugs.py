"""Bugs put into the planner on purpose, to see that the exploration finds them. Each is one thought gone wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from crds.models.node_state import VetoReason
from node_host.acting.actions import Bind, Remember, Return
from node_host.acting.journal import JournalEntry
from node_host.view import HostView, Obstacle
from tests.unit.planner_space.states import OTHER
from vfio_binder import decisions, group_plan
from vfio_binder import plan as planner
from vfio_binder.decisions import Decision
from vfio_binder.situation import Situation, Want

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class SeededBug:
    """``found_as`` is a part of what the exploration says; ``each_plan`` is off where only the end may give it away."""

    name: str
    sow: Callable[[Patch], None]
    found_as: str
    each_plan: bool = True
    failures: bool = False

    def __str__(self) -> str:
        return self.name


def _ignores_use(patch: Patch) -> None:
    patch.setattr(HostView, "in_use", lambda self, address: None)


def _forgets_the_neighbour_s_veto(patch: Patch) -> None:
    real = HostView.untouchable

    def own_only(self: HostView, address: str) -> Obstacle | None:
        own = {
            name: found
            for name, vetoes in self.vetoes.items()
            if (found := tuple(veto for veto in vetoes if veto.reason is not VetoReason.GROUP_MEMBER))
        }
        return real(replace(self, vetoes=own), address)

    patch.setattr(HostView, "untouchable", own_only)


def _returns_to_another_driver(patch: Patch) -> None:
    def wrong(address: str, seen: str | None, entry: JournalEntry) -> Return:
        return Return(address, seen, replace(entry, former_driver=OTHER))

    patch.setattr(decisions, "Return", wrong)


def _takes_companions_that_are_refused(patch: Patch) -> None:
    patch.setattr(Situation, "binds_companions", lambda self, address: True)


def _binds_what_is_placed(patch: Patch) -> None:
    patch.setattr(Situation, "is_placed", lambda self, address: False)


def _trusts_the_journal_of_another_boot(patch: Patch) -> None:
    real = Situation.ours

    def any_boot(self: Situation, address: str) -> JournalEntry | None:
        entry = self.journal.entries.get(address)
        return real(self, address) if entry is None else replace(entry, boot_id=self.view.boot_id)

    patch.setattr(Situation, "ours", any_boot)


def _acts_on_what_is_held(patch: Patch) -> None:
    real = Situation.want

    def eager(self: Situation, address: str) -> Want:
        wanted = real(self, address)
        return Want.VFIO if wanted is Want.HOLD and self.entries[address].mode == "Passthrough" else wanted

    patch.setattr(Situation, "want", eager)


def _takes_absence_for_an_order(patch: Patch) -> None:
    def give_back(situation: Situation, address: str) -> Decision:
        entry = situation.ours(address)
        device = situation.view.devices.get(address)
        if entry is None or device is None:
            return Decision()
        return Decision(action=Return(address, device.driver, entry))

    patch.setattr(decisions, "_unordered", give_back)


def _forgets_too_soon(patch: Patch) -> None:
    patch.setattr(decisions, "returned_already", lambda device, entry: True)


def _sends_companions_home_too_soon(patch: Patch) -> None:
    patch.setattr(Situation, "needers", lambda self, address: ())


def _binds_half_a_group(patch: Patch) -> None:
    real = group_plan.decide_group

    def halves(situation: Situation, members: tuple[str, ...]) -> dict[str, Decision]:
        # Each member as if it were alone in its group.
        found: dict[str, Decision] = {}
        for address in members:
            if situation.want(address) is Want.VFIO:
                found |= real(situation, (address,))
        return found

    patch.setattr(planner, "decide_group", halves)


def _remembers_where_it_took_it_from_now(patch: Patch) -> None:
    def anew(self: Situation, address: str, companion_of: tuple[str, ...] = ()) -> JournalEntry:
        device = self.view.devices[address]
        return JournalEntry(device.driver or "", "", self.view.boot_id, device.identity, None, companion_of)

    patch.setattr(Situation, "new_entry", anew)


def _tries_again_at_once(patch: Patch) -> None:
    real = planner.plan

    def forgetful(*arguments: Any, attempts: Mapping[str, Any], **more: Any) -> planner.Plan:
        return real(*arguments, **more)

    patch.setattr(planner, "plan", forgetful)


def _loses_a_report(patch: Patch) -> None:
    real = planner.plan

    def short(*arguments: Any, **more: Any) -> planner.Plan:
        made = real(*arguments, **more)
        return replace(made, reports=made.reports[:1])

    patch.setattr(planner, "plan", short)


def _does_things_in_the_order_of_arrival(patch: Patch) -> None:
    real = planner.plan

    def arriving(desired: Any, view: HostView, *arguments: Any, **more: Any) -> planner.Plan:
        made = real(desired, view, *arguments, **more)
        places = {address: place for place, address in enumerate(view.devices)}
        groups = sorted(made.groups, key=lambda group: places[group.actions[0].address])
        return replace(made, groups=tuple(groups))

    patch.setattr(planner, "plan", arriving)


def _writes_the_same_note_again(patch: Patch) -> None:
    real = decisions._release

    def again(situation: Situation, address: str) -> Decision:
        made, entry = real(situation, address), situation.ours(address)
        note = made.note or (Remember(address, entry) if entry is not None and made.action is None else None)
        return replace(made, note=note)

    patch.setattr(decisions, "_release", again)


def _does_not_see_the_end(patch: Patch) -> None:
    real = planner.plan

    def idle(*arguments: Any, **more: Any) -> planner.Plan:
        made = real(*arguments, **more)
        groups = tuple(group for group in made.groups if not any(isinstance(action, Bind) for action in group.actions))
        return replace(made, groups=groups)

    patch.setattr(planner, "plan", idle)


_UNTOUCHABLE: Final = "an action on a device that is used, needed"

SEEDED_BUGS: Final = (
    SeededBug("ignores that a device is in use", _ignores_use, _UNTOUCHABLE),
    SeededBug("forgets the veto of a neighbour", _forgets_the_neighbour_s_veto, _UNTOUCHABLE),
    SeededBug("returns to another driver", _returns_to_another_driver, "a return to something else"),
    SeededBug("takes companions that are refused", _takes_companions_that_are_refused, "takes companions along"),
    SeededBug("binds what is in its place", _binds_what_is_placed, "in its place"),
    SeededBug("binds and binds again", _binds_what_is_placed, "a plan that changes nothing", each_plan=False),
    SeededBug(
        "trusts the journal of another boot",
        _trusts_the_journal_of_another_boot,
        "a return of a device that is not ours",
    ),
    SeededBug("acts on what is held", _acts_on_what_is_held, "held"),
    SeededBug("takes absence for an order", _takes_absence_for_an_order, "a return that nobody ordered"),
    SeededBug("forgets too soon", _forgets_too_soon, "on the driver that we gave it is forgotten"),
    SeededBug("sends companions home too soon", _sends_companions_home_too_soon, "taken away from those"),
    SeededBug(
        "sends companions home and fetches them again",
        _sends_companions_home_too_soon,
        "does not come to rest",
        each_plan=False,
    ),
    SeededBug("binds half a group", _binds_half_a_group, "would not give the group to a VM"),
    SeededBug("remembers the wrong former driver", _remembers_where_it_took_it_from_now, "before us is lost"),
    SeededBug("tries again at once", _tries_again_at_once, "has to wait", failures=True),
    SeededBug("loses a report", _loses_a_report, "has no report"),
    SeededBug("acts in the order of arrival", _does_things_in_the_order_of_arrival, "the order in which things come"),
    SeededBug("writes the same note again", _writes_the_same_note_again, "a note that changes nothing"),
    SeededBug("never rests on a note", _writes_the_same_note_again, "a plan that changes nothing", each_plan=False),
    SeededBug("leaves undone what could be done", _does_not_see_the_end, "nothing keeps the device from its place"),
)
