"""`npufleet-dra-publisher`: the daemon, one look of it, or what a look would find."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from dra_publisher.slices.resource_slice import COMPONENT
from node_host.daemon_options import add_node_arguments, add_resync_argument
from runtime import logs
from runtime.settings import add_arguments, from_arguments

PORT: Final = 9447

_DESCRIPTION = """\
Gives this node's accelerators to pods and VMs: it publishes them in ResourceSlices, prepares the devices that claims
are allocated to, and hands a device over to the daemon that changes it once nobody has it any more.

It publishes a device when the daemons that prepare it report it ready in this boot, and the host shows it so. A device
whose orders change is withheld from new claims (a taint); claims that have it keep it. It never writes to a device.
What it prepared is kept in /var/lib/npufleet/publisher/checkpoint.json. Its end takes nothing from anybody.
"""
_EPILOG = """\
examples:
  npufleet-dra-publisher --node worker-1             the daemon of a node
  npufleet-dra-publisher --node worker-1 --dry-run   what it would publish, withhold and hand over now; writes nothing
  npufleet-dra-publisher --node worker-1 --once      one look without serving the kubelet; only while no other one runs

exit codes: 0 as ordered, or stopped as asked; 1 orders are held (--once, --dry-run), or devices are blocked (--once);
2 wrong usage; 3 anything else (start it again)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; wrong usage exits with 2."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.node is None:
        parser.error("--node NAME is needed (or $NPUFLEET_NODE)")
    if not arguments.host_root.is_dir():
        parser.error(f"--host-root {arguments.host_root} is no directory")
    try:
        settings = from_arguments(COMPONENT, arguments)
    except ValueError as error:
        parser.error(str(error))
    logs.setup(settings.component, log_format=settings.log_format, level=settings.log_level)
    from dra_publisher.service import run_daemon, run_once

    if arguments.once or arguments.dry_run:
        return run_once(settings, arguments)
    return run_daemon(settings, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMPONENT,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_node_arguments(parser, names="the Node, of its NPUNodeState and of its pools")
    parser.add_argument(
        "--pod-uid",
        default=os.environ.get("NPUFLEET_POD_UID") or None,
        metavar="UID",
        help="UID of this pod: sockets of its own, so that the pod of the next version serves before this one ends",
    )
    parser.add_argument("--once", action="store_true", help="make one look, print where each device stands, and end")
    parser.add_argument("--dry-run", action="store_true", help="print what a look would do and end; write nothing")
    add_resync_argument(parser)
    add_arguments(parser, port=PORT)
    return parser


if __name__ == "__main__":
    sys.exit(main())
