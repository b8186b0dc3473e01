"""Options that every daemon of a node has, in the same words: which node, where its root is, how often to look."""

import argparse
import os
from pathlib import Path


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


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return value
