"""One driver name with the kubelet: a socket that serves it, and a socket that says so.

The kubelet connects as soon as it sees the registration socket, so the other one is there first and goes last.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc.aio

from dra_publisher.kubelet import leftovers
from dra_publisher.kubelet.calls import ClaimCalls
from dra_publisher.kubelet.claim_services import add_claim_services
from dra_publisher.kubelet.health_services import HealthStreams, add_health_services
from dra_publisher.kubelet.names import SocketNames
from dra_publisher.kubelet.registration import Registration
from dra_publisher.kubelet.sockets import Incarnation, incarnation, place, remove
from kubelet_api.registration_pb2_grpc import add_RegistrationServicer_to_server
from node_host.host import Host

_log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 1.0


class Plugin:
    """One driver name of this process. Its coroutines are not to run at the same time."""

    def __init__(
        self,
        host: Host,
        names: SocketNames,
        calls: ClaimCalls,
        streams: HealthStreams,
        changed: Callable[[], None],
    ) -> None:
        self.names = names
        self._host = host
        self._calls = calls
        self._streams = streams
        self._changed = changed
        self._serving: _Listener | None = None
        self._registering: _Listener | None = None
        self._registration = Registration(names.driver, names.endpoint, changed)
        self._ended = asyncio.Event()
        self._fault: str | None = None
        self._is_recorded = False

    @property
    def is_served(self) -> bool:
        """Whether the kubelet can find this driver here."""
        return self._registering is not None

    @property
    def problem(self) -> str | None:
        """Why the kubelet does not call this driver here, or None."""
        if self._fault is not None:
            return self._fault
        if self._registration.refused is not None:
            return f"the kubelet refused driver {self.names.driver}: {self._registration.refused}"
        if not self._registration.accepted:
            return f"the kubelet has not registered driver {self.names.driver} yet ({self.names.registration})"
        return None

    async def ensure(self) -> None:
        """Have both sockets there, and ours. What keeps it from that on the host is told by `problem`."""
        try:
            await self._drop_lost()
            if self._registering is None:
                await self._serve()
            self._fault = None
        except (OSError, RuntimeError) as error:  # gRPC raises the latter when it cannot bind
            self._fault = f"driver {self.names.driver} cannot be served: {error}"

    async def stop_registration(self) -> None:
        """Say goodbye to the kubelet; claims are answered as before."""
        registering, self._registering = self._registering, None
        if registering is not None:
            await registering.close(_GOODBYE_SECONDS)
        if self._is_recorded:  # also where the socket itself could not be made
            leftovers.forget(self._host, self.names)
            self._is_recorded = False

    async def stop_serving(self, seconds: float) -> None:
        """Answer what has been asked, for at most so long, and close."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._ended.set()  # an open stream would last until the time is up
            await serving.close(seconds)

    async def _drop_lost(self) -> None:
        """A socket that was removed, or that another took the place of, takes the registration with it."""
        for listener in (self._serving, self._registering):
            if listener is not None and not listener.is_there():
                _log.warning("Socket %s is gone, driver %s is registered anew", listener.path, self.names.driver)
                await self.stop_registration()
                if listener is self._serving:
                    await self.stop_serving(0.0)

    async def _serve(self) -> None:
        if not self._host.local(self.names.registry).is_dir():
            raise OSError(f"{self.names.registry} does not exist: no kubelet has run on this host")
        for path in leftovers.remove_leftovers(self._host, self.names):
            _log.info("Removed socket %s, which nobody listened on", path)
        if self._serving is None:
            self._ended = asyncio.Event()
            server = _server()
            add_claim_services(server, self.names.driver, self._calls)
            add_health_services(server, self.names.driver, self._streams, self._ended)
            self._serving = await _listen(self._host, self.names.endpoint, server)
        leftovers.record(self._host, self.names)
        self._is_recorded = True
        registration = Registration(self.names.driver, self.names.endpoint, self._changed)
        server = _server()
        add_RegistrationServicer_to_server(registration, server)
        self._registration = registration
        self._registering = await _listen(self._host, self.names.registration, server)
        _log.info("Driver %s is served at %s", self.names.driver, self.names.endpoint)


@dataclass(frozen=True, slots=True)
class _Listener:
    """A server with the one socket that it is reached by."""

    host: Host
    path: str
    server: grpc.aio.Server
    which: Incarnation

    def is_there(self) -> bool:
        return self.which.is_file_of(incarnation(self.host, self.path))

    async def close(self, seconds: float) -> None:
        with suppress(OSError):
            remove(self.host, self.path, self.which)
        await self.server.stop(seconds)


def _server() -> grpc.aio.Server:
    return grpc.aio.server(options=(("grpc.so_reuseport", 0),))


async def _listen(host: Host, path: str, server: grpc.aio.Server) -> _Listener:
    """Raises OSError (the name is taken, the directory cannot be written) and gRPC's RuntimeError."""
    which: Incarnation | None = None
    try:
        which = place(host, path, lambda short: _bind(server, short))
        await server.start()
    except BaseException as error:
        if which is not None:
            with suppress(OSError):
                remove(host, path, which)
        await server.stop(None)
        if isinstance(error, FileExistsError):
            is_socket = incarnation(host, path) is not None
            what = "is served by another process" if is_socket else "is in the way, and no socket"
            raise OSError(f"{path} {what}") from error
        raise
    return _Listener(host, path, server, which)


def _bind(server: grpc.aio.Server, short: str) -> None:
    server.add_insecure_port(f"unix:{short}")
