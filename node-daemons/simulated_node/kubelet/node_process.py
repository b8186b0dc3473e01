"""The machine as a node of a cluster: its kernel, its server and its kubelet in one process."""

import asyncio
import signal
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from runtime import logs, process
from runtime.api import Api
from simulated_node.kernel import SimulatedKernel
from simulated_node.kubelet.dra.node_devices import NodeDevices
from simulated_node.kubelet.dra.slices import GRACE_SECONDS
from simulated_node.kubelet.kubelet import PREPARE_AGAIN_SECONDS, SimulatedKubelet
from simulated_node.kubelet.life import KubeletControl, KubeletLife
from simulated_node.kubelet.objects import NodeFacts
from simulated_node.server import SimulatedKernelServer


def run_node(
    kernel: SimulatedKernel,
    server: SimulatedKernelServer,
    *,
    name: str,
    labels: dict[str, str],
    kubeconfig: Path,
    prepare_again_seconds: float = PREPARE_AGAIN_SECONDS,
    slice_grace_seconds: float = GRACE_SECONDS,
) -> int:
    """Run the kubelet until SIGTERM; the exit code."""
    logs.setup("simulated-node", log_format="text")
    machine = _Machine(kernel, name, labels)

    async def main(running: process.Process) -> None:
        # By now there is somebody to take the signals that the machine has kept since its start.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(Api.connect(kubeconfig=kubeconfig, component="simulated-kubelet"))

            def started() -> tuple[SimulatedKubelet, NodeDevices]:
                devices = NodeDevices(
                    api, kernel.host(), name, lambda: kernel.boot_id, grace_seconds=slice_grace_seconds
                )
                kubelet = SimulatedKubelet(api, machine.facts, devices, prepare_again_seconds=prepare_again_seconds)
                return kubelet, devices

            life = KubeletLife(started)
            loop = asyncio.get_running_loop()

            def rebooted(_boot_id: str) -> None:
                machine.booted = datetime.now(UTC)
                loop.call_soon_threadsafe(life.rebooted)

            server.actions.on_reboot = rebooted
            server.actions.kubelet = KubeletControl(life, loop)
            running.supervise(life.run(), "kubelet")
            await running.stop.wait()

    return process.run(main)


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
