"""Time and memory of `npufleet lint` on many files, beside kubernetes-validate on the same files.

``python -m tests.bench.lint [--files 1000]``: JSON lines on stdout, progress on stderr. The peer checks less (it stops
at the first fault of an object and passes over kinds that it does not know); each runs as its users run it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.lint.files import write_files
from tests.bench.result import Result

_PEER = "kubernetes-validate"
_VERSION = "1.37"


@dataclass(frozen=True, slots=True)
class Run:
    """One process: its time from start to end, processor seconds, and the most memory it held."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lint", description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="how many files (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; the quickest counts (default: 3)")
    options = parser.parse_args(arguments)
    for case, with_ours in (("policies among manifests", True), ("manifests of Kubernetes alone", False)):
        with tempfile.TemporaryDirectory(prefix="npufleet-bench-") as temporary:
            files = write_files(Path(temporary), options.files, with_ours=with_ours)
            _tell(f"{case}: {len(files)} files, npufleet lint")
            ours = _best(
                [_beside("npufleet"), "lint", "--strict", "--k8s-version", _VERSION, temporary], options.rounds
            )
            _tell(f"{case}: {len(files)} files, {_PEER}")
            command = [_beside("kubernetes-validate"), "-k", _VERSION, "--strict", "--quiet", "--no-warn"]
            peer = _best([*command, *map(str, files)], 1)
        name = f"{options.files} files, {case}"
        Result("lint", f"{name}: time", ours.seconds, "s", _PEER, peer.seconds).print()
        Result("lint", f"{name}: processor time", ours.cpu_seconds, "s", _PEER, peer.cpu_seconds).print()
        Result("lint", f"{name}: peak memory", ours.peak_mb, "MB", _PEER, peer.peak_mb).print()
        Result(
            "lint", f"{name}: rate", options.files / ours.seconds, "files/s", _PEER, options.files / peer.seconds
        ).print()
    return 0


def _best(command: list[str], rounds: int) -> Run:
    return min((_run(command) for _ in range(rounds)), key=lambda run: run.seconds)


def _run(command: list[str]) -> Run:
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with process.stdout as out:
        said = out.read()
    # wait4 tells of this child alone; getrusage would tell of the largest one so far.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{said.decode(errors='replace')[-2000:]}")
    return Run(time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def _beside(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
