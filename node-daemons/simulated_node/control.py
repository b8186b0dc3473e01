"""Client for tests and the demo: does to a served simulated machine what the world does to a real one."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_host.host.write_child import ask_simulated_kernel
from simulated_node.kernel import PRIVATE
from simulated_node.records import WriteRecord, read_records

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

    def open_device(
        self, node_path: str, *, pid: int = 4242, comm: str = "qemu-kvm", cgroup: str = "/machine.slice"
    ) -> int:
        return int(self.act("open_device", node=node_path, pid=pid, comm=comm, cgroup=cgroup))

    def close_device(self, node_path: str, *, pid: int | None = None) -> None:
        self.act("close_device", node=node_path, pid=pid)

    def hot_remove(self, address: str) -> None:
        self.act("hot_remove", address=address)

    def hot_add(self, device: dict[str, Any]) -> None:
        """``device`` in the form of a description."""
        self.act("hot_add", device=device)

    def reboot(self) -> str:
        return str(self.act("reboot"))

    def fail_next(self, pattern: str, errno: str, times: int = 1) -> None:
        self.act("fail_next", pattern=pattern, errno=errno, times=times)

    def swallow_next(self, pattern: str, times: int = 1) -> None:
        self.act("swallow_next", pattern=pattern, times=times)

    def lose_events(self) -> None:
        self.act("lose_events")

    def block(self, pattern: str) -> RemoteBlock:
        return RemoteBlock(self, int(self.act("block", pattern=pattern)))

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
