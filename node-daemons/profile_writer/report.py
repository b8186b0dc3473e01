"""The writer's subtree of NPUNodeState.status. Pure.

Nothing in it moves by itself, so an unchanged host gives an equal status and no write.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from crds.models.conditions import Condition, condition, merge_conditions
from crds.models.node_state import DesiredDevice, DeviceState, Profiles
from crds.models.profiling import ProfilesConditionReason as ConditionReason
from crds.models.vgpu_state import MAX_OFFERED, MAX_VGPUS, ProfiledCard, VGPUInstance
from profile_writer.card import Standing, Verdict

_SHOWN: Final = 8
_TEXT: Final = 1024
_PROFILE_WORDS: Final = 63


class ConditionType(StrEnum):
    """Conditions of the writer's subtree."""

    READY = "Ready"
    RECORD_INTACT = "RecordIntact"


class RecordReason(StrEnum):
    """Stable reasons of RecordIntact."""

    RECORD_READ = "RecordRead"
    RECORD_UNREADABLE = "RecordUnreadable"


def card_report(
    entry: DesiredDevice, verdict: Verdict, *, offered: Iterable[str] = (), release: str = ""
) -> ProfiledCard:
    """One card."""
    return ProfiledCard.model_validate(
        {
            "address": entry.address,
            "state": verdict.state,
            "reason": str(verdict.reason),
            "message": _text(verdict.message),
            "vgpus": tuple(_instance(one) for one in verdict.vgpus[:MAX_VGPUS]),
            "offered": tuple(name for name in sorted(offered) if len(name) <= _PROFILE_WORDS)[:MAX_OFFERED],
        }
        | ({"driver_release": release} if release else {})
    )


def profiles(
    cards: Sequence[ProfiledCard],
    *,
    boot_id: str,
    generation: int,
    now: str,
    held: str | None,
    record_problem: str | None,
    former: Profiles | None,
) -> Profiles:
    """How far the orders are met."""
    conditions = (_ready(cards, held, generation, now), _record(record_problem, generation, now))
    return Profiles(
        observed_generation=generation,
        boot_id=boot_id,
        devices=tuple(sorted(cards, key=lambda card: card.address)),
        conditions=merge_conditions(former.conditions if former else (), conditions),
    )


def _instance(standing: Standing) -> VGPUInstance:
    facts = {"profile": standing.profile} if standing.profile and len(standing.profile) <= _PROFILE_WORDS else {}
    facts |= {"uuid": standing.uuid} if standing.uuid else {}
    return VGPUInstance.model_validate(
        {
            "address": standing.address,
            "state": standing.state,
            "reason": str(standing.reason),
            "message": _text(standing.message),
            "users": tuple(dict.fromkeys(user[:253] for user in standing.users))[:4],
        }
        | facts
    )


def _ready(cards: Sequence[ProfiledCard], held: str | None, generation: int, now: str) -> Condition:
    def ready(status: bool | None, reason: ConditionReason, message: str = "") -> Condition:
        return condition(ConditionType.READY, status, reason, message, now=now, observed_generation=generation)

    if held is not None:
        return ready(None, ConditionReason.ORDERS_HELD, held)
    for state, reason in (
        (DeviceState.FAILED, ConditionReason.CARDS_FAILED),
        (DeviceState.BLOCKED, ConditionReason.CARDS_BLOCKED),
        (DeviceState.PENDING, ConditionReason.CARDS_PENDING),
    ):
        found = [card for card in cards if card.state is state]
        if found:
            return ready(False, reason, _some(found))
    return ready(True, ConditionReason.ALL_CARDS_TYPED if cards else ConditionReason.NOTHING_ORDERED)


def _record(problem: str | None, generation: int, now: str) -> Condition:
    reason = RecordReason.RECORD_READ if problem is None else RecordReason.RECORD_UNREADABLE
    return condition(
        ConditionType.RECORD_INTACT, problem is None, reason, problem or "", now=now, observed_generation=generation
    )


def _some(cards: Sequence[ProfiledCard]) -> str:
    lines = [f"{card.address}: {card.reason}{f' ({card.message})' if card.message else ''}" for card in cards]
    more = f"\nand {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return _text("\n".join(lines[:_SHOWN]) + more)


def _text(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
