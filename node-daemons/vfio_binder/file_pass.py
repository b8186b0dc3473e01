"""One pass with orders from a file, without an API server: for whoever is on the node, and for tests."""

import asyncio
import sys
from pathlib import Path
from typing import Final

from crds.models.node_state import NPUNodeState
from node_host.boot import BootUnknownError
from node_host.bounded_call import HungError
from node_host.orders import Orders
from vfio_binder.build import build_binder
from vfio_binder.text import has_findings, show

CLEAN: Final = 0
FINDINGS: Final = 1
FAILED: Final = 3


def run_from_file(host_root: Path, desired: NPUNodeState, *, dry_run: bool) -> int:
    """Print plan and outcome; the exit code."""
    _, binder = build_binder(host_root)
    # The file is the word of whoever runs this on the node, so it is meant for this node.
    orders = Orders(desired.spec, desired.spec.node_uid, desired.metadata.generation)
    try:
        done = asyncio.run(binder.dry_run(orders) if dry_run else binder.run(orders))
    except (BootUnknownError, HungError) as error:
        sys.stderr.write(f"the host cannot be read: {error}\n")
        return FAILED
    sys.stdout.write(show(done, dry_run=dry_run))
    return FINDINGS if has_findings(done) else CLEAN
