"""What can go wrong in a call to the API server, as a small hierarchy with the server's own reason and causes.

Callers decide by type (`except Conflict`), never by parsing messages.
"""

# ruff: noqa: N818 - the names are those of the HTTP answers; an Error suffix on each would only add noise.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `Status.details.causes`: the field path that the server objects to, and why."""

    field: str
    reason: str
    message: str


class ApiError(Exception):
    """A call failed. `status` is the HTTP code (0: no answer at all), `reason` the server's CamelCase reason."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
        call: str = "",
    ) -> None:
        super().__init__(f"{call}: {message}" if call else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        """Seconds that the server asked to wait, when it did."""
        self.call = call
        """The call that failed, e.g. "PATCH nodes/node-atom"."""

    @property
    def transient(self) -> bool:
        """True when the same call may succeed later without anybody changing anything."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class BadRequest(ApiError):
    """400: the request itself is malformed."""


class Unauthorized(ApiError):
    """401: the credentials are not (or no longer) accepted."""


class Forbidden(ApiError):
    """403: RBAC, a policy or a webhook refuses."""


class NotFound(ApiError):
    """404: no such object, or the kind is not served (see `not_served`)."""

    @property
    def not_served(self) -> bool:
        """True when the URL itself is unknown: the CRD is not installed, or its version is not served.

        The API server answers such a path with plain text or with a Status that names no object.
        """
        return self.reason != "NotFound" or self.message.startswith("the server could not find the requested resource")


class Conflict(ApiError):
    """409: compare-and-swap lost (resourceVersion or UID differ), or a field belongs to another manager."""


class AlreadyExists(Conflict):
    """409 on create: an object of that name exists."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object is refused by its schema or validation; `causes` name the fields."""


class TooManyRequests(ApiError):
    """429: the server throttles, or an eviction is refused by a disruption budget or a webhook."""


class ServerTimeout(ApiError):
    """504, or 500 with reason ServerTimeout: the server gave up; whether the call took effect is unknown."""


class Unreachable(ApiError):
    """No usable answer: connection refused or broken, deadline over, or 502/503 from something in between."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
    502: Unreachable,
    503: Unreachable,
    504: ServerTimeout,
}


def from_status(status: Mapping[str, Any], *, call: str = "", retry_after: float | None = None) -> ApiError:
    """The error for a metav1.Status object, as found in a response body or in an ERROR event of a watch."""
    code = status.get("code")
    code = code if isinstance(code, int) and not isinstance(code, bool) else 500
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or reason or f"HTTP {code}")
    details = status.get("details")
    raw_causes: list[Any] = []
    if isinstance(details, Mapping):
        raw_causes = details.get("causes") or []
        seconds = details.get("retryAfterSeconds")
        if retry_after is None and isinstance(seconds, int) and seconds > 0:
            retry_after = float(seconds)
    causes = tuple(
        Cause(str(cause.get("field") or ""), str(cause.get("reason") or ""), str(cause.get("message") or ""))
        for cause in raw_causes
        if isinstance(cause, Mapping)
    )
    kind = _BY_STATUS.get(code, ApiError)
    if reason in {"Expired", "Gone"}:
        kind = Gone
    elif reason == "AlreadyExists":
        kind = AlreadyExists
    elif reason in {"ServerTimeout", "Timeout"}:
        kind = ServerTimeout
    return kind(code, reason, message, causes=causes, retry_after=retry_after, call=call)


def from_response(status: int, body: bytes, headers: Mapping[str, str], *, call: str = "") -> ApiError:
    """The error for a response that is not 2xx; the body may be anything (proxies answer with HTML or nothing)."""
    retry_after = parse_retry_after(headers.get("Retry-After"))
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and parsed.get("kind") == "Status":
        return from_status({**parsed, "code": status}, call=call, retry_after=retry_after)
    text = body[:200].decode("utf-8", "replace").strip()
    return from_status({"code": status, "message": text or f"HTTP {status}"}, call=call, retry_after=retry_after)


def parse_retry_after(value: str | None) -> float | None:
    """Seconds in a Retry-After header; the API server sends whole seconds, dates (RFC 9110) are ignored."""
    text = (value or "").strip()
    return float(text) if text.isascii() and text.isdigit() else None
