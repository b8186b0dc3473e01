"""Serves a simulated kernel to other processes on a Unix socket below its root.

One thread a connection, so that a write that sleeps keeps nobody else waiting. The kernel of this machine tells who
is at the other end (SO_PEERCRED); that pid is logged. A writer that goes away while its write sleeps changes nothing:
the write ends when it can.
"""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from node_host.host.write_child import SOCKET
from simulated_node import wire
from simulated_node.control_actions import ControlActions
from simulated_node.kernel import SimulatedKernel
from simulated_node.records import Writer

_REQUEST = 1 << 20  # bytes; a hot-plugged device's description fits many times
_SUN_PATH = 107


class SimulatedKernelServer:
    """Listens from construction until ``close``; the kernel stays the caller's."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        self._kernel = kernel
        self._actions = ControlActions(kernel)
        self._path = kernel.root / SOCKET
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._listener = _listen(self._path)
        self._acceptor = threading.Thread(target=self._accept, name="simulated-kernel", daemon=True)
        self._acceptor.start()

    @property
    def actions(self) -> ControlActions:
        return self._actions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and hang up; writes that sleep stay the kernel's."""
        with self._lock:
            self._closing = True
            connections = list(self._connections)
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closing or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                continue
            with self._lock:
                if self._closing:
                    connection.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="simulated-kernel", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # Now, not when the write is done: by then the writer may be gone.
            writer = Writer.of(pid)
            with connection.makefile("rb") as stream:
                line = stream.readline(_REQUEST)
            if line:
                self._answer(connection, line, writer)
        except OSError:
            pass  # the other end hung up; nobody is left to tell
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, line: bytes, writer: Writer) -> None:
        try:
            message = wire.decode(line)
            if message.get("op") == "subscribe":
                self._stream_events(connection)
                return
            answer = self._handle(message, writer)
        except wire.WireError as error:
            answer = {"errno": errno.EPROTO, "message": str(error)}
        except OSError as error:
            answer = {"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}
        connection.sendall(wire.encode(answer))

    def _handle(self, message: dict[str, Any], writer: Writer) -> dict[str, Any]:
        match message.get("op"):
            case "write":
                try:
                    data = wire.text(message, "data").encode("latin-1")
                except UnicodeEncodeError as error:
                    raise wire.WireError(f"data: {error}") from error
                self._kernel.write(wire.text(message, "path"), data, writer=writer)
                return {"ok": True}
            case "read":
                self._kernel.before_read(wire.text(message, "path"), wire.text(message, "kind"))
                return {"ok": True}
            case "load_module":
                self._kernel.load_module(wire.text(message, "name"), writer=writer)
                return {"ok": True}
            case "tool":
                arguments = [str(one) for one in wire.listing(message, "arguments")]
                result = self._kernel.run_tool(wire.text(message, "path"), arguments, writer=writer)
                return {"ok": True, "status": result.status, "output": result.output}
            case "control":
                return {"ok": True, "value": self._actions.act(message)}
            case other:
                raise wire.WireError(f"op: unknown {other!r}")

    def _stream_events(self, connection: socket.socket) -> None:
        ready = threading.Event()
        subscription = self._kernel.subscribe(ready.set)
        # A listener says no more; when it hangs up, its end of the stream becomes readable.
        watcher = threading.Thread(target=_wait_for_hang_up, args=(connection, subscription.end), daemon=True)
        watcher.start()
        try:
            connection.sendall(wire.encode({"ok": True}))
            while True:
                ready.wait()
                ready.clear()
                while events := subscription.take():
                    for event in events:
                        connection.sendall(
                            wire.encode(
                                {
                                    "action": event.action,
                                    "devpath": event.devpath,
                                    "subsystem": event.subsystem,
                                    "driver": event.driver,
                                    "slot": event.slot,
                                }
                            )
                        )
        except OSError as error:
            with suppress(OSError):
                connection.sendall(wire.encode({"errno": error.errno or errno.EIO}))
        finally:
            self._kernel.unsubscribe(subscription)


def _wait_for_hang_up(connection: socket.socket, end: Callable[[int], None]) -> None:
    with suppress(OSError):
        while connection.recv(1):
            pass
    end(errno.EPIPE)


def _listen(path: Path) -> socket.socket:
    """A listening socket; through the directory's descriptor where the path is too long for an address."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(path)) <= _SUN_PATH:
            listener.bind(str(path))
        else:
            directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{directory}/{path.name}")
            finally:
                os.close(directory)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener
