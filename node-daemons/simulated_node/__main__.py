"""``python -m simulated_node``: one simulated machine until SIGTERM, with a kubelet when there is a kubeconfig."""

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from runtime import logs, process
from simulated_node.description import DescriptionError, HostDescription
from simulated_node.description_files import load_description, shipped_descriptions
from simulated_node.kernel import SimulatedKernel
from simulated_node.kubelet.kubelet import PodApi, SimulatedKubelet
from simulated_node.kubelet.objects import NodeFacts
from simulated_node.server import SimulatedKernelServer

_USAGE = 2


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
    logs.setup("simulated-node", log_format="text")
    return process.run(lambda running: _serve(running, options, description))


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
        "--label", action="append", default=[], type=_label, metavar="K=V", help="a label of the Node; may be repeated"
    )
    return parser


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


async def _serve(running: process.Process, options: argparse.Namespace, description: HostDescription) -> None:
    async with AsyncExitStack() as stack:
        try:
            kernel = stack.enter_context(SimulatedKernel(options.root, description))
        except ValueError as error:
            running.fail(str(error))
            return
        server = stack.enter_context(SimulatedKernelServer(kernel))
        if options.kubeconfig is not None:
            machine = _Machine(kernel, options.node_name, {**description.labels, **dict(options.label)})
            api = await stack.enter_async_context(
                PodApi.connect(kubeconfig=options.kubeconfig, component="simulated-kubelet")
            )
            # connect() makes an object of the class that it is called on.
            kubelet = SimulatedKubelet(cast(PodApi, api), machine.facts)
            loop = asyncio.get_running_loop()

            def rebooted(_boot_id: str) -> None:
                machine.booted = datetime.now(UTC)
                loop.call_soon_threadsafe(kubelet.rebooted)

            server.actions.on_reboot = rebooted
            running.supervise(kubelet.run(), "kubelet")
        print(json.dumps({"ready": True, "root": str(kernel.root), "bootID": kernel.boot_id}), flush=True)
        await running.stop.wait()


class _Machine:
    """What the kubelet describes."""

    def __init__(self, kernel: SimulatedKernel, name: str, labels: dict[str, str]) -> None:
        self._kernel = kernel
        self._name = name
        self._labels = labels
        self.booted = datetime.now(UTC)

    def facts(self) -> NodeFacts:
        return NodeFacts(
            name=self._name,
            labels=self._labels,
            kernel_version=self._kernel.description.kernel.release,
            boot_id=self._kernel.boot_id,
            booted=self.booted.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


if __name__ == "__main__":
    sys.exit(main())
