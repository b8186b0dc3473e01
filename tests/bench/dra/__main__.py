"""`python -m tests.bench.dra`: progress on stderr, one line of JSON for each figure on stdout."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from cli.errors import CommandError
from cli.progress import Progress
from tests.bench.dra.cases import Cases
from tests.bench.dra.claims import BenchError
from tests.bench.dra.stage import stage

UNREACHABLE = 3


def main() -> int:
    options = _options()
    progress = Progress()
    loads = [os.getloadavg()[0]]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="npufleet-bench-") as directory,
            stage(Path(directory), progress) as found,
        ):
            cases = Cases(found, progress)
            for devices in options.devices:
                cases.prepare(devices, options.rounds)
            cases.concurrent()
            for devices in options.devices:
                asyncio.run(cases.allocation(devices, options.allocations))
            cases.memory()
            loads.append(os.getloadavg()[0])
    except (BenchError, CommandError, AssertionError) as error:
        progress.say(f"bench-dra: {error}")
        return UNREACHABLE
    progress.say(f"load before and after: {loads}")
    for result in cases.results:
        result.print()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dra", description=__doc__)
    parser.add_argument(
        "--devices", type=int, nargs="+", default=[1, 8], metavar="N", help="devices of a claim (default 1 8)"
    )
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="claims prepared by each (default 100)")
    parser.add_argument("--allocations", type=int, default=5, metavar="N", help="slices published by each (default 5)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
