"""An AdmissionReview as it arrives: read whole or refused with a reason, whatever the bytes are. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

_GROUP: Final = "admission.k8s.io/"
_LONGEST_UID: Final = 256


class Malformed(ValueError):  # noqa: N818 - says what is wrong with the request
    """This is no AdmissionReview that could be answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `content` and `old` are None where there is no such object.

    `api_version` is that of the review itself: the answer has the same. `group`, `version` and `kind` are of the
    object, as the API server has converted it.
    """

    uid: str
    api_version: str
    group: str
    version: str
    kind: str
    subresource: str
    name: str
    namespace: str
    operation: str
    content: dict[str, Any] | None
    old: dict[str, Any] | None
    groups: frozenset[str]
    user: str

    @property
    def is_current(self) -> bool:
        """Whether the review itself is of the version that is spoken here."""
        return self.api_version == API_VERSION


def read_request(body: bytes) -> Request:
    """The request in these bytes. Raises Malformed, and nothing else."""
    document = _document(body)
    api_version, kind = document.get("apiVersion"), document.get("kind")
    if kind != KIND or not isinstance(api_version, str) or not api_version.startswith(_GROUP):
        raise Malformed(f"expected {KIND} of {API_VERSION}, not {_shown(kind)} of {_shown(api_version)}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise Malformed("the AdmissionReview has no request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= _LONGEST_UID:
        raise Malformed("request.uid is missing: the answer could not name what it answers")
    of = request.get("kind")
    of = of if isinstance(of, dict) else {}
    content, old = request.get("object"), request.get("oldObject")
    user = request.get("userInfo")
    groups = user.get("groups") if isinstance(user, dict) else None
    return Request(
        uid=uid,
        api_version=api_version,
        group=_text(of.get("group")),
        version=_text(of.get("version")),
        kind=_text(of.get("kind")),
        subresource=_text(request.get("subResource")),
        name=_text(request.get("name")),
        namespace=_text(request.get("namespace")),
        operation=_text(request.get("operation")),
        content=content if isinstance(content, dict) else None,
        old=old if isinstance(old, dict) else None,
        groups=frozenset(one for one in groups if isinstance(one, str)) if isinstance(groups, list) else frozenset(),
        user=_text(user.get("username")) if isinstance(user, dict) else "",
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body, parse_float=_number, parse_constant=_no_number)
    except RecursionError as error:
        raise Malformed("the body is nested too deeply") from error
    except ValueError as error:  # of JSON, of UTF-8, or of a number with thousands of digits
        raise Malformed(f"the body is no JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise Malformed(f"the body is no JSON object, but {type(found).__name__}")
    return found


def _number(text: str) -> int | float:
    """A whole number stays one however it is written: JSON knows one type, and 100.0 is the integer 100 to a schema."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return int(value) if value.is_integer() and abs(value) < 2**63 else value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no value in JSON")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _shown(value: Any) -> str:
    return repr(value)[:80] if value is not None else "nothing"
