"""When a token or the note of offered devices changes, whoever waits for one looks again; for prepared claims somewhat
later.

A look at two or three names a second costs nothing and needs no watch on a directory that may be made later, or anew.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

from node_host.bounded_call import BoundedCalls, HungError
from node_host.evidence.checkpoint import CHECKPOINT
from node_host.evidence.publication import PUBLISHED
from node_host.handover.token_files import TokenFiles
from node_host.host import Host

EVERY_SECONDS: Final = 1.0
CLAIM_LOOKS: Final = 5  # pods come and go by the dozen, and what is told of their claims is not urgent


async def watch_handover(
    host: Host,
    calls: BoundedCalls,
    wake: Callable[[], None],
    *,
    claim_looks: int | None = None,
    every_seconds: float = EVERY_SECONDS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call ``wake`` whenever what lies there has changed, and at the first look: who has looked before it may have
    looked at something else. Runs until cancelled.

    With ``claim_looks`` also when the checkpoint of prepared claims has, at every so many looks.
    """
    files = TokenFiles(host)

    def look() -> object:
        return files.signature(), _state(host, PUBLISHED)

    def look_at_claims() -> object:
        return _state(host, CHECKPOINT)

    seen: dict[str, object] = {}
    for number in itertools.count():
        looks: dict[str, Callable[[], object]] = {"handover": look}
        if claim_looks is not None and number % claim_looks == 0:
            looks["checkpoint"] = look_at_claims
        found = {name: await _looked(calls, name, one) for name, one in looks.items()}
        if any(name not in seen or seen[name] != state for name, state in found.items()):
            wake()
        seen |= found
        await sleep(every_seconds)


async def _looked(calls: BoundedCalls, name: str, look: Callable[[], object]) -> object:
    try:
        return await calls.run(name, look)
    except (OSError, HungError) as error:
        return str(error)


def _state(host: Host, path: str) -> tuple[int, int] | None:
    if not host.exists(path):
        return None
    found = host.stat(path)
    return found.st_ino, found.st_mtime_ns
