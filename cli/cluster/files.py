"""Files of the local control plane are keys, credentials and records: written whole and private, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TAIL_BYTES = 16_384


def write_private(path: Path, data: bytes | str) -> None:
    """Write `path` (mode 0600) so that a reader, or the next start after a power cut, sees old or new content."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def tail(path: Path, lines: int = 20, *, offset: int = 0) -> str:
    """The last lines of a log, from byte `offset` on; text that explains itself when there are none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset, end - TAIL_BYTES))
            text = file.read().decode(errors="replace").strip()
    except OSError as error:
        return f"({path} cannot be read: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) if text else f"({path} is empty)"
