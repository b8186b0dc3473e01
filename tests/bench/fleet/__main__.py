"""`python -m tests.bench.fleet`: progress on stderr, one line of JSON for each figure on stdout."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.cluster.errors import ClusterError
from cli.progress import Progress
from tests.bench.fleet.cases import BENCH, DEFAULT_WRITES_PER_SECOND, Cases, Figures
from tests.bench.fleet.stage import BenchError, stage
from tests.bench.result import Result

UNREACHABLE = 3


def main() -> int:
    options = _options()
    progress = Progress()
    progress.say(
        f"The controller's limit on writes ({DEFAULT_WRITES_PER_SECOND} a second by default) is lifted through its "
        "options: what the limit would cost is told beside the figures."
    )
    measured: dict[int, dict[str, Figures]] = {}
    faults: list[BaseException] = []
    try:
        for nodes in options.nodes:
            measured[nodes] = asyncio.run(_measure(nodes, options, progress))
    except* (BenchError, ClusterError) as failed:
        faults.extend(failed.exceptions)
    for fault in faults:
        progress.say(f"bench-fleet: {fault}")
    if faults:
        return UNREACHABLE
    for result in _growth(measured, options.devices):
        result.print()
    return 0


async def _measure(nodes: int, options: argparse.Namespace, progress: Progress) -> dict[str, Figures]:
    with tempfile.TemporaryDirectory(prefix="npufleet-bench-") as directory:
        async with stage(Path(directory), nodes=nodes, devices=options.devices, progress=progress) as found:
            cases = Cases(found, options.bind_seconds, options.timeout_seconds, options.floor_nodes, options.short)
            loads = [os.getloadavg()[0]]
            started = time.monotonic()
            await cases.run()
            loads.append(os.getloadavg()[0])
    progress.say(f"{nodes} nodes in {time.monotonic() - started:.0f} s; load before and after: {loads}")
    for result in cases.lines():
        result.print()
    return cases.results


def _growth(measured: dict[int, dict[str, Figures]], devices: int) -> Iterator[Result]:
    """What one node costs in the largest fleet beside what it costs in the smallest: 1 is linear."""
    small, large = min(measured), max(measured)
    if small == large:
        return
    for case in ("registration", "all nodes", "restart"):
        few, many = measured[small][case], measured[large][case]
        name, peer = f"{large} nodes x {devices} devices: {case}", f"{small} nodes"
        time_each = many.seconds / large, few.seconds / small
        cpu_each = many.cpu_seconds / large, few.cpu_seconds / small
        yield Result(BENCH, f"{name}: time per node", time_each[0], "s", peer, time_each[1])
        yield Result(BENCH, f"{name}: CPU of the controller per node", cpu_each[0], "s", peer, cpu_each[1])


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1000, 5000], metavar="N", help="sizes of fleet (default 1000 5000)"
    )
    parser.add_argument("--devices", type=int, default=16, metavar="N", help="devices of each node (default 16)")
    parser.add_argument(
        "--bind-seconds",
        type=float,
        default=1.6,
        metavar="S",
        help="what a node needs to carry orders out (default 1.6: a binder with 16 devices, see docs/performance.md)",
    )
    parser.add_argument(
        "--floor-nodes",
        type=int,
        default=1000,
        metavar="N",
        help="the bare loop writes at most so many, and its seconds are scaled to the fleet (default 1000)",
    )
    parser.add_argument(
        "--short", action="store_true", help="only: registration, a change of all nodes, restart, a change of one node"
    )
    parser.add_argument(
        "--timeout-seconds", type=float, default=1800.0, metavar="S", help="for each case (default 1800)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
