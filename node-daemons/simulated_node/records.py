"""The log of every order that the simulated kernel got: who wrote what where, and what came of it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that wrote, as the operating system under the simulation knows it."""

    pid: int
    comm: str
    parent: int

    @classmethod
    def of(cls, pid: int) -> "Writer":
        try:
            comm = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
            # The parent is the second word after the name, which is in parentheses and may hold anything.
            parent = int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return cls(pid, "", 0)
        return cls(pid, comm, parent)


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One write(2), or one module load (path "module:<name>").

    ``seq`` counts from 1 in the order of completion; ``data`` is the bytes as Latin-1; ``result`` is "ok" or the
    errno's name; ``rule`` is the rule that refused it, if one did; ``parent`` is the writer's parent.
    """

    seq: int
    pid: int
    comm: str
    path: str
    data: str
    result: str
    rule: str | None
    parent: int


class WriteLog:
    """In memory for tests of the same process, and as JSON lines for everybody else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[WriteRecord] = []
        lines = path.read_bytes().count(b"\n") if path.exists() else 0
        self._next = lines + 1
        self._file = path.open("ab", buffering=0)

    def add(self, writer: Writer, path: str, data: bytes, result: str, rule: str | None) -> None:
        record = WriteRecord(
            self._next, writer.pid, writer.comm, path, data.decode("latin-1"), result, rule, writer.parent
        )
        self._next += 1
        self.records.append(record)
        self._file.write(json.dumps(asdict(record)).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[WriteRecord]:
    """The log as written so far; a last line without its end is left out."""
    complete = path.read_bytes().rpartition(b"\n")[0]
    return [WriteRecord(**json.loads(line)) for line in complete.splitlines()]
