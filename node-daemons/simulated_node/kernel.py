"""The simulated kernel of one host: state, files and log, safe to use from many threads.

Orders change the state under one lock; an order that sleeps (an unbind of a device in use) gives the lock up, so that
everything else goes on. After each change the files follow before the order returns, then the events go out.
"""

import errno as errnos
import fcntl
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from node_host.host.protocol import Host
from simulated_node.description import Device, HostDescription
from simulated_node.description_files import known_drivers
from simulated_node.faults import Block, Faults
from simulated_node.in_process import InProcessHost
from simulated_node.model import handles, hotplug, modules
from simulated_node.model.attributes import VANISHED, write_attribute
from simulated_node.model.boot import boot
from simulated_node.model.state import Machine
from simulated_node.records import WriteLog, Writer, WriteRecord
from simulated_node.rules.registry import KernelError, WouldBlockError, rule
from simulated_node.subscriptions import LOST, Subscription
from simulated_node.tree.entries import File, lookup
from simulated_node.tree.materialise import Materialiser
from simulated_node.tree.pci import Memory
from simulated_node.tree.render import KERNEL_DIRECTORIES, render

T = TypeVar("T")

PRIVATE = ".simulated-kernel"

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
REBOOTED = rule(
    "boot.sleeping-writes-die",
    "A write that sleeps when the machine goes down never succeeds.",
    errno="ESHUTDOWN",
    source="limit of the simulation: a real writer dies with the machine",
)
TMPFS = rule(
    "boot.tmpfs-emptied",
    "/run and /dev start empty at every boot; files on disk (/var/lib, /etc) stay.",
    source="tmpfs(5); devtmpfs",
)


class SimulatedKernel:
    """A running machine below ``root``. Closing it leaves its files; starting one over them is a reboot of that
    machine.
    """

    event_capacity = 4096

    def __init__(self, root: Path | str, description: HostDescription) -> None:
        self.root = Path(root).absolute()
        self.description = description
        private = self.root / PRIVATE
        _refuse_foreign_root(self.root, private)
        private.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(private / "lock")
        self._boots = private / "boots"
        self._changed = threading.Condition(threading.RLock())
        self._operations = itertools.count(1)
        self._subscriptions: list[Subscription] = []
        self._sleeping: list[str] = []
        self._generation = 0
        self._closed = False
        self._known = known_drivers()
        self._faults = Faults(self._changed)
        self._log = WriteLog(private / "writes.jsonl")
        for directory in (*KERNEL_DIRECTORIES, "/run"):
            shutil.rmtree(self.root / directory[1:], ignore_errors=True)
        self._memory: Memory = {}
        self._files = Materialiser(self.root, private / "staging")
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
            self._generation += 1
            self._end_subscriptions()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._sleeping)
            self._log.close()
            self._lock.close()

    def host(self) -> Host:
        """The host port of this kernel, for daemons in the same process."""
        return InProcessHost(self)

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
        """The paths of the writes that sleep now (empty: an event of ours that does)."""
        with self._changed:
            return list(self._sleeping)

    # What writers do.

    def write(self, path: str, data: bytes, *, writer: Writer | None = None) -> None:
        """One write(2); OSError with the kernel's errno. Sleeps as the kernel does."""
        writer = writer or Writer.of(os.getpid())
        with self._changed:
            self._ordered(writer, path, data, lambda operation: self._write(path, data, operation))

    def before_read(self, path: str) -> None:
        """Where an ordered fault strikes a read ("read:<path>"): OSError, or sleep. In-process readers ask."""
        if self._faults.none:
            return
        with self._changed:
            self._hold(f"read:{path}")
            self._fault(f"read:{path}")

    def load_module(self, name: str, *, writer: Writer | None = None) -> None:
        """modprobe."""
        writer = writer or Writer.of(os.getpid())
        path = f"module:{name.replace('-', '_')}"

        def load(operation: int) -> None:
            if self._fault(path):
                return
            self._sleepily(path, operation, lambda: modules.load_module(self._machine, name, operation))

        with self._changed:
            self._ordered(writer, path, b"", load)

    def subscribe(self, wake: Callable[[], None]) -> Subscription:
        """A listener for events from now on; it ends with ESHUTDOWN when the machine goes down."""
        with self._changed:
            self._subscriptions.append(made := Subscription(wake, self.event_capacity))
            return made

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._changed, suppress(ValueError):
            self._subscriptions.remove(subscription)

    # What happens to the machine.

    def open_device(
        self, node_path: str, *, pid: int = 4242, comm: str = "qemu-kvm", cgroup: str = "/machine.slice"
    ) -> int:
        """A process opens a node of /dev; its descriptor there."""
        return self._happens(
            lambda _: handles.open_node(
                self._machine, node_path.removeprefix("/dev/"), pid=pid, comm=comm, cgroup=cgroup
            )
        )

    def close_device(self, node_path: str, *, pid: int | None = None) -> None:
        """That process, or each that does, lets a node go."""
        self._happens(lambda _: handles.close_node(self._machine, node_path.removeprefix("/dev/"), pid=pid))

    def hot_remove(self, address: str) -> None:
        """Pull a device out. Sleeps while a VFIO user holds it."""
        self._happens(lambda operation: hotplug.remove(self._machine, address, operation))

    def hot_add(self, device: Device) -> None:
        self._happens(lambda _: hotplug.add(self._machine, device))

    def reboot(self) -> str:
        """Switch off and on; the new boot id."""
        with self._changed:
            self._generation += 1
            self._end_subscriptions()
            self._machine = self._boot()
            self._files.replace(render(self._machine, self._memory))
            for directory in ("/run", "/dev"):
                self._files.empty(directory)
            TMPFS.fires()
            self._changed.notify_all()
            return self._machine.boot_id

    # Faults.

    def fail_next(self, pattern: str, errno: str, times: int = 1) -> None:
        self._faults.fail_next(pattern, errno, times)

    def swallow_next(self, pattern: str, times: int = 1) -> None:
        self._faults.swallow_next(pattern, times)

    def block(self, pattern: str) -> Block:
        return self._faults.block(pattern)

    def lose_events(self) -> None:
        """Each listener of now loses what is still to come."""
        with self._changed:
            LOST.fires()
            self._end_subscriptions(errnos.ENOBUFS)

    # Inside. Everything below runs with the lock held.

    def _boot(self) -> Machine:
        boots = int(self._boots.read_text("ascii")) + 1 if self._boots.exists() else 1
        staged = self._boots.with_name("boots.next")
        staged.write_text(str(boots), "ascii")
        staged.rename(self._boots)
        machine = boot(self.description, self._known, boots=boots)
        machine.fault = lambda name: self._faults.hit(name)[1]
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
                return self._sleepily("", operation, lambda: event(operation))
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
        self._hold(path, real)
        if real not in self._files.tree:
            raise VANISHED.refuses(f"{path} went away")
        if not self._fault(path, real):
            self._sleepily(path, operation, lambda: write_attribute(self._machine, attribute, data, operation))

    def _fault(self, *names: str) -> bool:
        struck, errno = self._faults.hit(*names)
        if errno is not None:
            raise OSError(getattr(errnos, errno), os.strerror(getattr(errnos, errno)), names[0])
        return struck

    def _hold(self, *names: str) -> None:
        generation = self._generation
        while (block := self._faults.blocking(*names)) is not None:
            block.waiting += 1
            self._changed.notify_all()
            self._sleep(names[0])
            block.waiting -= 1
            self._refuse_other_boot(generation)

    def _sleepily(self, path: str, operation: int, step: Callable[[], T]) -> T:
        """Do it; as often as it would block, sleep until something changed and do it again."""
        generation = self._generation
        machine = self._machine
        held: set[str] = set()
        try:
            while True:
                try:
                    return step()
                except WouldBlockError as block:
                    held.update(block.holds)
                    for address in block.holds:
                        machine.devices[address].holder = operation
                if self._follow():
                    self._changed.notify_all()
                self._sleep(path)
                self._refuse_other_boot(generation)
        finally:
            for address in held & machine.devices.keys():
                if machine.devices[address].holder == operation:
                    machine.devices[address].holder = None

    def _sleep(self, path: str) -> None:
        self._sleeping.append(path)
        try:
            self._changed.wait()
        finally:
            self._sleeping.remove(path)

    def _refuse_other_boot(self, generation: int) -> None:
        if self._generation != generation:
            raise REBOOTED.refuses("the machine went down meanwhile")

    def _refuse_closed(self) -> None:
        if self._closed:
            raise OSError(errnos.ESHUTDOWN, "the simulated kernel is closed")

    def _end_subscriptions(self, number: int = errnos.ESHUTDOWN) -> None:
        for subscription in self._subscriptions:
            subscription.end(number)
        self._subscriptions.clear()

    def _follow(self) -> bool:
        """Files, then events, follow the state; whether there was anything to follow.

        Not for nothing does it say so: two sleepers that woke each other without a change would never rest.
        """
        tree = render(self._machine, self._memory)
        changed = tree != self._files.tree
        if changed:
            self._files.replace(tree)
        events, self._machine.events = self._machine.events, []
        for event in events:
            for subscription in self._subscriptions:
                subscription.put(event)
        return changed


def _lock(path: Path) -> BinaryIO:
    """Hold the root for one kernel at a time; the lock goes with the process, however it ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"another simulated kernel runs below {path.parent.parent}") from None
    return file


def _refuse_foreign_root(root: Path, private: Path) -> None:
    """Starting removes what the last run left in /sys, /proc, /dev and /run: never anybody else's."""
    if root.resolve() == Path("/"):
        raise ValueError("a simulated kernel does not run on the real root")
    there = [directory for directory in (*KERNEL_DIRECTORIES, "/run") if (root / directory[1:]).exists()]
    if there and not private.exists():
        raise ValueError(
            f"{root} holds {', '.join(there)}, but no simulated kernel ran there: choose an empty directory"
        )
