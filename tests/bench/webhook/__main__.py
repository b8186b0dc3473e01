"""`python -m tests.bench.webhook`: progress on stderr, one line of JSON for each figure on stdout."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cli.cluster.errors import ClusterError
from cli.progress import Progress
from runtime.api import ApiError
from tests.bench.process_figures import figures_of
from tests.bench.result import Result
from tests.bench.webhook.callers import AskFailed, Connections, Measured, each_of, measure
from tests.bench.webhook.objects import full_samples, resource_of, review_of, variants
from tests.bench.webhook.stage import BenchError, Stage, stage

BENCH = "webhook"
CALLERS = (1, 16, 64)
UNREACHABLE = 3
ALONE = "API server without the webhook"


def main() -> int:
    options = _options()
    progress = Progress()
    faults: list[BaseException] = []
    try:
        asyncio.run(_run(options, progress))
    except* (BenchError, ClusterError, ApiError, AskFailed) as failed:
        faults.extend(failed.exceptions)
    for fault in faults:
        progress.say(f"bench-webhook: {fault}")
    return UNREACHABLE if faults else 0


async def _run(options: argparse.Namespace, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="npufleet-bench-") as directory:
        async with stage(Path(directory), nodes=options.nodes, policies=options.policies, progress=progress) as found:
            progress.say(f"load before: {os.getloadavg()[0]:.1f}; {options.reviews} calls for each figure")
            before = figures_of(found.replica.pid)
            for callers in CALLERS:
                reviews = await _reviews(found, callers, options.reviews)
                await found.ask_webhook(False)
                alone = await _creates(found, callers, options.reviews)
                await found.ask_webhook(True)
                both = await _creates(found, callers, options.reviews)
                for result in _lines(callers, options, reviews, alone, both):
                    result.print()
            after = figures_of(found.replica.pid)
            count = 2 * len(CALLERS) * options.reviews
            cpu = (after.cpu_seconds - before.cpu_seconds) / count * 1000
            Result(BENCH, f"{options.nodes} Nodes: CPU of a replica per review", cpu, "ms").print()
            Result(BENCH, f"{options.nodes} Nodes: memory of a replica, at most", after.peak_mb, "MB").print()
            progress.say(f"load after: {os.getloadavg()[0]:.1f}")


async def _reviews(found: Stage, callers: int, count: int) -> Measured:
    """Reviews as the API server would send them, straight to the replica."""
    host, _, rest = found.replica.url.removeprefix("https://").partition(":")
    port, _, path = rest.partition("/")
    connections = Connections(host, int(port), f"/{path}", found.authorities)
    bodies = [review_of(obj) for obj in _objects(count + callers)]  # type: ignore[arg-type]
    try:
        await connections.open(callers)
        await measure(callers, bodies[:callers], connections.ask)
        with found.progress.step(f"{count} reviews, {callers} callers", "reviews"):
            return await measure(callers, bodies[callers:], connections.ask)
    finally:
        connections.close()


async def _creates(found: Stage, callers: int, count: int) -> Measured:
    """The same objects created at the API server, as dry runs: all but the write to etcd."""

    async def create(_: int, obj: object) -> None:
        assert isinstance(obj, dict)
        await found.api.create(resource_of(obj), obj, dry_run=True)

    await measure(callers, _objects(callers), create)
    with found.progress.step(f"{count} creates, {callers} callers", "creates"):
        return await measure(callers, _objects(count), create)


def _objects(count: int) -> list[object]:
    return each_of([variants(base) for base in full_samples()], count)


def _lines(
    callers: int, options: argparse.Namespace, reviews: Measured, alone: Measured, both: Measured
) -> Iterator[Result]:
    case = f"{options.nodes} Nodes, {callers} callers"
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        peer = alone.percentile(part)
        yield Result(BENCH, f"{case}: review, {name}", reviews.percentile(part), "ms", ALONE, peer)
        yield Result(BENCH, f"{case}: create with the webhook, {name}", both.percentile(part), "ms", ALONE, peer)
    yield Result(BENCH, f"{case}: reviews of one replica", reviews.rate, "1/s", ALONE, alone.rate)
    yield Result(BENCH, f"{case}: creates with the webhook", both.rate, "1/s", ALONE, alone.rate)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.webhook", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, metavar="N", help="size of the fleet (default 1000)")
    parser.add_argument("--policies", type=int, default=20, metavar="N", help="policies there are (default 20)")
    parser.add_argument("--reviews", type=int, default=3000, metavar="N", help="calls for each figure (default 3000)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
