"""Logs: one line a record, fields as fields, no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import logs

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"


@pytest.fixture(autouse=True)
def restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(log_format: str, *, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.setup("npufleet-test", log_format=log_format, level=level, stream=stream)
    return stream


def one_line(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_fields_are_fields_of_the_json_line() -> None:
    stream = written("json")
    bound = logs.bind(logging.getLogger("room"), key="npunp/all-atoms", generation=3)
    bound.info("Applied %d devices", 4, extra={"fields": {"node": "node-atom"}})
    line = one_line(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "room",
        "message": "Applied 4 devices",
        "component": "npufleet-test",
        "key": "npunp/all-atoms",
        "generation": 3,
        "node": "node-atom",
    }


def test_text_has_the_fields_at_the_end() -> None:
    stream = written("text")
    logs.bind(logging.getLogger("room"), key="a/b").warning("Something")
    assert stream.getvalue().endswith("room: Something key=a/b\n")


def test_tracebacks_and_newlines_stay_on_one_json_line() -> None:
    stream = written("json")
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError:
        logging.getLogger("room").exception("Failed\nhard")
    line = one_line(stream)
    assert "RuntimeError: first\nsecond" in line["error"] and line["message"] == "Failed\nhard"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_secrets_never_get_through(log_format: str) -> None:
    stream = written(log_format)
    log = logging.getLogger("room")
    key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIabcdef\n-----END EC PRIVATE KEY-----"
    log.info("Headers: Authorization: Bearer abcdef0123456789")
    log.info("token %s", JWT)
    logs.bind(log, kubeconfig=f"token: {JWT}", nested={"token": JWT}).info("loaded")
    try:
        raise ValueError(f"cannot load {key}")
    except ValueError:
        log.exception("No TLS")
    text = stream.getvalue()
    assert "abcdef0123456789" not in text and "eyJhbGciOi" not in text and "MHcCAQEE" not in text
    assert text.count("[redacted]") == 5


def test_the_level_holds_and_kopf_is_kept_quiet() -> None:
    stream = written("text", level="warning")
    logging.getLogger("room").info("quiet")
    written_at_info = written("text")
    logging.getLogger("kopf.objects").info("Handler 'x' succeeded.")
    assert stream.getvalue() == "" and written_at_info.getvalue() == ""
