"""From the orders in force to the target: what disrupts nothing, what needs room in limits, and what cannot be yet.

A device in use is not ordered to change unless its policy lets its users be evicted: until then it keeps the order that
it fulfils, or gets the new one to be held, which moves nothing. Where the device happens to be so already, the host
says so, and the order is then given without anybody being disturbed: that is how devices in use are adopted, and how a
revert heals without a drain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from controllers.node_policy.plan.compile import MAX_LIMITS
from controllers.node_policy.plan.orders import ORPHANS, Identity, Order, Orders, RolloutLimits, address_key, orders_of
from controllers.node_policy.plan.users import Usage, Users
from controllers.node_policy.plan.view import BlockerReason
from crds.models.node_state import Intent
from crds.models.rollout import Drain

_RESTS: Final = "it was taken into use as soon as it was ordered to change: it is ordered again later"
_HOST: Final = "no eviction moves a process of the host: it goes on when that ends"


@dataclass(frozen=True, slots=True)
class Deferral:
    """Why the change of one device is not ordered, and of which policy it is."""

    policy: str
    reason: BlockerReason
    message: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A drain for the present target that was given up a short time ago. `unseen`: devices without visible users."""

    reason: BlockerReason
    message: str
    unseen: frozenset[str]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the devices of a node stand when its orders change.

    `done`: the order in force is carried out. `open`: it is not, as the host says itself. `away`: it counts against the
    limits of its policy. `untouched`: the device is as npufleet found it. `waits`: the order in force waits for these
    users. `resting`: such an order was taken back a short time ago.
    """

    usage: Usage
    done: frozenset[str]
    open: frozenset[str]
    away: frozenset[str]
    untouched: frozenset[str]
    waits: Mapping[str, Users]
    given_up: GivenUp | None = None
    resting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Changes:
    """From the orders in force to the target.

    `steady` is as far as one can go without disrupting anything; `goal` as far as one can go at present. `charged` are
    the policies that decide or decided a device whose change disrupts: each must have room in its limits.
    `deferred`: changes that neither of the two contains, by address. `retreats`: orders in force that `steady` takes
    back, since the devices are in use.
    """

    steady: Orders
    goal: Orders
    charged: frozenset[str] = frozenset()
    disrupted: tuple[str, ...] = ()
    deferred: Mapping[str, Deferral] = field(default_factory=dict)
    retreats: frozenset[str] = frozenset()


def changes_between(present: Orders, target: Orders, standing: Standing) -> Changes:
    """What of the way from `present` to `target` disrupts, for whom, and what must wait."""
    before, after = present.by_address(), target.by_address()
    limits = {limit.policy: limit for limit in target.limits}
    steady: dict[str, Order] = {}
    goal: dict[str, Order] = {}
    charged: set[str] = set()
    disrupted: list[str] = []
    deferred: dict[str, Deferral] = {}
    retreats: set[str] = set()
    for address in sorted(before.keys() | after.keys(), key=address_key):
        old, new = before.get(address), after.get(address)
        done = address in standing.done
        disruptive = disrupts(old, new, done=done) or _passes_on(old, new, address in standing.away)
        if new is not None and (disruptive or address in standing.waits):
            why = _deferral(new, limits.get(new.policy, RolloutLimits(new.policy)), disruptive, standing)
            if why is not None:
                kept = _kept(old, new, standing.open)
                deferred[address] = why
                _put(steady, kept)
                _put(goal, kept)
                if address in standing.waits and why.reason is BlockerReason.IN_USE and _takes_back(old, kept):
                    retreats.add(address)
                continue
        _put(goal, new)
        if not disruptive:
            _put(steady, new)
            continue
        disrupted.append(address)
        charged.update(order.policy for order in (old, new) if order is not None)
        _put(steady, _until_there_is_room(old, new, standing.open))
    if not disrupted and not deferred:
        target = _same_if_equal(present, target)
        return Changes(target, target)
    known = {limit.policy: limit for limit in (*present.limits, *target.limits)}
    return Changes(
        _same_if_equal(present, _orders(steady, known, target)),
        _same_if_equal(present, _orders(goal, known, target)),
        frozenset(charged),
        tuple(disrupted),
        deferred,
        frozenset(retreats),
    )


def disrupts(old: Order | None, new: Order | None, *, done: bool) -> bool:
    """Whether a device may be moved by the step from one order to the next. `done`: the old one is carried out."""
    if old is None:
        return new is not None and new.intent is not Intent.HOLD
    if new is None:
        return old.intent is not Intent.RELEASE
    if new.intent is Intent.HOLD and old.intent is not Intent.APPLY:
        return False
    if Intent.RELEASE in (old.intent, new.intent):
        return new.intent is not old.intent
    another = old.shape != new.shape or _another(old.identity, new.identity)
    return another or (old.intent is Intent.HOLD and not done)


def _passes_on(old: Order | None, new: Order | None, away: bool) -> bool:
    """A device that is away gets under the limits of another policy, which must have room for it."""
    return away and old is not None and new is not None and new.intent is not Intent.HOLD and old.policy != new.policy


def _another(old: Identity, new: Identity) -> bool:
    if (old.vendor, old.device) != (new.vendor, new.device):
        return True
    return old.serial is not None and new.serial is not None and old.serial != new.serial


def _deferral(new: Order, limits: RolloutLimits, disruptive: bool, standing: Standing) -> Deferral | None:
    """Why the order must not be given now, or must not go on; None: it may."""
    address = new.address
    if new.intent is Intent.HOLD or (new.intent is Intent.RELEASE and address in standing.untouched):
        return None  # moves nothing
    users = standing.usage.of(address, new.applied_shape)
    if not users and not disruptive:
        users = standing.waits[address]
    given_up = standing.given_up
    if not users:
        if disruptive and address in standing.resting:
            return Deferral(new.policy, BlockerReason.IN_USE, _RESTS)
        waited = given_up is not None and (not disruptive or address in given_up.unseen)
        return Deferral(new.policy, given_up.reason, given_up.message) if given_up is not None and waited else None
    text = users.describe()
    if users.others:
        return Deferral(new.policy, BlockerReason.IN_USE, f"{text}; {_HOST}")
    if limits.drain is not Drain.IF_IN_USE:
        advice = "it goes on when the user ends, or with rollout.drain: IfInUse"
        return Deferral(new.policy, BlockerReason.IN_USE, f"{text}; {advice}")
    if given_up is not None:
        return Deferral(new.policy, given_up.reason, f"{text}; {given_up.message}")
    return None


def _kept(old: Order | None, new: Order, open_: frozenset[str]) -> Order | None:
    """The order of a device that must not change now: the one that it fulfils, else the new one, to be held.

    Whether it fulfils an order is the host's to say, and as long as it has not, it does.

    Nobody's order is never held: what it is about is told by the host as long as it is not given back.
    """
    if old is not None and old.address not in open_ and old.intent is not Intent.RELEASE:
        return old
    return None if new.policy == ORPHANS else new.held()


def _takes_back(old: Order | None, kept: Order | None) -> bool:
    return old is not None and old.intent is not Intent.HOLD and kept is not None and kept.intent is Intent.HOLD


def _until_there_is_room(old: Order | None, new: Order | None, open_: frozenset[str]) -> Order | None:
    """The order in force; one that is held, and not fulfilled, may as well be the new one, to be held."""
    held_open = old is not None and old.intent is Intent.HOLD and old.address in open_
    return new.held() if held_open and new is not None and new.intent is Intent.APPLY else old


def _same_if_equal(present: Orders, wanted: Orders) -> Orders:
    """The very orders in force where nothing changes: that is asked in every plan, and is cheap then."""
    return present if wanted == present else wanted


def _put(orders: dict[str, Order], order: Order | None) -> None:
    if order is not None:
        orders[order.address] = order


def _orders(devices: Mapping[str, Order], known: Mapping[str, RolloutLimits], target: Orders) -> Orders:
    """With the limits of the policies that are named, and of those of whose removal something has to be remembered."""
    wanted = {order.policy for order in devices.values()}
    wanted |= {limit.policy for limit in target.limits if limit.removal is not None}
    return orders_of(devices.values(), [known[name] for name in sorted(wanted & known.keys())][:MAX_LIMITS])
