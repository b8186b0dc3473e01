"""Who else is registered with the kubelet: each plugin's registration socket says so itself.

Two plugins of one driver name would be given each other's claims: the kubelet calls the one that came last.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc
from grpc.aio import insecure_channel

from dra_publisher.kubelet.registration import INSTANCE_HEADER, TYPE
from dra_publisher.kubelet.sockets import Incarnation, Life, incarnation, life, reachable
from kubelet_api.registration_pb2 import InfoRequest
from kubelet_api.registration_pb2_grpc import RegistrationStub
from node_host.host import Host

_ASK_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 30.0  # until a socket that gave no answer is asked again
_AT_ONCE: Final = 8
_MOST: Final = 256
# Channels of one process share connections by their address, and ours are numbers of descriptors.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one socket said; ``driver`` None: nothing (yet), or it is none of DRA."""

    which: Incarnation
    driver: str | None
    endpoint: str
    is_publisher: bool
    again_at: float | None


class Registry:
    """The kubelet's registry directory of one host. Looked at through ``look``, not watched."""

    def __init__(self, host: Host, directory: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._directory = directory
        self._clock = clock
        self._answers: dict[str, _Answer] = {}

    @property
    def is_there(self) -> bool:
        """Whether a kubelet has ever run here."""
        return self._host.local(self._directory).is_dir()

    async def look(self, own: Collection[str]) -> None:
        """Ask the sockets that are new; ``own`` are the paths of this process. Never raises for what they do."""
        now = self._clock()
        there = {path: which for path, which in self._sockets() if path not in own}
        self._answers = {
            path: answer for path, answer in self._answers.items() if path in there and answer.which == there[path]
        }
        new = [path for path in there if self._is_due(path, now)]
        limit = asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(self._ask(path, there[path], limit) for path in new))
        self._answers.update(zip(new, answers, strict=True))

    def other_plugin(self, driver: str) -> str | None:
        """A live socket with this driver name that belongs to no publisher, named; None when there is none."""
        for path, answer in sorted(self._answers.items()):
            if answer.driver == driver and not answer.is_publisher and life(self._host, path) is Life.ALIVE:
                return f"{path} registers {driver} with endpoint {answer.endpoint}"
        return None

    def _is_due(self, path: str, now: float) -> bool:
        answer = self._answers.get(path)
        return answer is None or (answer.again_at is not None and now >= answer.again_at)

    async def _ask(self, path: str, which: Incarnation, limit: asyncio.Semaphore) -> _Answer:
        again = self._clock() + _AGAIN_SECONDS
        unknown = _Answer(which, None, "", False, again)
        async with limit:
            if life(self._host, path) is not Life.ALIVE:
                return unknown
            try:
                with reachable(self._host, path) as short:
                    async with insecure_channel(f"unix:{short}", options=_OPTIONS) as channel:
                        call = RegistrationStub(channel).GetInfo(InfoRequest(), timeout=_ASK_SECONDS)
                        headers = await call.initial_metadata()
                        info = await call
            except (OSError, grpc.RpcError):
                return unknown
        driver = info.name if info.type == TYPE else None
        return _Answer(which, driver, info.endpoint or path, INSTANCE_HEADER in dict(headers), None)

    def _sockets(self) -> Iterator[tuple[str, Incarnation]]:
        """The kubelet looks into directories as well, and leaves out names with a leading dot."""
        left = _MOST
        directories = [self._directory]
        while directories and left > 0:
            directory = directories.pop()
            with suppress(OSError), os.scandir(self._host.local(directory)) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name)[:left]:
                    left -= 1
                    path = f"{directory}/{entry.name}"
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(path)
                    elif (which := incarnation(self._host, path)) is not None:
                        yield path, which
