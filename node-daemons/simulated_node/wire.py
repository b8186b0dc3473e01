"""What goes over the simulated kernel's socket: one JSON object a line, in both directions.

Requests: ``{"op": "write", "path", "data"}`` (data as Latin-1), ``{"op": "read", "kind", "path"}`` (may it be read
now?), ``{"op": "load_module", "name"}``, ``{"op": "tool", "path", "arguments"}``
(answered ``{"ok", "status", "output"}``), ``{"op": "subscribe"}``, ``{"op": "control", "action", …}``. Answers:
``{"ok": true, "value"?}`` or ``{"errno", "message"}``; after ``subscribe`` one object an event, ``{"errno"}`` at the
end. A connection carries one request.
"""

import json
from typing import Any


class WireError(ValueError):
    """A request that is none; it is answered with EPROTO."""


def decode(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def text(message: dict[str, Any], field: str) -> str:
    """A string field of a request."""
    value = message.get(field)
    if not isinstance(value, str):
        raise WireError(f"{field}: a string is needed, not {value!r}")
    return value


def number(message: dict[str, Any], field: str, default: int) -> int:
    """An integer field of a request, or what it is when it is left out."""
    value = message.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise WireError(f"{field}: an integer is needed, not {value!r}")
    return value


def seconds(message: dict[str, Any], field: str) -> float | None:
    """A time that may be left out."""
    value = message.get(field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
        raise WireError(f"{field}: seconds are needed, not {value!r}")
    return value


def mapping(message: dict[str, Any], field: str) -> dict[str, str]:
    """Strings by strings, none when the field is left out."""
    value = message.get(field, {})
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise WireError(f"{field}: strings by strings are needed, not {value!r}")
    return value


def listing(message: dict[str, Any], field: str) -> list[Any]:
    """A list, empty when the field is left out."""
    value = message.get(field, [])
    if not isinstance(value, list):
        raise WireError(f"{field}: a list is needed, not {value!r}")
    return value
