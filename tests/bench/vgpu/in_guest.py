"""`python -m tests.bench.vgpu.in_guest ROUNDS`, in the kernel lab's guest: the test driver's cards, without functions
before each measurement, as a boot leaves them."""

from __future__ import annotations

import sys
from pathlib import Path

from cli.progress import Progress
from node_host.host import open_host
from profile_writer.tools import ToolPaths
from tests.bench.vgpu.contest import BenchError, Cards, contest, forget
from tests.bench.vgpu.simulated import counted
from tests.builders.guest_writer import TOOLS, cards_under_test
from tests.kernel.lab import roles
from tests.kernel.modules.loaded import load, loaded, mount_debugfs, without
from tests.kernel.modules.sim_vgpu_card import IDS, Card

GIB = 6


def main() -> int:
    rounds = int(sys.argv[1])
    progress = Progress()
    by_role = roles.find_all()
    addresses = (by_role["pf"], by_role["other_pf"])
    paths = ToolPaths(str(TOOLS / "sriov-manage"), str(TOOLS / "nvidia-smi"))

    def boot() -> Cards:
        for address in addresses:
            Card(address).enable(0)
        forget(Path("/"))
        host = open_host(Path("/"))
        return Cards(host, cards_under_test(), paths, addresses, roles.VF_TOTAL, f"L40S-{GIB}Q", IDS[GIB])

    mount_debugfs()
    load("vfio_iommu_type1")
    try:
        with without("igbvf"), loaded("sim_vgpu"):
            try:
                for result in contest("real kernel, emulated", boot, rounds, progress, counted):
                    result.print()
            finally:
                boot()
    except BenchError as error:
        progress.say(f"bench-vgpu: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
