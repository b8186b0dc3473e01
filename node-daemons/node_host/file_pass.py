"""One pass with orders from a file, without an API server: for whoever is on the node, and for tests."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from crds.models.node_state import NPUNodeState
from node_host.boot import BootUnknownError
from node_host.bounded_call import HungError
from node_host.orders import Orders

T = TypeVar("T")

CLEAN: Final = 0
FINDINGS: Final = 1
FAILED: Final = 3


def orders_of(desired: NPUNodeState) -> Orders:
    """The file is the word of whoever runs this on the node, so it is meant for this node."""
    return Orders(desired.spec, desired.spec.node_uid, desired.metadata.generation)


def run_pass(
    make: Callable[[], Coroutine[Any, Any, T]], *, show: Callable[[T], str], has_findings: Callable[[T], bool]
) -> int:
    """Make it and print it; the exit code."""
    try:
        done = asyncio.run(make())
    except (BootUnknownError, HungError) as error:
        sys.stderr.write(f"the host cannot be read: {error}\n")
        return FAILED
    sys.stdout.write(show(done))
    return FINDINGS if has_findings(done) else CLEAN
