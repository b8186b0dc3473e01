"""`npufleet-vfio-binder`: the daemon, one pass of it, or the plan of one pass."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from node_host.daemon_options import add_node_arguments, add_pass_arguments, add_resync_argument, desired_of
from node_host.state_record import DesiredFileError
from runtime import logs
from runtime.settings import add_arguments, from_arguments
from vfio_binder.binder import COMPONENT
from vfio_binder.file_pass import run_from_file

PORT: Final = 9445

_DESCRIPTION = """\
Makes the drivers of this node's accelerators what its NPUNodeState orders: to VFIO for virtual machines, and back to
the driver that they had. It reports the accelerators of the node and how far the orders are met.

It never touches a device that is in use, that the host needs (default route, mounted disk, boot display, and all that
share an IOMMU group with such a device), that is another one than ordered, or that no order speaks of and that it did
not bind itself. What each device had before is kept in /var/lib/npufleet/binder/journal.json. Its end unbinds nothing.
"""
_EPILOG = """\
examples:
  npufleet-vfio-binder --node worker-1                              the daemon of a node
  npufleet-vfio-binder --node worker-1 --dry-run                    what it would do now; nothing is written
  npufleet-vfio-binder --once --desired state.yaml --host-root /    one pass from a file, without an API server

exit codes: 0 as ordered, or stopped as asked; 1 devices are blocked or failed, or orders are held (--once, --dry-run);
2 wrong usage; 3 anything else (start it again)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; wrong usage exits with 2."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        settings = from_arguments(COMPONENT, arguments)
        desired = desired_of(parser, arguments)
    except (ValueError, DesiredFileError) as error:
        parser.error(str(error))
    if not arguments.host_root.is_dir():
        parser.error(f"--host-root {arguments.host_root} is no directory")
    logs.setup(settings.component, log_format=settings.log_format, level=settings.log_level)
    if desired is not None:
        return run_from_file(arguments.host_root, desired, dry_run=arguments.dry_run)
    # The API client takes most of the start-up, and orders from a file need none.
    from vfio_binder.service import run_daemon, run_once

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
    add_node_arguments(parser, names="the Node, and of its NPUNodeState")
    add_pass_arguments(parser)
    add_resync_argument(parser)
    add_arguments(parser, port=PORT)
    return parser


if __name__ == "__main__":
    sys.exit(main())
