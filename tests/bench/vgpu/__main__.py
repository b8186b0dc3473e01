"""`python -m tests.bench.vgpu`: from a boot to the last vGPU, on the simulated node and on a real kernel where there is
QEMU; progress on stderr, one line of JSON for each figure on stdout."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cli.progress import Progress
from tests.bench.vgpu import simulated
from tests.bench.vgpu.contest import BenchError
from tests.kernel.lab.machine import PROGRAM

UNREACHABLE = 3
GUEST_SECONDS = 1200


def main() -> int:
    options = _options()
    progress = Progress()
    progress.say(f"load before: {os.getloadavg()[0]:.1f}")
    try:
        with tempfile.TemporaryDirectory(prefix="npufleet-bench-") as directory:
            for result in simulated.run(Path(directory), options.rounds, progress):
                result.print()
        if options.guest_rounds:
            _real_kernel(options.guest_rounds, progress)
    except BenchError as error:
        progress.say(f"bench-vgpu: {error}")
        return UNREACHABLE
    progress.say(f"load after: {os.getloadavg()[0]:.1f}")
    return 0


def _real_kernel(rounds: int, progress: Progress) -> None:
    """Raises BenchError when the guest, which is there, gives no figures."""
    if shutil.which(PROGRAM) is None:
        progress.say(f"no {PROGRAM}: nothing is measured on a real kernel")
        return
    inner = [sys.executable, "-m", "tests.bench.vgpu.in_guest", str(rounds)]
    lab = [sys.executable, "-m", "tests.kernel.lab", "boot", "--seconds", str(GUEST_SECONDS), "--", *inner]
    with progress.step("real kernel", "real kernel"):
        done = subprocess.run(lab, stdout=subprocess.PIPE, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            print(line, flush=True)
        else:
            progress.say(line)
    if done.returncode:
        raise BenchError(f"the guest ended with {done.returncode}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.vgpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="on the simulated node (default 9)")
    parser.add_argument(
        "--guest-rounds", type=int, default=3, metavar="N", help="on a real kernel; 0: none (default 3)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
