"""What a request to an API server asks for, read from its method and URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """Classes of requests that faults can be aimed at."""

    LIST = "list"
    WATCH = "watch"
    GET = "get"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: `plural` is the kind's segment in the URL, `name` is empty for a collection."""

    verb: Verb
    plural: str
    name: str = ""
    subresource: str = ""


def asked(method: str, path: str, query: Mapping[str, str]) -> Asked:
    """Classify a request. Paths that name no resource (/version, /apis) have an empty plural."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    plural, name, subresource = [*rest, "", "", ""][:3]
    if method != "GET":
        return Asked(Verb.WRITE, plural, name, subresource)
    if query.get("watch") in {"true", "1"}:
        return Asked(Verb.WATCH, plural, name, subresource)
    return Asked(Verb.GET if name else Verb.LIST, plural, name, subresource)
