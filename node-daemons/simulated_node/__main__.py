"""``python -m simulated_node``: one simulated machine until SIGTERM, with a kubelet when there is a kubeconfig."""

import argparse
import json
import signal
import sys
from pathlib import Path

from simulated_node.description import DescriptionError, HostDescription
from simulated_node.description_files import load_description, shipped_descriptions
from simulated_node.kernel import SimulatedKernel
from simulated_node.server import SimulatedKernelServer

_USAGE = 2
_FAILED = 3
_STOP = (signal.SIGTERM, signal.SIGINT)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if (options.node_name is None) != (options.kubeconfig is None):
        sys.stderr.write("--node-name and --kubeconfig go together\n")
        return _USAGE
    try:
        description = load_description(options.description)
    except DescriptionError as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE
    try:
        return _serve(options, description)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulated_node", description=__doc__)
    parser.add_argument(
        "--description",
        required=True,
        metavar="NAME|FILE",
        help=f"what the machine consists of; shipped: {', '.join(shipped_descriptions())}",
    )
    parser.add_argument(
        "--root", required=True, type=Path, metavar="DIR", help="where its files go: an empty directory"
    )
    parser.add_argument("--node-name", metavar="N", help="register as this Node (with --kubeconfig)")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the identity of the node's kubelet")
    parser.add_argument(
        "--prepare-again-seconds",
        type=float,
        default=13.0,
        metavar="N",
        help="when claims that could not be prepared are tried again (default 13, as by a real kubelet)",
    )
    parser.add_argument(
        "--slice-grace-seconds",
        type=float,
        default=30.0,
        metavar="N",
        help="how long ResourceSlices of a driver stay after its last plugin went (default 30, as by a real kubelet)",
    )
    parser.add_argument(
        "--label", action="append", default=[], type=_label, metavar="K=V", help="a label of the Node; may be repeated"
    )
    return parser


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _serve(options: argparse.Namespace, description: HostDescription) -> int:
    # Until somebody waits for it, a signal to stop is kept; threads that start now must not take it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    with SimulatedKernel(options.root, description) as kernel, SimulatedKernelServer(kernel) as server:
        print(json.dumps({"ready": True, "root": str(kernel.root), "bootID": kernel.boot_id}), flush=True)
        if options.kubeconfig is None:
            signal.sigwait(_STOP)
            return 0
        # The libraries of the API take longer to load than the machine to boot; a machine alone does without.
        from simulated_node.kubelet.node_process import run_node

        labels = {**description.labels, **dict(options.label)}
        return run_node(
            kernel,
            server,
            name=options.node_name,
            labels=labels,
            kubeconfig=options.kubeconfig,
            prepare_again_seconds=options.prepare_again_seconds,
            slice_grace_seconds=options.slice_grace_seconds,
        )


if __name__ == "__main__":
    sys.exit(main())
