"""When a token or the note of offered devices changes, whoever waits for one looks again.

A look at two names a second costs nothing and needs no watch on a directory that may be made later, or anew.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from node_host.bounded_call import BoundedCalls, HungError
from node_host.evidence.publication import PUBLISHED
from node_host.handover.token_files import TokenFiles
from node_host.host import Host

EVERY_SECONDS: Final = 1.0


async def watch_handover(
    host: Host,
    calls: BoundedCalls,
    wake: Callable[[], None],
    *,
    every_seconds: float = EVERY_SECONDS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call ``wake`` whenever what lies there has changed; runs until cancelled."""
    files = TokenFiles(host)

    def look() -> object:
        note = host.stat(PUBLISHED) if host.exists(PUBLISHED) else None
        return files.signature(), None if note is None else (note.st_ino, note.st_mtime_ns)

    seen: object = None
    while True:
        try:
            found = await calls.run("handover", look)
        except (OSError, HungError) as error:
            found = str(error)
        if found != seen and seen is not None:
            wake()
        seen = found
        await sleep(every_seconds)
