"""What the API server checks of metadata and no schema can say: that there is a name, what keys look like, the scope.

Source of the forms: Kubernetes documentation, "Object names and IDs" and "Labels and selectors".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from crds.models.kinds import Kind
from webhooks.rules import Severity, Violation
from webhooks.rules.files import METADATA
from webhooks.rules.pointers import pointer

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MOST_ANNOTATIONS: Final = 256 * 1024


def metadata_faults(content: dict[str, Any], kind: Kind | None = None) -> Iterator[Violation]:
    """What is wrong with the metadata of an object; without ``kind`` it is one of another group."""
    metadata = content.get("metadata")
    if metadata is None:
        yield _error("/metadata", "the object has no metadata", "give it a name")
        return
    if not isinstance(metadata, dict):
        return  # the schema's rule tells that
    if metadata.get("name") in (None, "") and not metadata.get("generateName"):
        yield _error("/metadata/name", "the object has no name", "give it one")
    for name in ("labels", "annotations"):
        entries = metadata.get(name)
        if isinstance(entries, dict):
            yield from _keys(name, entries)
    if kind is None and isinstance(metadata.get("labels"), dict):
        yield from _label_values(metadata["labels"])
    yield from _size(metadata.get("annotations"))


def _keys(field: str, entries: dict[str, Any]) -> Iterator[Violation]:
    for key in entries:
        prefix, slash, name = key.rpartition("/")
        if not _fits(_QUALIFIED, name, 63) or (slash and not _fits(_SUBDOMAIN, prefix, 253)):
            shown = key if len(key) <= 80 else f"{key[:80]}…"
            yield _error(pointer("metadata", field, key), f'"{shown}" cannot be a key of {field}', _FORM)


def _label_values(labels: dict[str, Any]) -> Iterator[Violation]:
    for key, value in labels.items():
        if isinstance(value, str) and value and not _fits(_QUALIFIED, value, 63):
            shown = value if len(value) <= 80 else f"{value[:80]}…"
            fix = "a value has letters, digits, -, _ and ., at most 63, and begins and ends with a letter or digit"
            yield _error(pointer("metadata", "labels", key), f'"{shown}" cannot be the value of a label', fix)


_FORM: Final = "a key is NAME or DOMAIN/NAME, and NAME has letters, digits, -, _ and ., at most 63"


def _size(annotations: Any) -> Iterator[Violation]:
    if not isinstance(annotations, dict):
        return
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items() if isinstance(value, str))
    if size > _MOST_ANNOTATIONS:
        yield _error("/metadata/annotations", f"all annotations together have more than {_MOST_ANNOTATIONS} bytes")


def _fits(pattern: re.Pattern[str], text: str, most: int) -> bool:
    return len(text) <= most and pattern.fullmatch(text) is not None


def _error(at: str, message: str, fix: str = "") -> Violation:
    return Violation(METADATA, Severity.ERROR, at, message, fix)
