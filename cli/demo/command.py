"""`npufleet demo`: the options, a folder to play in, and an end at any signal that stops everything as Ctrl-C does."""

from __future__ import annotations

import argparse
import signal
import tempfile
from pathlib import Path
from typing import Any

from cli.checkout import require_checkout
from cli.errors import ExitCode

_DESCRIPTION = """\
Runs the main job of npufleet on this machine: policies are committed to a Git repository, HEAD is applied to a real
Kubernetes API server, the controller compiles orders for each node, a binder on each (simulated) node carries them out
by sysfs writes, a profile writer cuts cards into vGPUs, a publisher offers the devices, and kubectl get npunodepolicies
and vgpuprofilemaps tell what has become of it. Then a pod that asks for a device by product and NUMA node, a commit
that gives half of the devices back, one that mixes vGPU sizes, a change past Git that is refused, a reboot, and a
restart of every daemon. Needs no hardware, no container engine and no root.
"""


def register(subparsers: Any) -> None:
    """Add `demo` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="the main job on this machine: real API server and scheduler, simulated nodes",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave everything running until Ctrl-C and say how to use it"
    )
    parser.add_argument(
        "--directory", type=Path, help="where to keep data and logs (default: a new folder, removed at the end)"
    )
    parser.add_argument(
        "--bin-dir", type=Path, help="use the etcd and Kubernetes binaries of this folder, build nothing"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every step of the story came true. Raises CommandError."""
    require_checkout("the demo")
    # Inside, because it needs certificates and the like: `npufleet explain` must not pay for them.
    from cli.demo.play import play

    # SIGINT too: a shell that starts the demo in the background hands it down as ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    if arguments.directory is not None:
        play(arguments.directory.resolve(), bin_dir=arguments.bin_dir, keep=arguments.keep)
        return ExitCode.CLEAN
    with tempfile.TemporaryDirectory(prefix="npufleet-demo-", ignore_cleanup_errors=True) as directory:
        play(Path(directory), bin_dir=arguments.bin_dir, keep=arguments.keep)
    return ExitCode.CLEAN


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
