"""Structured logs on stderr, as JSON or as text: object key and generation are fields, and secrets never get through.

Modules log through `logging.getLogger(__name__)`; `bind` adds fields.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

_SECRETS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # a JSON Web Token
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry `fields`; those given in a call (`extra={"fields": …}`) are added."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = dict(kwargs.get("extra") or {})
        extra["fields"] = {**(self.extra or {}), **(extra.get("fields") or {})}
        return msg, {**kwargs, "extra": extra}


def bind(logger: logging.Logger, **fields: object) -> FieldLogger:
    """`logger` with fields, e.g. bind(log, key="npunp/all-atoms", generation=3)."""
    return FieldLogger(logger, fields)


def redact(text: str) -> str:
    """`text` without bearer tokens, JSON Web Tokens and private keys."""
    for pattern in _SECRETS:
        text = pattern.sub("[redacted]", text)
    return text


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, component, the fields, error."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "component": self._component,
        }
        for key, value in _fields(record).items():
            line.setdefault(key, value)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # Redacted before encoding: afterwards the newlines of a key would be escapes that no pattern expects.
        return json.dumps(_clean(line), ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, message, then the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return redact(text)


def setup(component: str, *, log_format: str = "json", level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything through one handler; replaces what an earlier call set up."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JSONFormatter(component) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kopf tells of each handler call; what our own reconcile logs says more.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, root.level))
    # It warns that it leaves signals alone, which is what it is meant to do: runtime.process handles them.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))


def _clean(value: object) -> object:
    """`value` as JSON can hold it, redacted at every depth."""
    if isinstance(value, Mapping):
        return {redact(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return redact(str(value))


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
