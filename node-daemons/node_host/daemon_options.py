"""Options that daemons of a node share, in the same words: node, root, how often to look, one pass by hand."""

import argparse
import os
from pathlib import Path

from crds.models.node_state import NPUNodeState
from node_host.state_record import read_desired_file


def add_node_arguments(parser: argparse.ArgumentParser, *, names: str) -> None:
    """`--node` (``names`` says what it is the name of) and `--host-root`."""
    parser.add_argument(
        "--node",
        default=os.environ.get("NPUFLEET_NODE"),
        metavar="NAME",
        help=f"name of {names}; $NPUFLEET_NODE",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path(os.environ.get("NPUFLEET_HOST_ROOT") or "/"),
        metavar="DIR",
        help="where the host's root is mounted; $NPUFLEET_HOST_ROOT, default /",
    )


def add_resync_argument(parser: argparse.ArgumentParser) -> None:
    """`--resync-seconds`, from a second to a day."""
    parser.add_argument(
        "--resync-seconds",
        type=_seconds,
        default=60.0,
        metavar="N",
        help="look at the host at least this often, beside the kernel's events (default 60)",
    )


def add_pass_arguments(parser: argparse.ArgumentParser) -> None:
    """`--once`, `--dry-run` and `--desired`: one pass by hand instead of the daemon."""
    parser.add_argument("--once", action="store_true", help="make one pass, print plan and outcome, and end")
    parser.add_argument("--dry-run", action="store_true", help="print the plan of one pass and end; write nothing")
    parser.add_argument(
        "--desired",
        type=Path,
        metavar="FILE",
        help="with --once or --dry-run: take the orders from this NPUNodeState file; no API server is asked",
    )


def desired_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> NPUNodeState | None:
    """The orders of --desired, None without it, and checks of what goes together. Raises DesiredFileError."""
    if arguments.desired is None:
        if arguments.node is None:
            parser.error("--node NAME is needed (or $NPUFLEET_NODE)")
        return None
    if not (arguments.once or arguments.dry_run):
        parser.error("--desired goes with --once or --dry-run: the daemon follows the API server")
    desired = read_desired_file(arguments.desired)
    if arguments.node is not None and arguments.node != desired.metadata.name:
        parser.error(f"--desired {arguments.desired} is for node {desired.metadata.name}, not for {arguments.node}")
    return desired


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return value
