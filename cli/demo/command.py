"""`npufleet demo`: sets the stage, tells the story, and leaves nothing running unless asked to."""

from __future__ import annotations

import argparse
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cli.cluster.control_plane import ControlPlane
from cli.cluster.kubectl import find_kubectl
from cli.cluster.progress import Progress, duration
from cli.demo.fleet import Fleet
from cli.demo.story import ATOM, Story

_DESCRIPTION = """\
Runs the main job of npufleet on this machine: policies are committed to a Git repository, HEAD is applied to a real
Kubernetes API server, the controller compiles orders for each node, a binder on each (simulated) node carries them out
by sysfs writes, and kubectl get npunodepolicies tells what has become of it. Then a commit that gives half of the
devices back, a reboot, and a restart of every binder. Needs no hardware, no container engine and no root.
"""


def register(subparsers: Any) -> None:
    """Add `demo` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="the main job on this machine: real API server, simulated nodes",
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
    """Exit code 0 when every step of the story came true."""
    signal.signal(signal.SIGTERM, _interrupt)
    if arguments.directory is not None:
        return _play(arguments.directory.resolve(), arguments)
    # Not below $TMPDIR: the simulated kernels listen on Unix sockets, whose paths may be 107 bytes long at most.
    with tempfile.TemporaryDirectory(prefix="npufleet-demo-", ignore_cleanup_errors=True) as directory:
        return _play(Path(directory), arguments)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _play(directory: Path, arguments: argparse.Namespace) -> int:
    progress = Progress()
    directory.mkdir(parents=True, exist_ok=True)
    with ControlPlane.start(directory / "control-plane", bin_dir=arguments.bin_dir) as plane:
        started = time.monotonic()
        fleet = Fleet(plane, directory)
        try:
            story = Story(plane, fleet, directory, progress)
            story.install()
            story.first_commit()
            story.second_commit()
            story.reboot()
            story.quiet()
            print(f"\nDone in {duration(time.monotonic() - started)}.", flush=True)
            if arguments.keep:
                _keep(plane, fleet, directory)
        finally:
            with progress.step("Stopping", "Everything stopped"):
                fleet.stop()
    return 0


def _keep(plane: ControlPlane, fleet: Fleet, directory: Path) -> None:
    print(
        f"""
It keeps running. In another terminal:

  export KUBECONFIG={plane.admin_kubeconfig}
  {find_kubectl()} get npunodepolicies,npunodestates
  {find_kubectl()} get npunodestate {ATOM} -o yaml

  cd {directory / "policies"}    # edit, commit, then apply what you committed:
  {find_kubectl()} apply --server-side -k .

  ls {fleet.nodes[ATOM].root / "sys/bus/pci/drivers"}
  tail -f {fleet.nodes[ATOM].root / ".simulated-kernel/writes.jsonl"}

Logs: {directory / "logs"}
Ctrl-C stops everything.""",
        flush=True,
    )
    try:
        while True:
            fleet.check()
            threading.Event().wait(1)
    except KeyboardInterrupt:
        print()
