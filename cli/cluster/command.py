"""`npufleet cluster`: a throw-away Kubernetes for trying policies, without containers, images or root."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from cli.errors import ExitCode

DESCRIPTION = """\
Run a real Kubernetes 1.37 control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler) on this
machine: ordinary processes on loopback ports, no containers, no images, no root.

The first time, the programs are built from source with Go 1.26 or newer (some 10 to 15 minutes on two cores, 7 GB of
Go caches); they are kept in $NPUFLEET_CACHE (default ~/.cache/npufleet) and every later start takes seconds.
"""
EXAMPLES = """\
examples:
  eval "$(npufleet cluster up)"                          start, and point kubectl at it
  npufleet cluster up --no-controllers                   only etcd and the API server: enough to try manifests
  kubectl --kubeconfig "$(npufleet cluster kubeconfig)" get nodes
  npufleet cluster down                                  end it and forget its data
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cluster` and its verbs to the command line."""
    parser = subparsers.add_parser(
        "cluster",
        help="run a local Kubernetes control plane",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    up = verbs.add_parser(
        "up",
        help="start it and leave it running (again: add what is missing)",
        description="Start the control plane and leave it running. Prints `export KUBECONFIG=...` on stdout, progress "
        "on stderr. Run again, it starts only what is missing; after a reboot it takes up the old data.",
    )
    _directory(up)
    _bin_dir(up)
    up.add_argument(
        "--no-controllers",
        action="store_true",
        help="only etcd and the API server: nothing is scheduled and no garbage is collected",
    )
    up.add_argument("--audit", action="store_true", help="write an audit log (JSON lines) to DIR/audit.log")
    up.set_defaults(run=_up)

    down = verbs.add_parser(
        "down",
        help="end it and remove its data and credentials (logs stay)",
        description="End the processes of the control plane and remove its data and credentials. The logs stay.",
    )
    _directory(down)
    down.set_defaults(run=_down)

    kubeconfig = verbs.add_parser(
        "kubeconfig",
        help="print the path of the administrator's kubeconfig",
        description="Print the path of the administrator's kubeconfig of the running control plane.",
    )
    _directory(kubeconfig)
    kubeconfig.set_defaults(run=_kubeconfig)

    build = verbs.add_parser(
        "build",
        help="only build the programs, so that a later `up` or demo starts at once",
        description="Build the programs of the control plane where the cache has none, and print their paths.",
    )
    _bin_dir(build)
    build.add_argument(
        "--node", action="store_true", help="and what a node runs: kubelet, containerd, runc, plugins for its network"
    )
    build.add_argument(
        "--also",
        action="append",
        choices=["kubelet", "dra-test-driver"],
        default=[],
        help="build this one, too (may be repeated)",
    )
    build.set_defaults(run=_build)


def _bin_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bin-dir",
        type=Path,
        metavar="DIR",
        help="use the ready programs in DIR instead of building them (also $NPUFLEET_BIN_DIR)",
    )


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="where the cluster keeps its data, keys and logs (default: cluster/ in $NPUFLEET_CACHE or "
        "~/.cache/npufleet); different directories are different clusters",
    )


# The imports of certificates and the like stay inside: `npufleet lint --help` must not pay for them.


def _build(arguments: argparse.Namespace) -> int:
    from cli.cluster.programs.binaries import NODE_PROGRAMS, ensure_binaries
    from cli.cluster.run.components import COMPONENTS

    node = ("kubelet", *NODE_PROGRAMS) if arguments.node else ()
    for path in ensure_binaries([*COMPONENTS, *node, *arguments.also], bin_dir=arguments.bin_dir).values():
        print(path)
    return ExitCode.CLEAN


def _up(arguments: argparse.Namespace) -> int:
    from cli.cluster.run.control_plane import CONTROLLERS
    from cli.cluster.run.detached import default_directory, up
    from cli.progress import Progress

    # A terminated `up` must stop what it has started, as an interrupted one does.
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    progress = Progress()
    plane = up(
        arguments.directory or default_directory(),
        components=() if arguments.no_controllers else CONTROLLERS,
        audit=arguments.audit,
        bin_dir=arguments.bin_dir,
        progress=progress,
    )
    version = plane.api().call("GET", "/version")["gitVersion"]
    progress.say(f"Kubernetes {version} at {plane.url}")
    if plane.audit_log is not None:
        progress.say(f"audit log: {plane.audit_log}")
    print(f"export KUBECONFIG={shlex.quote(str(plane.admin_kubeconfig))}")
    return ExitCode.CLEAN


def _down(arguments: argparse.Namespace) -> int:
    from cli.cluster.run.detached import default_directory, down
    from cli.progress import Progress

    directory = arguments.directory or default_directory()
    progress = Progress()
    if not down(directory, progress=progress):
        progress.say(f"there is no cluster in {directory}")
    return ExitCode.CLEAN


def _kubeconfig(arguments: argparse.Namespace) -> int:
    from cli.cluster.run.detached import default_directory, running_kubeconfig

    print(running_kubeconfig(arguments.directory or default_directory()))
    return ExitCode.CLEAN


def _terminated(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)
