"""What a test or the demo may do to a simulated machine from outside, by name: the ``control`` requests of its
server.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simulated_node import wire
from simulated_node.description import DescriptionError, Device
from simulated_node.description_files import parse_device
from simulated_node.faults import Block
from simulated_node.kernel import SimulatedKernel


class KubeletActions(Protocol):
    """What can be done to the kubelet of a machine that is a node."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def serve(self, resource: str, ids: Sequence[str]) -> None: ...
    def give(self, namespace: str, pod: str, resource: str, ids: Sequence[str]) -> None: ...


class ControlActions:
    """Runs requests against a kernel. ``on_reboot`` is called with each new boot id; ``kubelet`` is there on a node."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        self._kernel = kernel
        self._blocks: dict[int, Block] = {}
        self._next_block = itertools.count(1)
        self.on_reboot: Callable[[str], None] = lambda _boot_id: None
        self.kubelet: KubeletActions | None = None

    def act(self, message: dict[str, Any]) -> Any:
        """The answer's value; OSError from the kernel, WireError for what is no request."""
        kernel = self._kernel
        match message.get("action"):
            case "open_device":
                return kernel.open_device(
                    wire.text(message, "node"),
                    pid=wire.number(message, "pid", 4242),
                    comm=wire.text({"comm": "qemu-kvm", **message}, "comm"),
                    cgroup=wire.text({"cgroup": "/machine.slice", **message}, "cgroup"),
                    pod_uid=None if message.get("pod_uid") is None else wire.text(message, "pod_uid"),
                    takes_device=message.get("takes_device") is not False,
                )
            case "close_device":
                pid = message.get("pid")
                kernel.close_device(
                    wire.text(message, "node"), pid=None if pid is None else wire.number(message, "pid", 0)
                )
            case "hot_remove":
                kernel.hot_remove(wire.text(message, "address"))
            case "hot_add":
                kernel.hot_add(_device(message.get("device")), announced=message.get("announced") is not False)
            case "rebuild":
                self._rebuild(message)
            case "mix_vgpu_sizes":
                kernel.mix_vgpu_sizes(wire.text(message, "address"), message.get("allowed") is True)
            case "set_mig":
                kernel.set_mig(wire.text(message, "address"), message.get("on") is True)
            case "reload_driver":
                release = message.get("release")
                kernel.reload_driver(
                    wire.text(message, "driver"), release=None if release is None else wire.text(message, "release")
                )
            case "requests":
                return kernel.requests(wire.text(message, "node"))
            case "reboot":
                boot_id = kernel.reboot()
                self.on_reboot(boot_id)
                return boot_id
            case "boot_id":
                return kernel.boot_id
            case "sleeping":
                return kernel.sleeping
            case "fail_next":
                try:
                    kernel.fail_next(wire.text(message, "pattern"), wire.text(message, "errno"), _times(message))
                except ValueError as error:
                    raise wire.WireError(f"errno: {error}") from None
            case "swallow_next":
                kernel.swallow_next(wire.text(message, "pattern"), _times(message))
            case "clear_faults":
                kernel.faults.clear()
            case "lose_events":
                kernel.lose_events()
            case "drop_events":
                kernel.drop_events(wire.number(message, "times", 1), silently=message.get("silently") is True)
            case "block":
                number = next(self._next_block)
                self._blocks[number] = kernel.block(wire.text(message, "pattern"), wire.seconds(message, "seconds"))
                return number
            case "release":
                self._block(message).release()
            case "blocked":
                return self._block(message).waiting
            case "start_kubelet" | "stop_kubelet" | "serve_plugin_devices" | "give_plugin_devices":
                self._act_on_kubelet(message)
            case other:
                raise wire.WireError(f"action: unknown {other!r}")
        return None

    def _act_on_kubelet(self, message: dict[str, Any]) -> None:
        kubelet = self.kubelet
        if kubelet is None:
            raise wire.WireError("the machine has no kubelet: it was started without --kubeconfig")
        match message["action"]:
            case "start_kubelet":
                kubelet.start()
            case "stop_kubelet":
                kubelet.stop()
            case "serve_plugin_devices":
                kubelet.serve(wire.text(message, "resource"), [str(one) for one in wire.listing(message, "ids")])
            case _:
                pod = wire.text(message, "namespace"), wire.text(message, "pod")
                ids = [str(one) for one in wire.listing(message, "ids")]
                kubelet.give(*pod, wire.text(message, "resource"), ids)

    def _rebuild(self, message: dict[str, Any]) -> None:
        groups = wire.mapping(message, "groups")
        try:
            self._kernel.rebuild(
                move=wire.mapping(message, "move"),
                groups={int(old): int(new) for old, new in groups.items()},
                add=[_device(fields) for fields in wire.listing(message, "add")],
                remove=[str(address) for address in wire.listing(message, "remove")],
            )
        except ValueError as error:
            raise wire.WireError(str(error)) from None

    def _block(self, message: dict[str, Any]) -> Block:
        number = wire.number(message, "block", 0)
        if number not in self._blocks:
            raise wire.WireError(f"block: there is no {number}")
        return self._blocks[number]


def _device(fields: Any) -> Device:
    try:
        return parse_device(fields if isinstance(fields, dict) else {})
    except DescriptionError as error:
        raise wire.WireError(str(error)) from None


def _times(message: dict[str, Any]) -> int | None:
    """How often; null: always."""
    return None if "times" in message and message["times"] is None else wire.number(message, "times", 1)
