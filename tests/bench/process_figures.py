"""Processor time and memory of a process, as the kernel counts them (proc(5))."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Processor seconds so far, MB resident now and at the most."""

    cpu_seconds: float
    rss_mb: float
    peak_mb: float


def figures_of(pid: int) -> ProcessFigures:
    """Figures of a living process. Raises OSError when it is gone."""
    # The name in parentheses may itself hold blanks: the fields are counted from behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    return ProcessFigures(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        rss_mb=_megabytes(status["VmRSS"]),
        peak_mb=_megabytes(status["VmHWM"]),
    )


def _megabytes(text: str) -> float:
    return int(text.split()[0]) * 1024 / 1e6
