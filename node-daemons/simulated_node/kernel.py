"""The simulated kernel of one host: state, files and log, safe to use from many threads.

Orders change the state under one lock; an order that sleeps (an unbind of a device in use) gives the lock up, so that
everything else goes on. After each change the files follow before the order returns, then the events go out.
"""

import errno as errnos
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from node_host.host.protocol import HostWithTools, ToolResult
from simulated_node.description import Device, HostDescription, VgpuType
from simulated_node.description_changes import rebuilt
from simulated_node.description_files import known_drivers
from simulated_node.faults import Block, Faults
from simulated_node.in_process import InProcessHost
from simulated_node.model import handles, hotplug, modules, reload, vgpu
from simulated_node.model.attributes import VANISHED, write_attribute
from simulated_node.model.boot import boot
from simulated_node.model.state import Machine
from simulated_node.reads import ReadGate
from simulated_node.records import WriteLog, Writer, WriteRecord
from simulated_node.root import PRIVATE, claim, count_boot
from simulated_node.rules.registry import KernelError, rule
from simulated_node.sleeping import Sleepers
from simulated_node.subscriptions import Listeners, Subscription
from simulated_node.tools import TOOLS, sriov_manage
from simulated_node.tree.entries import File, Memory, lookup
from simulated_node.tree.materialise import Materialiser
from simulated_node.tree.render import KERNEL_DIRECTORIES, render
from simulated_node.tree.unwritten import TreeFiles, UnwrittenTree

T = TypeVar("T")

NO_ATTRIBUTE = rule(
    "write.no-such-file",
    "A write to a name that is not there fails; nothing is created.",
    errno="ENOENT",
    source="open(2)",
)
IS_DIRECTORY = rule("write.directory", "A directory is not written to.", errno="EISDIR", source="open(2)")
READ_ONLY = rule(
    "write.read-only",
    "An attribute without a store is not opened for writing, not even by root.",
    errno="EACCES",
    source="fs/kernfs/file.c kernfs_fop_open",
)
UNSUPPORTED = rule(
    "write.not-simulated",
    "An attribute that a real kernel lets be written, and this simulated one does not support, says so.",
    errno="EPERM",
    source="limit of the simulation",
)
TMPFS = rule(
    "boot.tmpfs-emptied",
    "/run and /dev start empty at every boot; files on disk (/var/lib, /etc) stay.",
    source="tmpfs(5); devtmpfs",
)


class CardModes(NamedTuple):
    """Modes of a card on its driver; None: it has no such mode."""

    mig: bool | None
    mixed: bool


class SimulatedKernel:
    """A running machine below ``root``. Closing it leaves its files; starting one over them is a reboot of that
    machine.
    """

    event_capacity = 4096

    def __init__(
        self,
        root: Path | str,
        description: HostDescription,
        *,
        clock: Callable[[], float] = time.monotonic,
        in_memory: bool = False,
    ) -> None:
        """With ``in_memory`` the kernel's own files (/sys, /proc, /dev) are for the host ports of this object alone:
        none is written, which is most of what a machine costs.
        """
        self.root = Path(root).absolute()
        self.description = description
        self._lock = claim(self.root)
        private = self.root / PRIVATE
        self._changed = threading.Condition(threading.RLock())
        self._operations = itertools.count(1)
        self._listeners = Listeners()
        self._closed = False
        self._known = known_drivers()
        self._faults = Faults(self._changed, clock, lambda: self._reads.update(self._machine))
        self._sleepers = Sleepers(self._changed, self._faults, self._follow)
        self._reads = ReadGate(self.root, self._faults, self._sleepers)
        self._log = WriteLog(private / "writes.jsonl")
        for directory in (*KERNEL_DIRECTORIES, "/run"):
            shutil.rmtree(self.root / directory[1:], ignore_errors=True)
        for path in description.tools:
            _place_tool(self.root, path)
        self._memory = Memory()
        self._unwritten = UnwrittenTree(self.root) if in_memory else None
        self._files = self._unwritten or Materialiser(self.root, private / "staging")
        self._machine = self._boot()
        self._files.replace(render(self._machine, self._memory))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wake what sleeps (it fails) and stop taking orders."""
        with self._changed:
            self._closed = True
            self._listeners.end(errnos.ESHUTDOWN)
            self._sleepers.go_down()
            self._changed.wait_for(lambda: not self._sleepers.paths)
            self._log.close()
            self._lock.close()

    def host(self) -> HostWithTools:
        """The host port of this kernel, for daemons in the same process."""
        return InProcessHost(self)

    def files_in_memory(self, path: str) -> TreeFiles | None:
        """Where a path is read that is in no file, None where there are files."""
        unwritten = self._unwritten
        return unwritten.files if unwritten is not None and unwritten.holds(path) else None

    @property
    def boot_id(self) -> str:
        return self._machine.boot_id

    @property
    def writes(self) -> list[WriteRecord]:
        """Every finished order since this kernel object was made, in the order of completion."""
        with self._changed:
            return list(self._log.records)

    @property
    def sleeping(self) -> list[str]:
        """The paths of the writes that sleep now, "read:<path>" for reads (empty: an event of ours that does)."""
        with self._changed:
            return list(self._sleepers.paths)

    # What writers do.

    def write(self, path: str, data: bytes, *, writer: Writer | None = None) -> None:
        """One write(2); OSError with the kernel's errno. Sleeps as the kernel does."""
        writer = writer or Writer.of(os.getpid())
        with self._changed:
            self._ordered(writer, path, data, lambda operation: self._write(path, data, operation))

    def before_read(self, path: str, kind: str = "read") -> None:
        """What a host port asks before it reads a file, a directory ("list") or a link ("link"): OSError, or sleep."""
        if not self._reads.closed:
            return
        with self._changed:
            try:
                self._reads.before(kind, path, next(self._operations), self._machine, lambda: self._files.tree)
            except KernelError as error:
                raise OSError(error.number, os.strerror(error.number), path) from None

    def load_module(self, name: str, *, writer: Writer | None = None) -> None:
        """modprobe."""
        writer = writer or Writer.of(os.getpid())
        path = f"module:{name.replace('-', '_')}"

        def load(operation: int) -> None:
            if self._fault(path):
                return
            self._retry(path, operation, lambda: modules.load_module(self._machine, name, operation))

        with self._changed:
            self._ordered(writer, path, b"", load)

    def run_tool(self, path: str, arguments: Sequence[str], *, writer: Writer | None = None) -> ToolResult:
        """Run a program of the host to its end. FileNotFoundError where the description names none."""
        writer = writer or Writer.of(os.getpid())
        if path not in self.description.tools:
            raise FileNotFoundError(errnos.ENOENT, "the host has no such program", path)
        name = f"tool:{path}"
        answer: list[ToolResult] = []

        def begin(operation: int) -> None:
            self._sleepers.hold(operation, name, name)
            try:
                if self._fault(name):
                    answer.append(sriov_manage.lying())
            except OSError:
                answer.append(sriov_manage.locked(arguments))

        with self._changed:
            self._ordered(writer, name, " ".join(arguments).encode(), begin)
        # What it writes is written as by any process: others go on meanwhile.
        return answer[0] if answer else TOOLS[path](self, arguments, writer)

    def subscribe(self, wake: Callable[[], None]) -> Subscription:
        """A listener for events from now on; it ends with ESHUTDOWN when the machine goes down."""
        with self._changed:
            return self._listeners.add(wake, self.event_capacity)

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._changed:
            self._listeners.remove(subscription)

    @property
    def listeners(self) -> int:
        """How many listen for events now."""
        with self._changed:
            return len(self._listeners)

    # What happens to the machine.

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
        node = node_path.removeprefix("/dev/")
        cgroup = cgroup if pod_uid is None else handles.pod_cgroup(pod_uid)
        return self._happens(
            lambda _: handles.open_node(
                self._machine, node, pid=pid, comm=comm, cgroup=cgroup, takes_device=takes_device
            )
        )

    def close_device(self, node_path: str, *, pid: int | None = None) -> None:
        """That process, or each that does, lets a node go."""
        self._happens(lambda _: handles.close_node(self._machine, node_path.removeprefix("/dev/"), pid=pid))

    def mix_vgpu_sizes(self, address: str, allowed: bool) -> None:
        """The vendor's tool lets the vGPU types of a card differ in size, or not."""
        self._happens(lambda _: vgpu.mix_sizes(self._machine, self._machine.devices[address], allowed))

    def vgpu_cards(self) -> list[str]:
        """The cards of the machine that have a frame buffer for vGPUs."""
        with self._changed:
            return [one.address for one in self._machine.devices.values() if one.description.vgpu is not None]

    def card_modes(self, address: str) -> CardModes | None:
        """The modes of a card that its vendor's driver has; None of any other."""
        with self._changed:
            device = self._machine.devices.get(address)
            if device is None or not vgpu.is_card(self._machine, device):
                return None
            return CardModes(device.mig, device.mixed_sizes)

    def forget_mixed_sizes(self, address: str) -> None:
        """The card's VFs were made anew: whatever was set before is gone."""
        self._happens(lambda _: vgpu.wipe(self._machine, address))

    def set_mig(self, address: str, on: bool) -> None:
        """Somebody turns MIG mode of a card on or off."""
        self._happens(lambda _: vgpu.set_mig(self._machine, address, on))

    def reload_driver(
        self, driver: str, *, release: str | None = None, types: Mapping[str, Sequence[VgpuType]] | None = None
    ) -> None:
        """The driver's module is taken out and loaded again, as another ``release`` if one is given: then cards may
        have other ``types``, by address. Sleeps while a VFIO user holds a device of it.
        """
        with self._changed:
            self.description = reload.changed(self.description, self._known, driver, release, types or {})
        self._happens(lambda operation: reload.unload(self._machine, driver, operation))
        self._happens(lambda operation: reload.load(self._machine, self.description, self._known, driver, operation))

    def requests(self, node_path: str) -> int:
        """How many operations of this boot have asked who holds the node to let its device go."""
        with self._changed:
            return sum(1 for _, node in self._machine.requests if node == node_path.removeprefix("/dev/"))

    def hot_remove(self, address: str) -> None:
        """Pull a device out. Sleeps while a VFIO user holds it."""
        self._happens(lambda operation: hotplug.remove(self._machine, address, operation))

    def hot_add(self, device: Device, *, announced: bool = True) -> None:
        """Put a device into a slot; one that announces nothing waits for a rescan."""
        if announced:
            self._happens(lambda operation: hotplug.add(self._machine, device, operation))
        else:
            self._happens(lambda _: hotplug.insert(self._machine, device))

    def rebuild(
        self,
        *,
        move: Mapping[str, str] | None = None,
        groups: Mapping[int, int] | None = None,
        add: Sequence[Device] = (),
        remove: Collection[str] = (),
    ) -> None:
        """What is different from the next reboot on; see ``description_changes``. DescriptionError."""
        with self._changed:
            self.description = rebuilt(self.description, move=move or {}, groups=groups or {}, add=add, remove=remove)

    def reboot(self) -> str:
        """Switch off and on; the new boot id."""
        with self._changed:
            self._listeners.end(errnos.ESHUTDOWN)
            self._machine = self._boot()
            self._files.replace(render(self._machine, self._memory))
            for directory in ("/run", "/dev"):
                self._files.empty(directory)
            TMPFS.fires()
            self._sleepers.go_down()
            return self._machine.boot_id

    # Faults.

    @property
    def faults(self) -> Faults:
        return self._faults

    def fail_next(self, pattern: str, errno: str, times: int | None = 1) -> None:
        self._faults.fail_next(pattern, errno, times)

    def swallow_next(self, pattern: str, times: int | None = 1) -> None:
        self._faults.swallow_next(pattern, times)

    def block(self, pattern: str, seconds: float | None = None) -> Block:
        return self._faults.block(pattern, seconds)

    def time_passed(self) -> None:
        """For a clock that does not run by itself: what sleeps for a time looks again."""
        with self._changed:
            self._changed.notify_all()

    def lose_events(self) -> None:
        """Each listener of now loses what is still to come."""
        with self._changed:
            self._listeners.lose()

    def drop_events(self, times: int = 1, *, silently: bool = False) -> None:
        """The next events reach nobody; who lost some is told, as by the kernel, unless ``silently``."""
        with self._changed:
            self._listeners.drop(times, silently=silently)

    # Inside. Everything below runs with the lock held.

    def _boot(self) -> Machine:
        machine = boot(self.description, self._known, boots=count_boot(self.root))
        machine.fault = lambda name: self._faults.hit(name)[1]
        machine.held = lambda name, operation: self._faults.hold(operation, name)
        self._memory.clear()
        return machine

    def _ordered(self, writer: Writer, path: str, data: bytes, order: Callable[[int], None]) -> None:
        self._refuse_closed()
        result, rule_id = "EIO", None
        try:
            order(next(self._operations))
            result = "ok"
        except KernelError as error:
            result, rule_id = error.errno, error.rule.id
            # A kernel gives a number and no words; which rule it was is in the log.
            raise OSError(error.number, os.strerror(error.number), path) from None
        except OSError as error:
            result = errnos.errorcode.get(error.errno or 0, "EIO")
            raise
        finally:
            self._log.add(writer, path, data, result, rule_id)
            self._follow()
            self._changed.notify_all()

    def _happens(self, event: Callable[[int], T]) -> T:
        with self._changed:
            self._refuse_closed()
            operation = next(self._operations)
            try:
                return self._retry("", operation, lambda: event(operation))
            except KernelError as error:
                raise OSError(error.number, str(error)) from None
            finally:
                self._follow()
                self._changed.notify_all()

    def _write(self, path: str, data: bytes, operation: int) -> None:
        found = lookup(self._files.tree, path)
        if found is None:
            raise NO_ATTRIBUTE.refuses(f"there is no {path}")
        real, entry = found
        if not isinstance(entry, File):
            raise IS_DIRECTORY.refuses(f"{path} is a directory")
        if not entry.mode & 0o222:
            raise READ_ONLY.refuses(f"{path} is read-only")
        if entry.attribute is None:
            raise UNSUPPORTED.refuses(f"writing {path} is not supported by this simulated kernel")
        attribute = entry.attribute
        self._sleepers.hold(operation, path, real)
        if real not in self._files.tree:
            raise VANISHED.refuses(f"{path} went away")
        if not self._fault(path, real):
            self._retry(path, operation, lambda: write_attribute(self._machine, attribute, data, operation))

    def _fault(self, *names: str) -> bool:
        struck, errno = self._faults.hit(*names)
        if errno is not None:
            raise OSError(getattr(errnos, errno), os.strerror(getattr(errnos, errno)), names[0])
        return struck

    def _retry(self, path: str, operation: int, step: Callable[[], T]) -> T:
        return self._sleepers.retry(self._machine, path, operation, step)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise OSError(errnos.ESHUTDOWN, "the simulated kernel is closed")

    def _follow(self) -> bool:
        """Files, then events, follow the state; whether files did."""
        tree = render(self._machine, self._memory)
        changed = tree != self._files.tree
        if changed:
            self._files.replace(tree)
        self._reads.update(self._machine)
        events, self._machine.events = self._machine.events, []
        self._listeners.tell(events)
        return changed


def _place_tool(root: Path, path: str) -> None:
    """A program that is there to be found; the simulated kernel runs it."""
    place = root / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("#!/bin/false\n")
    place.chmod(0o755)
