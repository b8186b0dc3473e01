"""The line that every bench prints for each figure, and who stands beside it in the same run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `peer` names what it is compared with (a project, or the floor: the same work done bare)."""

    bench: str
    case: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the peer's value; None without a peer."""
        return self.value / self.peer_value if self.peer_value else None

    def line(self) -> str:
        """JSON, with every field in every line."""
        return json.dumps(
            {
                "bench": self.bench,
                "case": self.case,
                "value": _short(self.value),
                "unit": self.unit,
                "peer": self.peer,
                "peer_value": _short(self.peer_value),
                "ratio": _short(self.ratio),
            }
        )

    def print(self) -> None:
        print(self.line())
        sys.stdout.flush()


def _short(value: float | None) -> float | None:
    """Four digits are more than a shared machine can tell; whole numbers stay whole."""
    if value is None or value == int(value):
        return None if value is None else int(value)
    return float(f"{value:.4g}")
