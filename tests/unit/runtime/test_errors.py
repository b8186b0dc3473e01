"""Whatever an answer looks like, it becomes one error of the right type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime import errors
from runtime.errors import ApiError, Cause


def status(code: int, reason: str, **fields: Any) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "m", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind", "transient"),
    [
        (400, "BadRequest", errors.BadRequest, False),
        (401, "Unauthorized", errors.Unauthorized, False),
        (403, "Forbidden", errors.Forbidden, False),
        (404, "NotFound", errors.NotFound, False),
        (409, "Conflict", errors.Conflict, False),
        (409, "AlreadyExists", errors.AlreadyExists, False),
        (410, "Expired", errors.Gone, False),
        (410, "Gone", errors.Gone, False),
        (422, "Invalid", errors.Invalid, False),
        (429, "TooManyRequests", errors.TooManyRequests, True),
        (500, "InternalError", ApiError, True),
        (500, "ServerTimeout", errors.ServerTimeout, True),
        (502, "", errors.Unreachable, True),
        (503, "ServiceUnavailable", errors.Unreachable, True),
        (504, "Timeout", errors.ServerTimeout, True),
        (418, "Teapot", ApiError, False),
    ],
)
def test_the_type_follows_status_and_reason(code: int, reason: str, kind: type[ApiError], transient: bool) -> None:
    error = errors.from_response(code, status(code, reason), {}, call="GET /x")
    assert type(error) is kind and error.status == code and error.reason == reason
    assert error.transient is transient and str(error) == "GET /x: m"


def test_causes_and_retry_after_are_read() -> None:
    details = {
        "causes": [{"field": "spec.x", "reason": "FieldValueInvalid", "message": "no"}, "strange", {"message": None}],
        "retryAfterSeconds": 3,
    }
    error = errors.from_response(422, status(422, "Invalid", details=details), {})
    assert error.causes == (Cause("spec.x", "FieldValueInvalid", "no"), Cause("", "", ""))
    assert error.retry_after == 3.0
    header = errors.from_response(429, status(429, "TooManyRequests", details=details), {"Retry-After": " 7 "})
    assert header.retry_after == 7.0


@pytest.mark.parametrize("value", [None, "", "soon", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "٣"])
def test_a_retry_after_that_is_no_number_of_seconds_is_ignored(value: str | None) -> None:
    assert errors.parse_retry_after(value) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"\xff\xff", b"[]", b'"x"', b"null", b'{"kind": "Pod"}', b'{"kind": "Status", "details": 3}'],
)
def test_a_body_that_is_no_status_still_makes_an_error(body: bytes) -> None:
    error = errors.from_response(503, body, {})
    assert isinstance(error, errors.Unreachable) and error.message


@pytest.mark.parametrize("code", [None, "410", 410.5, True])
def test_an_error_event_without_a_sound_code_is_a_server_fault(code: Any) -> None:
    error = errors.from_status({"code": code, "message": "?"})
    assert type(error) is ApiError and error.status == 500 and error.transient


def test_an_unknown_path_is_told_from_a_missing_object() -> None:
    missing = errors.from_response(404, status(404, "NotFound"), {})
    assert isinstance(missing, errors.NotFound) and not missing.not_served
    for body in (
        b"404 page not found\n",
        status(404, "NotFound", message="the server could not find the requested resource"),
    ):
        unknown = errors.from_response(404, body, {})
        assert isinstance(unknown, errors.NotFound) and unknown.not_served
