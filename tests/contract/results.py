"""The raw results, as committed: what each machine showed when they were recorded, and what a run must show again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).with_name("results")
SIMULATED: Final = _HERE / "simulated.json"
LINUX: Final = _HERE / "linux.json"
OBSERVED: Final = "contract"
# Not a rule: the kernel that Linux's results are of.
RELEASE: Final = "kernel release"


def read_results(path: Path) -> dict[str, str]:
    """Raw results by rule id; none when nothing was recorded yet."""
    if not path.exists():
        return {}
    found: dict[str, str] = json.loads(path.read_text("utf-8"))
    return found


def write_results(path: Path, results: Mapping[str, str]) -> None:
    path.write_text(json.dumps(dict(sorted(results.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")


def observe(directory: Path, identifier: str, result: str) -> None:
    """Keep what a run showed, one file a rule."""
    (directory / OBSERVED).mkdir(parents=True, exist_ok=True)
    (directory / OBSERVED / identifier).write_text(result, "utf-8")


def observed(directory: Path) -> dict[str, str]:
    """What runs with this results directory showed."""
    return {path.name: path.read_text("utf-8") for path in (directory / OBSERVED).iterdir()}
