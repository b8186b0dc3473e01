"""Runs without faults, made once for all test processes of a session and shared through files."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.cluster.faults.judge import Record


class References:
    """`directory` is shared by the processes of the session; `make` runs a scenario without faults."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    async def get(self, name: str, make: Callable[[], Awaitable[Record]]) -> Record:
        """The reference of a scenario; whoever needs it first makes it. A failed one is made again by the next."""
        path = self._directory / f"{name}.json"
        with (self._directory / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return _read(json.loads(path.read_text()))
            record = await make()
            assert not record.differs, f"{name} without faults: {record.differs}"
            path.write_text(json.dumps(_write(record)))
            return record


def _write(record: Record) -> dict[str, object]:
    return {
        "ending": record.ending,
        "moved": sorted(record.moved),
        "moves": record.moves,
        "audit": record.audit,
        "watched_from": record.watched_from,
        "broken": record.broken,
    }


def _read(found: dict[str, object]) -> Record:
    record = Record(**{key: value for key, value in found.items() if key != "moved"})  # type: ignore[arg-type]
    record.moved = {(node, place) for node, place in found["moved"]}  # type: ignore[attr-defined]
    return record
