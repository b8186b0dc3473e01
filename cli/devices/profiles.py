"""vGPU cards as `npufleet devices profiles` shows them, and which profiles of maps a driver does not know. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from crds.models.profile_map import VGPUProfileMap
from crds.near_matches import near_matches
from node_host.vgpu.types import profile_of

_NUMBERED: Final = re.compile(r"^\s*[0-9]+\s*:\s*(\S.*?)\s*$")
_HEADING: Final = re.compile(r"^\s*ID\s*:\s*vGPU", re.IGNORECASE)


class NamesError(ValueError):
    """A file has no names of profiles; the text says why."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A vGPU, or a function that should be one; `profile` is "" where its type has no known name."""

    address: str
    profile: str
    state: str = ""
    users: tuple[str, ...] = ()
    uuid: str = ""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"address": self.address, "profile": self.profile, "state": self.state}
        return found | {"users": list(self.users)} | ({"uuid": self.uuid} if self.uuid else {})


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A card; `node` is "" of a host that does not know its name."""

    node: str
    address: str
    release: str
    offered: tuple[str, ...]
    carried: tuple[Carried, ...]
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "address": self.address,
            "driverRelease": self.release,
            "offered": list(self.offered),
            "vgpus": [one.to_json() for one in self.carried],
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class UnknownProfile:
    """A profile of a map that is not among the names; `near` are those that look like it."""

    map: str
    path: str
    profile: str
    near: tuple[str, ...]

    def __str__(self) -> str:
        asked = f"; the nearest: {', '.join(self.near)}" if self.near else "; nothing there looks like it"
        return f"VGPUProfileMap/{self.map}: {self.path}: {self.profile} is not offered{asked}"

    def to_json(self) -> dict[str, Any]:
        return {"map": self.map, "path": self.path, "profile": self.profile, "nearest": list(self.near)}


def rows_of_state(state: Mapping[str, Any]) -> list[ProfileRow]:
    """The cards that the profile writer of a node reports; `state` is an NPUNodeState as the server has it."""
    told = ((state.get("status") or {}).get("profiles") or {}).get("devices") or ()
    node = str(state["metadata"]["name"])
    return [
        ProfileRow(
            node,
            str(card.get("address", "")),
            str(card.get("driverRelease") or ""),
            tuple(card.get("offered") or ()),
            tuple(
                Carried(
                    str(one.get("address", "")),
                    str(one.get("profile") or ""),
                    str(one.get("state", "")),
                    tuple(one.get("users") or ()),
                    str(one.get("uuid") or ""),
                )
                for one in card.get("vgpus") or ()
            ),
            "" if card.get("state") == "Ready" else f"{card.get('reason', '')}: {card.get('message', '')}".strip(": "),
        )
        for card in told
    ]


def parse_names(text: str) -> frozenset[str]:
    """Names of profiles without the vendor's word: of a saved creatable_vgpu_types, of a list with a name a line, or of
    this command's own JSON. Raises NamesError."""
    if text.lstrip().startswith(("{", "[")):
        names = frozenset(map(profile_of, _of_json(text)))
    else:
        names = frozenset(map(profile_of, _of_lines(text)))
    if not names:
        raise NamesError("there is no name of a profile: a full card shows none, and so proves nothing")
    return names


def _of_json(text: str) -> Iterator[str]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NamesError(f"it is no JSON: {error}") from error
    cards = content.get("cards") if isinstance(content, dict) else content
    if not isinstance(cards, list):
        raise NamesError("it is not what `npufleet devices profiles --output json` writes: there is no list of cards")
    for card in cards:
        offered = card.get("offered") if isinstance(card, dict) else [card]
        if not isinstance(offered, list) or not all(isinstance(name, str) for name in offered):
            raise NamesError("a card's `offered` is no list of names")
        yield from offered


def _of_lines(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    is_numbered = any(_NUMBERED.match(line) for line in lines)
    for line in lines:
        if _HEADING.match(line):
            continue
        numbered = _NUMBERED.match(line)
        if is_numbered and numbered is None:
            raise NamesError(f"{line.strip()[:80]!r} is no line of a list of types")
        yield numbered[1] if numbered else line.strip()


def unknown_profiles(maps: Iterable[VGPUProfileMap], names: frozenset[str]) -> list[UnknownProfile]:
    """What the maps ask for and the names do not have, in the order of maps and layouts."""
    known: Sequence[str] = sorted(names)
    return [
        UnknownProfile(
            one.metadata.name or "",
            f"spec.gpus[{place}].layout[{index}].profile",
            item.profile,
            tuple(near_matches(item.profile, known)),
        )
        for one in maps
        for place, entry in enumerate(one.spec.gpus)
        for index, item in enumerate(entry.layout)
        if item.profile not in names
    ]
