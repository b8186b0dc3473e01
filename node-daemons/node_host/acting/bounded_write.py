"""One write to the kernel that may never come back, with a deadline for whoever waits for it.

Unbinding a device that a VM holds sleeps in the kernel and cannot be cancelled (drivers/vfio/vfio_main.c). So each
write is done by a child process that inherits the locks; when the deadline passes the child is left to the kernel and
the group stays locked until it ends. A simulated kernel in the same process blocks a thread only, so a thread does it.
"""

import asyncio
import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from typing import Final

from node_host.acting.locks import Locks
from node_host.host import Host
from runtime.own_thread import in_own_thread

WRITE_SECONDS: Final = 30.0


class WriteStuckError(Exception):
    """The kernel did not come back before the deadline; the write may still happen."""


class BoundedWriter:
    """Writes of one daemon. ``on_result`` counts them: `ok`, an errno name, or `Stuck`."""

    def __init__(
        self,
        host: Host,
        *,
        deadline_seconds: float = WRITE_SECONDS,
        on_result: Callable[[str], None] = lambda _: None,
        on_unstuck: Callable[[], None] = lambda: None,
    ) -> None:
        self._host = host
        self._deadline = deadline_seconds
        self._on_result = on_result
        self._on_unstuck = on_unstuck
        self._stuck: dict[str, str] = {}

    @property
    def stuck(self) -> dict[str, str]:
        """Names of locks that writes without an end hold, each with the write in words."""
        return dict(self._stuck)

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        """Do it. Raises the kernel's OSError, or WriteStuckError when the deadline passes."""
        descriptors = locks.descriptors()

        def work() -> OSError | None:
            try:
                _write(self._host, path, data, descriptors)
            except OSError as error:
                return error
            except Exception as error:  # whatever it is, the waiter must hear of it
                return OSError(errno.EIO, f"{type(error).__name__}: {error}", path)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            return None

        done = in_own_thread(f"write {path}", work)
        await asyncio.wait({done}, timeout=self._deadline)
        if not done.done():
            done.add_done_callback(lambda _: self._unstuck(locks.names))
            text = f"writing {data.decode('ascii', 'replace').strip()!r} to {path} has not come back"
            self._stuck.update(dict.fromkeys(locks.names, text))
            self._on_result("Stuck")
            raise WriteStuckError(f"{text} after {self._deadline:g} s")
        failed = done.result()
        self._on_result("ok" if failed is None else errno.errorcode.get(failed.errno or 0, "EIO"))
        if failed is not None:
            raise failed

    def _unstuck(self, names: Iterable[str]) -> None:
        for name in names:
            self._stuck.pop(name, None)
        self._on_unstuck()


def _write(host: Host, path: str, data: bytes, descriptors: list[int]) -> None:
    command = host.write_command(path, data)
    if command is None:
        host.write(path, data)
        return
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        # A signal for the daemon's group is not for a write that the kernel has begun.
        start_new_session=True,
    )
    output, complaint = child.communicate()
    if child.returncode == 0:
        return
    try:
        answer = json.loads(output)
        number, text = int(answer["errno"]), str(answer.get("message", ""))
    except (ValueError, KeyError, TypeError):
        words = complaint.decode("utf-8", "replace").strip()[-200:] or f"exit status {child.returncode}"
        raise OSError(errno.EIO, f"the process that writes failed: {words}", path) from None
    raise OSError(number, text or os.strerror(number), path)
