"""The files through which host and guest talk: one directory per boot in the share, written on one side and read on the
other, never by both. A message is a line of JSON; a line counts once it has its newline."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GUEST_VARIABLE = "NPUFLEET_LAB_GUEST"
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class BootDirectory:
    """The directory of one boot, as this side sees it."""

    path: Path

    @property
    def number(self) -> int:
        """Which boot of its run it is, 1 for the first."""
        return int(self.path.name.rpartition("-")[2])

    @property
    def request(self) -> Path:
        """What the guest's pytest runs: {"tests": [{"id", "deadline"}, ...]}, in this order."""
        return self.path / "request.json"

    @property
    def messages(self) -> Path:
        """From the guest: {"kind": "start"|"report"|"finish"|"collect-error"|"end", ...} per line."""
        return self.path / "messages.jsonl"

    @property
    def calls(self) -> Path:
        """Questions to the host: <id>.json, answered by <id>.answer."""
        return self.path / "calls"

    @property
    def serial(self) -> Path:
        """The guest's serial line, written by QEMU."""
        return self.path / "serial.log"

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    @property
    def dmesg(self) -> Path:
        return self.path / "dmesg.log"

    @property
    def stacks(self) -> Path:
        """Python stacks of a test that is about to reach its deadline."""
        return self.path / "stacks.log"

    @property
    def junit(self) -> Path:
        return self.path / "junit.xml"

    @property
    def ready(self) -> Path:
        """Made by the guest's stage2 once drivers, disk and route are there."""
        return self.path / "ready"

    @property
    def status(self) -> Path:
        """Exit status of the boot's command, once it has ended."""
        return self.path / "status"

    @property
    def command(self) -> Path:
        return self.path / "command"


def guest_directory() -> BootDirectory | None:
    """This boot's directory when we are in the guest, else None."""
    value = os.environ.get(GUEST_VARIABLE)
    return BootDirectory(Path(value)) if value else None


def write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content))
    new.replace(path)


class MessageWriter:
    """Appends messages; each is handed to the host before the call returns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, **content: Any) -> None:
        data = json.dumps({"kind": kind} | content, default=str).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


@dataclass(slots=True)
class MessageReader:
    """Reads what was appended since the last call; keeps an unfinished line for the next one."""

    path: Path
    offset: int = 0
    rest: bytes = field(default=b"", repr=False)

    def new(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError(f"{self.path}: not a message: {line[:200]!r}")
            yield message


class CallRefusedError(Exception):
    """The host could not do what the guest asked for; the message is the host's."""


def call(directory: BootDirectory, name: str, arguments: Mapping[str, Any], *, seconds: float) -> Any:
    """Ask the host and wait for its answer. Raises CallRefusedError, and TimeoutError without an answer in time."""
    directory.calls.mkdir(exist_ok=True)
    request = directory.calls / f"{uuid.uuid4().hex}.json"
    answer = request.with_suffix(".answer")
    write_atomically(request, {"execute": name, "arguments": dict(arguments)})
    deadline = time.monotonic() + seconds
    while True:
        try:
            content = json.loads(answer.read_text())
            break
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer from the host to {name} within {seconds:g} s") from None
            time.sleep(POLL_SECONDS)
    if "error" in content:
        raise CallRefusedError(content["error"])
    return content["return"]


def unanswered(directory: BootDirectory) -> Iterator[Path]:
    """The guest's questions that have no answer yet, oldest first."""
    try:
        requests = [entry for entry in directory.calls.iterdir() if entry.suffix == ".json"]
    except FileNotFoundError:
        return
    for request in sorted(requests, key=lambda path: path.stat().st_mtime_ns):
        if not request.with_suffix(".answer").exists():
            yield request
