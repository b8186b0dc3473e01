"""QEMU's monitor protocol (QMP), over a socket that QEMU inherits: no path, so nothing to collide with or clean up."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from tests.kernel.lab.errors import LabError


class MonitorError(LabError):
    """QEMU refused a command, in its words."""


class Monitor:
    """The host's end. One caller at a time."""

    def __init__(self, connection: socket.socket, *, seconds: float = 20) -> None:
        self._connection = connection
        self._buffer = b""
        self._greeted = False
        self.seconds = seconds

    def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The command's "return" value. Raises MonitorError when QEMU refuses, ends, or does not answer in time."""
        deadline = time.monotonic() + self.seconds
        if not self._greeted:
            self._next(deadline)  # the greeting
            self._greeted = True
            self._ask("qmp_capabilities", {}, deadline)
        return self._ask(command, arguments or {}, deadline)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, command: str, arguments: Mapping[str, Any], deadline: float) -> Any:
        try:
            self._connection.sendall(json.dumps({"execute": command, "arguments": dict(arguments)}).encode() + b"\n")
        except OSError as error:
            raise MonitorError(f"the machine does not listen any more: {error.strerror}") from error
        while True:
            answer = self._next(deadline)
            if "error" in answer:
                raise MonitorError(str(answer["error"].get("desc", answer["error"])))
            if "return" in answer:  # anything else is an event
                return answer["return"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self._connection.recv(65536)
            except TimeoutError as error:
                raise MonitorError(f"no answer from the machine's monitor within {self.seconds:g} s") from error
            except OSError as error:
                raise MonitorError(f"the machine's monitor is gone: {error.strerror}") from error
            if not data:
                raise MonitorError("the machine has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise MonitorError(f"not a message of the monitor: {line[:200]!r}")
        return message
