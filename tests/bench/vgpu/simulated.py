"""The simulated node with two L40S, rebooted before each measurement."""

from __future__ import annotations

from pathlib import Path

from cli.progress import Progress
from crds.catalogue import load_catalogue
from profile_writer.tools import ToolPaths
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel
from tests.bench.result import Result
from tests.bench.vgpu.contest import Cards, contest

CARDS = ("0000:21:00.0", "0000:22:00.0")
FUNCTIONS = 16
# 16 of them take 32 of the card's 48 GB; those of the vendor's next size would not fit.
PROFILE, TYPE_ID = "L40S-2Q", 1148


def run(root: Path, rounds: int, progress: Progress) -> list[Result]:
    """Raises BenchError."""
    results = []
    with SimulatedKernel(root, load_description("node-l40s")) as kernel:
        for addresses in (CARDS[:1], CARDS):

            def boot(addresses: tuple[str, ...] = addresses) -> Cards:
                kernel.reboot()
                return Cards(kernel.host(), load_catalogue(), ToolPaths(), addresses, FUNCTIONS, PROFILE, TYPE_ID)

            results += contest("simulated node", boot, rounds, progress, counted)
    return results


def counted(cards: Cards) -> str:
    total = cards.functions * len(cards.addresses)
    return f"{total} virtual functions of {len(cards.addresses)} card{'s' if len(cards.addresses) > 1 else ''}"
