"""Reads `metadata.managedFields`: which field manager has set which field.

FieldsV1 is a tree whose keys are `f:<field>`, `k:<key fields as JSON>`, `v:<value as JSON>` and `i:<index>`; what is
empty is a field that the manager has set, and the key `.` says that it has made the place itself (KEP-555,
structured-merge-diff).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

Path = tuple[str, ...]
"""Keys of FieldsV1 from the top of the object: `("f:spec", "f:priority")`."""

_ITSELF: Final = "."
# Nothing of ours is nested as deep; what is may not cost a stack.
_DEEPEST: Final = 64


def leaves_by_manager(managed_fields: Any) -> dict[str, frozenset[Path]]:
    """The values that each field manager has set; what cannot be understood is left out.

    A manager is told by its name alone: `kubectl edit` and `kubectl apply` under one name are one. What was set through
    a subresource counts like the rest. That a manager has made a map which others fill is no value.
    """
    found: dict[str, set[Path]] = {}
    for entry in managed_fields if isinstance(managed_fields, list) else ():
        if isinstance(entry, Mapping) and isinstance(manager := entry.get("manager"), str):
            found.setdefault(manager, set()).update(_leaves(entry.get("fieldsV1")))
    return {manager: frozenset(paths) for manager, paths in found.items()}


def _leaves(tree: Any) -> Iterator[Path]:
    pending: list[tuple[Path, Any]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        if not isinstance(node, Mapping) or len(path) > _DEEPEST:
            continue
        if path and not node:
            yield path
        pending += [((*path, key), below) for key, below in node.items() if isinstance(key, str) and key != _ITSELF]


def told(path: Path) -> str:
    """The path as people write it: `spec.devices[name=a].mode`, `metadata.annotations[npufleet.io/x]`."""
    text = ""
    for key in path:
        kind, _, name = key.partition(":")
        if kind == "k":
            text += f"[{_key_fields(name)}]"
        elif kind in ("v", "i") or not name.isidentifier():
            text += f"[{name}]"
        else:
            text += f".{name}" if text else name
    return text


def _key_fields(text: str) -> str:
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    return ",".join(f"{name}={value}" for name, value in fields.items()) if isinstance(fields, dict) else text
