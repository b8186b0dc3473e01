"""`npufleet-profile-writer`: the daemon, one pass of it, or the next steps of one pass."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from node_host.daemon_options import add_node_arguments, add_pass_arguments, add_resync_argument, desired_of
from node_host.file_pass import orders_of, run_pass
from node_host.state_record import DesiredFileError
from profile_writer.build import build_writer
from profile_writer.executing import COMPONENT
from profile_writer.text import has_findings, show
from profile_writer.tools import NVIDIA_SMI, SRIOV_MANAGE, ToolPaths
from runtime import logs
from runtime.settings import add_arguments, from_arguments

PORT: Final = 9446

_DESCRIPTION = """\
Gives the virtual functions of this node's cards the vGPU profiles that its NPUNodeState orders, again after each boot,
load or upgrade of the driver, and reports what each carries.

It enables the functions of a card, sets its mixed-size mode where a layout has several sizes, and gives types by name,
as the driver numbers them now. It never changes a function that is in use or that pods may have, nor a card that is in
another mode. What each card had before is kept in /var/lib/npufleet/writer/record.json. Its end clears nothing.
"""
_EPILOG = """\
examples:
  npufleet-profile-writer --node worker-1                              the daemon of a node
  npufleet-profile-writer --node worker-1 --dry-run                    what it would do next; nothing is written
  npufleet-profile-writer --once --desired state.yaml --host-root /    one pass from a file, without an API server

exit codes: 0 as ordered, or stopped as asked; 1 cards are blocked or failed, or orders are held (--once, --dry-run);
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
    paths = ToolPaths(arguments.sriov_manage, arguments.nvidia_smi)
    if desired is not None:
        _, writer = build_writer(arguments.host_root, paths)
        make = writer.dry_run if arguments.dry_run else writer.run
        shown = partial(show, dry_run=arguments.dry_run)
        return run_pass(lambda: make(orders_of(desired)), show=shown, has_findings=has_findings)
    # The API client takes most of the start-up, and orders from a file need none.
    from profile_writer.service import run_daemon, run_once

    if arguments.once or arguments.dry_run:
        return run_once(settings, arguments, paths)
    return run_daemon(settings, arguments, paths)


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
    parser.add_argument(
        "--sriov-manage",
        default=SRIOV_MANAGE,
        metavar="PATH",
        help=f"the vendor's program that enables virtual functions, as a path of the host (default {SRIOV_MANAGE})",
    )
    parser.add_argument(
        "--nvidia-smi",
        default=NVIDIA_SMI,
        metavar="PATH",
        help=f"the vendor's program that tells and sets modes of a card, likewise (default {NVIDIA_SMI})",
    )
    add_arguments(parser, port=PORT)
    return parser


if __name__ == "__main__":
    sys.exit(main())
