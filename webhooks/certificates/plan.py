"""What has to happen next so that a trusted certificate is served at every moment: pure, from what is there now.

A new authority is trusted everywhere before anything is signed by it, and an old one stays trusted for a while after
nothing of it is served any more:

    new authority beside the old → both in every caBundle → (settle) → a leaf of the new → (overlap) → the old one goes
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from runtime.certificates import BACKDATED, Authority, Certificate, is_valid, new_authority, new_leaf
from webhooks.certificates.held import Held
from webhooks.certificates.serving_pair import ServingPair

AUTHORITY_NAME = "npufleet-webhook-ca"
LEAF_NAME = "npufleet-webhook"

# Certificates in a bundle: more than any orderly rotation makes.
_MOST_AUTHORITIES = 8


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """`settle`: how long a caBundle must have stood everywhere before anything of its newest authority is served.
    `overlap`: how long an old authority stays trusted once nothing of it is handed out.

    Raises ValueError when an authority would not outlive two leaves, which is what an orderly rotation takes.
    """

    authority: timedelta = timedelta(days=365)
    leaf: timedelta = timedelta(days=30)
    settle: timedelta = timedelta(minutes=1)
    overlap: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        if self.authority < 3 * self.leaf:
            raise ValueError("an authority has to live three times as long as a leaf, or longer")
        if self.leaf < 6 * (self.settle + self.overlap):
            raise ValueError("a leaf has to live six times as long as a change of authorities takes, or longer")


@dataclass(frozen=True, slots=True)
class Situation:
    """`held` is what the Secret says. `trusted_for`: since when every caBundle has contained the newest authority, None
    while one does not. `elsewhere`: authorities that caBundles contain at present. `hosts`: names to be served."""

    held: Held
    trusted_for: timedelta | None
    elsewhere: Collection[Certificate]
    hosts: frozenset[str]
    now: datetime
    lifetimes: Lifetimes = field(default_factory=Lifetimes)


def next_held(situation: Situation) -> tuple[Held, str] | None:
    """What the Secret should say next, and why; None when it is well as it is, or something has to come first."""
    held, now = situation.held, situation.now
    newest = held.newest
    if newest is None or not is_valid(newest.certificate, now):
        why = "there is no authority" if newest is None else "the authority has ended"
        return _begun_anew(situation), why
    if held.leaf is None or not held.leaf.is_valid(now):
        # Nothing can be served: waiting for trust would help nobody.
        return replace(held, leaf=_leaf(newest, situation)), "there is no valid certificate"
    if _is_due(newest, situation) and held.leaf_is_of_newest:
        added = new_authority(AUTHORITY_NAME, now=now, lifetime=situation.lifetimes.authority)
        return Held(_bundle((added.certificate, *held.authorities), now), added, held.leaf), "the authority ends soon"
    if not held.leaf_is_of_newest or _leaf_is_due(held.leaf, situation):
        if situation.trusted_for is None or situation.trusted_for < situation.lifetimes.settle:
            return None
        leaf = _leaf(newest, situation, beside=_wanted_by_others(held.leaf, situation))
        return replace(held, leaf=leaf), _why_leaf(held, situation)
    kept = _still_needed(held, situation)
    if kept != held.authorities:
        return replace(held, authorities=kept), "former authorities are not needed any more"
    return None


def _begun_anew(situation: Situation) -> Held:
    """A new authority; what was trusted until now stays so, for replicas that serve a certificate of it."""
    made = new_authority(AUTHORITY_NAME, now=situation.now, lifetime=situation.lifetimes.authority)
    former = _bundle((*situation.held.authorities, *situation.elsewhere), situation.now)
    return Held(_bundle((made.certificate, *former), situation.now), made, _leaf(made, situation))


def _wanted_by_others(leaf: ServingPair, situation: Situation) -> frozenset[str]:
    """Names of the present certificate that a replica with other names has asked for: two that take away each other's
    would never come to an end. One that nobody wants any more goes when the certificate ends soon."""
    return frozenset() if situation.hosts <= leaf.hosts else leaf.hosts


def _leaf(authority: Authority, situation: Situation, *, beside: frozenset[str] = frozenset()) -> ServingPair:
    pair = new_leaf(
        authority,
        LEAF_NAME,
        hosts=sorted(situation.hosts | beside),
        now=situation.now,
        lifetime=situation.lifetimes.leaf,
    )
    return ServingPair.of(pair)


def _is_due(authority: Authority, situation: Situation) -> bool:
    return authority.certificate.not_valid_after_utc - situation.now < 2 * situation.lifetimes.leaf


def _leaf_is_due(leaf: ServingPair, situation: Situation) -> bool:
    return leaf.ends - situation.now < situation.lifetimes.leaf / 3 or not situation.hosts <= leaf.hosts


def _why_leaf(held: Held, situation: Situation) -> str:
    if not held.leaf_is_of_newest:
        return "the new authority is trusted everywhere"
    assert held.leaf is not None
    if not situation.hosts <= held.leaf.hosts:
        return "the certificate lacks a name"
    return "the certificate ends soon"


def _still_needed(held: Held, situation: Situation) -> tuple[Certificate, ...]:
    assert held.leaf is not None
    age = situation.now - (held.leaf.leaf.not_valid_before_utc + BACKDATED)
    first, *former = held.authorities
    if age >= situation.lifetimes.overlap:
        return (first,)
    return (first, *(one for one in former if is_valid(one, situation.now)))


def _bundle(authorities: Iterable[Certificate], now: datetime) -> tuple[Certificate, ...]:
    """Without twins and without what has ended."""
    return tuple(dict.fromkeys(one for one in authorities if is_valid(one, now)))[:_MOST_AUTHORITIES]
