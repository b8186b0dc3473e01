"""All that a simulated machine and the files of daemons on its disk are at one moment, as a value."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from simulated_node.kernel import SimulatedKernel

# What only tells operations of the past apart, and ways out of the machine.
_NOT_STATE: Final = frozenset({"events", "requests", "begun", "fault", "held"})
_DIRECTORIES: Final = ("var/lib/npufleet", "run/npufleet")


def state_of(kernel: SimulatedKernel) -> str:
    """Two machines of one description for which this is equal go on alike, whatever is done to both."""
    assert not (kernel.faults._faults or kernel.faults._blocks), "how often a fault strikes yet is told nowhere"
    return repr((_facts(kernel._machine), _files(kernel.root)))


def _facts(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return "as described"
    if dataclasses.is_dataclass(value):
        return [
            (field.name, _facts(getattr(value, field.name)))
            for field in dataclasses.fields(value)
            if field.name not in _NOT_STATE
        ]
    if isinstance(value, dict):
        return [(key, _facts(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_facts(item) for item in value]
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def _files(root: Path) -> list[tuple[str, bytes]]:
    paths = [path for directory in _DIRECTORIES for path in sorted((root / directory).rglob("*"))]
    return [(str(path.relative_to(root)), path.read_bytes() if path.is_file() else b"") for path in paths]
