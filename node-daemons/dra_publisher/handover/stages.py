"""How far each device is on its way from one shape to the next, and what is to be done about it now. Pure.

The way: published → withheld → nobody has it → token → changed by whoever changes devices → tokens away → published.
Nothing of it is remembered: where a device stands is read from the slices, the host and the claims each time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from crds.device_names import NamedKind
from crds.models.node_state import DesiredDevice, Intent
from dra_publisher.handover.situation import Offered, Situation
from dra_publisher.offers.offer import TaintKey
from node_host.handover.entry import entry_digest
from node_host.handover.tokens import Token


class Stage(StrEnum):
    """What is done with a device in this look."""

    ABSENT = "Absent"
    """Not published, and nothing to do about it."""
    KEPT = "Kept"
    """Published, and left as it is."""
    PUBLISHING = "Publishing"
    """Is to be published in the shape that it has now, once it has been looked at under its locks."""
    RENAMING = "Renaming"
    """The same, but somebody may have it under the name that it had before: first nobody may."""
    WITHHELD = "Withheld"
    """Published, but not to anybody new."""
    HANDING_OVER = "HandingOver"
    """Withheld; once nobody has it a token is written."""
    LEAVING = "Leaving"
    """Out of the slices; forgotten once nobody has it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A stage and what goes with it.

    ``kind`` and ``driver`` are as what it is, or is to be, in the slices (None: it is in none). ``taint`` is why nobody
    new gets it. ``token`` is the digest of the order that it is handed over for, ``has_token`` whether that is there.
    """

    stage: Stage
    kind: NamedKind | None = None
    driver: str = ""
    taint: TaintKey | None = None
    token: str = ""
    has_token: bool = False
    entry: DesiredDevice | None = None


def judge(situation: Situation, addresses: Iterable[str]) -> dict[str, Verdict]:
    """The verdict on each of the devices."""
    return {address: _judge(situation, address) for address in sorted(addresses)}


def _judge(situation: Situation, address: str) -> Verdict:
    entry = situation.responsible(address)
    if entry is None:
        return _without_order(situation, address)
    if entry.intent is Intent.HOLD:
        return _held(situation, address, entry)
    if not situation.is_disturbed(address):
        return _as_ordered(situation, address, entry)
    if situation.in_trust(address):
        return _handing_over(situation, address, entry)
    return Verdict(Stage.ABSENT, entry=entry)


def _without_order(situation: Situation, address: str) -> Verdict:
    """Absence is no order: what pods may have stays as it is, unless absence lasts."""
    offered = situation.offered.get(address)
    if offered is None or address in situation.unordered or situation.view.is_gone(address):
        return _leaving(situation, address, None)
    return _left_as_it_is(situation, address, offered, None)


def _held(situation: Situation, address: str, entry: DesiredDevice) -> Verdict:
    offered, kind = situation.offered.get(address), situation.wanted(address)
    if situation.view.is_gone(address):
        return _leaving(situation, address, entry)
    if offered is not None and (offered.kind, offered.driver) != (kind, entry.driver_name):
        return _left_as_it_is(situation, address, offered, entry)
    if kind is not None and situation.actual(address) is kind and situation.is_ready(entry):
        return _published(situation, address, kind, entry)
    if offered is not None:
        return _left_as_it_is(situation, address, offered, entry)
    return Verdict(Stage.ABSENT, entry=entry)


def _left_as_it_is(situation: Situation, address: str, offered: Offered, entry: DesiredDevice | None) -> Verdict:
    """Nothing is handed over; what was withheld and has not changed is published again."""
    if situation.actual(address) is not offered.kind:
        return _in_place(Stage.WITHHELD, offered, _change_of(situation, address, offered), entry)
    if offered.withheld and situation.mates_move(address):
        return _in_place(Stage.WITHHELD, offered, TaintKey.HANDOVER, entry)
    is_settled = not offered.withheld and not situation.refused(address) and situation.listed(address)
    return _in_place(Stage.KEPT if is_settled else Stage.PUBLISHING, offered, None, entry)


def _handing_over(situation: Situation, address: str, entry: DesiredDevice) -> Verdict:
    offered, digest = situation.offered.get(address), entry_digest(entry)
    if situation.view.is_gone(address):
        return _leaving(situation, address, entry)
    if not situation.listed(address):
        offered = None  # what pods could have before the reboot is in no slice of this boot
    return Verdict(
        Stage.HANDING_OVER,
        kind=offered.kind if offered else None,
        driver=offered.driver if offered else "",
        taint=_change_of(situation, address, offered) if offered else None,
        token=digest,
        has_token=_is_handed_over(situation, address, digest),
        entry=entry,
    )


def _as_ordered(situation: Situation, address: str, entry: DesiredDevice) -> Verdict:
    offered, kind = situation.offered.get(address), situation.wanted(address)
    if kind is None or situation.view.is_gone(address):
        return _leaving(situation, address, entry)
    fits = situation.actual(address) is kind
    if fits and situation.is_done(address, entry):
        return _published(situation, address, kind, entry)
    if offered is None or not situation.listed(address):
        return Verdict(Stage.ABSENT, entry=entry)
    if offered.kind is not situation.actual(address):
        return _in_place(Stage.WITHHELD, offered, _change_of(situation, address, offered), entry)
    if offered.withheld or situation.is_stuck(entry):
        return _in_place(Stage.WITHHELD, offered, TaintKey.NOT_READY, entry)
    return _in_place(Stage.KEPT, offered, None, entry)


def _published(situation: Situation, address: str, kind: NamedKind, entry: DesiredDevice) -> Verdict:
    """It is as its order says: in the slices under the name that the order gives, unless somebody has it by another."""
    offered, driver = situation.offered.get(address), entry.driver_name
    refused = situation.refused(address)
    same = offered is not None and (offered.kind, offered.driver) == (kind, driver)
    if same and offered is not None and not offered.withheld and not refused and situation.listed(address):
        return Verdict(Stage.KEPT, kind, driver, entry=entry)
    if same or _fits(situation, address, entry_digest(entry)):
        return Verdict(Stage.PUBLISHING, kind, driver, entry=entry)
    before = situation.remembered.get(address)
    is_as_before = before is None or before in situation.shape_now(address, entry)
    # The slices may have lost it, as when the kubelet starts, while a claim has it under the name of before.
    if offered is None and is_as_before and not situation.has_other_name(address, kind, driver):
        return Verdict(Stage.PUBLISHING, kind, driver, entry=entry)
    # Nobody handed it over: it is in another shape, or under another name, than somebody may have it in.
    return Verdict(Stage.RENAMING, kind, driver, TaintKey.HANDOVER, entry=entry)


def _leaving(situation: Situation, address: str, entry: DesiredDevice | None) -> Verdict:
    is_known = situation.listed(address) or address in situation.remembered or address in situation.offered
    return Verdict(Stage.LEAVING if is_known else Stage.ABSENT, entry=entry)


def _in_place(stage: Stage, offered: Offered, taint: TaintKey | None, entry: DesiredDevice | None) -> Verdict:
    return Verdict(stage, offered.kind, offered.driver, taint, entry=entry)


def _change_of(situation: Situation, address: str, offered: Offered) -> TaintKey:
    """Ordered, or done by somebody else."""
    is_ordered = situation.wanted(address) is not offered.kind
    return TaintKey.HANDOVER if is_ordered or situation.actual(address) is offered.kind else TaintKey.DRIVER_CHANGED


def _fits(situation: Situation, address: str, digest: str) -> bool:
    """Whether a token for the order is there, offered or taken."""
    tokens = situation.view.tokens
    return any(_is_for(situation, of.get(address), digest) for of in (tokens.taken, tokens.offered))


def _is_handed_over(situation: Situation, address: str, digest: str) -> bool:
    """The same, and none that was taken for other orders, which would have to go."""
    tokens = situation.view.tokens
    if address in tokens.taken:
        return _is_for(situation, tokens.taken[address], digest)
    return address not in tokens.faults and _is_for(situation, tokens.offered.get(address), digest)


def _is_for(situation: Situation, token: Token | None, digest: str) -> bool:
    return token is not None and (token.boot_id, token.entry) == (situation.view.boot_id, digest)
