"""Client for tests and the demo: does to a served simulated machine what the world does to a real one."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from node_host.host.write_child import ask_simulated_kernel
from simulated_node.records import WriteRecord, read_records
from simulated_node.root import PRIVATE

_POLL_SECONDS = 0.005


class RemoteBlock:
    """A hold on matching writes, as ``SimulatedKernel.block`` gives one."""

    def __init__(self, control: "Control", number: int) -> None:
        self._control = control
        self._number = number

    def release(self) -> None:
        self._control.act("release", block=self._number)

    def wait_until_blocked(self, timeout_seconds: float = 5) -> bool:
        """Whether a write has come to sleep here in time."""
        return self._control.wait_until(lambda: bool(self._control.act("blocked", block=self._number)), timeout_seconds)


class Control:
    """Each call is one request; refusals come back as OSError with the simulated kernel's errno."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def act(self, action: str, **arguments: Any) -> Any:
        answer = ask_simulated_kernel(str(self.root), {"op": "control", "action": action, **arguments})
        return answer.get("value")

    @property
    def boot_id(self) -> str:
        return str(self.act("boot_id"))

    @property
    def sleeping(self) -> list[str]:
        """The paths of the writes that sleep now."""
        return [str(path) for path in self.act("sleeping")]

    @property
    def writes(self) -> list[WriteRecord]:
        """Every order so far, over all runs of the machine."""
        return read_records(self.root / PRIVATE / "writes.jsonl")

    def stop_kubelet(self) -> None:
        """As a kubelet that is upgraded: it plays no pods and answers nobody until ``start_kubelet``."""
        self.act("stop_kubelet")

    def start_kubelet(self) -> None:
        """It deletes the node's ResourceSlices, and registers plugins anew."""
        self.act("start_kubelet")

    def serve_plugin_devices(self, resource: str, ids: Sequence[str]) -> None:
        """A device plugin serves these, by the kubelet's word; none: it is gone."""
        self.act("serve_plugin_devices", resource=resource, ids=list(ids))

    def give_plugin_devices(self, namespace: str, pod: str, resource: str, ids: Sequence[str]) -> None:
        """A pod that runs has these devices of a device plugin, by the kubelet's word."""
        self.act("give_plugin_devices", namespace=namespace, pod=pod, resource=resource, ids=list(ids))

    def open_device(
        self,
        node_path: str,
        *,
        pid: int = 4242,
        comm: str = "qemu-kvm",
        cgroup: str = "/machine.slice",
        pod_uid: str | None = None,
        takes_device: bool = True,
    ) -> int:
        """A process opens a node of /dev, through a VFIO group a device as well; its descriptor there.

        With ``pod_uid`` it is a process of that pod, whatever ``cgroup`` says.
        """
        process = {"pid": pid, "comm": comm, "cgroup": cgroup, "takes_device": takes_device}
        return int(self.act("open_device", node=node_path, pod_uid=pod_uid, **process))

    def close_device(self, node_path: str, *, pid: int | None = None) -> None:
        self.act("close_device", node=node_path, pid=pid)

    def hot_remove(self, address: str) -> None:
        self.act("hot_remove", address=address)

    def mix_vgpu_sizes(self, address: str, allowed: bool) -> None:
        self.act("mix_vgpu_sizes", address=address, allowed=allowed)

    def set_mig(self, address: str, on: bool) -> None:
        """Somebody turns MIG mode of a card on or off."""
        self.act("set_mig", address=address, on=on)

    def reload_driver(self, driver: str, *, release: str | None = None) -> None:
        """The driver's module is taken out and loaded again, as another release if one is given."""
        self.act("reload_driver", driver=driver, release=release)

    def requests(self, node_path: str) -> int:
        """How many operations of this boot have asked who holds the node to let its device go."""
        return int(self.act("requests", node=node_path))

    def hot_add(self, device: dict[str, Any], *, announced: bool = True) -> None:
        """``device`` in the form of a description; one that is not announced waits for a rescan."""
        self.act("hot_add", device=device, announced=announced)

    def rebuild(
        self,
        *,
        move: Mapping[str, str] | None = None,
        groups: Mapping[int, int] | None = None,
        add: Sequence[dict[str, Any]] = (),
        remove: Collection[str] = (),
    ) -> None:
        """What is different from the next reboot on; see ``description_changes``."""
        by_group = {str(old): str(new) for old, new in (groups or {}).items()}
        self.act("rebuild", move=dict(move or {}), groups=by_group, add=list(add), remove=list(remove))

    def reboot(self) -> str:
        return str(self.act("reboot"))

    def fail_next(self, pattern: str, errno: str, times: int | None = 1) -> None:
        self.act("fail_next", pattern=pattern, errno=errno, times=times)

    def swallow_next(self, pattern: str, times: int | None = 1) -> None:
        self.act("swallow_next", pattern=pattern, times=times)

    def clear_faults(self) -> None:
        self.act("clear_faults")

    def lose_events(self) -> None:
        self.act("lose_events")

    def drop_events(self, times: int = 1, *, silently: bool = False) -> None:
        self.act("drop_events", times=times, silently=silently)

    def block(self, pattern: str, seconds: float | None = None) -> RemoteBlock:
        """Until it is released, or each operation for so long."""
        return RemoteBlock(self, int(self.act("block", pattern=pattern, seconds=seconds)))

    def wait_until_sleeping(self, path: str, timeout_seconds: float = 5) -> bool:
        """Whether a write to the path sleeps in time."""
        return self.wait_until(lambda: path in self.sleeping, timeout_seconds)

    @staticmethod
    def wait_until(holds: Callable[[], bool], timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True
