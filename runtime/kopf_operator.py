"""Runs kopf beside the main loop, with settings under which it reads and never writes.

kopf wants a loop of its own: when it ends it cancels every task that it finds there. It gets a thread, and its end,
which it chooses for many errors of a stream, ends the process too, so that a restart begins from the API again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

import kopf
from yarl import URL

from runtime.credentials import Credentials, is_loopback
from runtime.kopf_feed import KopfFeed
from runtime.loop_beat import LoopBeat

log = logging.getLogger(__name__)

_SERVER_TIMEOUT = 300
_HANGS_AFTER_SECONDS = 60.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 1.0


class KopfEnded(Exception):  # noqa: N818 - an end, raised so that the process ends
    """kopf stopped watching though nobody asked it to. The process must exit and start anew."""


def read_only_settings() -> kopf.OperatorSettings:
    """Settings under which kopf posts nothing, marks nothing and scans once.

    Finalizers and annotations need no setting: kopf makes them for state-keeping handlers only, and there are none.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    # Kinds are watched from the moment they are served (run_kopf waits for that), so nothing is to be scanned for.
    settings.scanning.disabled = True
    # A watch that the server ends by itself is opened anew with the identity's rights of that moment.
    settings.watching.server_timeout = _SERVER_TIMEOUT
    settings.watching.connect_timeout = 10
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # It would send SIGKILL to a process that is on its way out in order.
    settings.process.ultimate_exiting_timeout = None
    return settings


def connection_info(credentials: Credentials) -> kopf.ConnectionInfo:
    """The same server and identity as `Api` uses, in kopf's terms."""
    configuration = credentials.configuration
    authorization = credentials.authorization()
    scheme, _, token = authorization.partition(" ") if authorization else ("", "", "")
    return kopf.ConnectionInfo(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token or None,
        proxy_url=configuration.proxy,
        trust_env=not is_loopback(str(configuration.host)),
    )


async def run_kopf(
    registry: kopf.OperatorRegistry,
    *,
    credentials: Credentials,
    stop: asyncio.Event,
    feeds: Sequence[KopfFeed[Any]] = (),
    settings: kopf.OperatorSettings | None = None,
) -> None:
    """Run kopf with the handlers of `registry` until `stop`; raises KopfEnded when it ends by itself or hangs.

    It starts once every feed in `feeds` has its first list: kopf never looks again for a kind that was not served.
    """
    if URL(str(credentials.configuration.host)).host is None:
        raise ValueError(f"{credentials.origin}: the server address has no host")
    if not await _all_synced(feeds, stop):
        return

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        # Called again after a 401: a token that was rotated on disk is read then. The old one would end kopf.
        credentials.recheck()
        return connection_info(credentials)

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    inside = _Inside()

    async def operate() -> None:
        # An event of kopf's own loop: for a threading.Event kopf parks a thread that nobody can end any more when
        # kopf fails, and the closing of its loop would wait for it for ever.
        inside.enter()
        try:
            await kopf.operator(
                registry=registry,
                settings=settings or read_only_settings(),
                standalone=True,
                clusterwide=True,
                stop_flag=inside.stop,
            )
        except BaseException as error:  # whatever it is, the main loop must learn of it
            inside.failure = error
        finally:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=lambda: asyncio.run(operate()), name="kopf", daemon=True).start()
    try:
        await _watch_over(stop, ended, inside)
    finally:
        inside.ask_to_stop()
    if ended.is_set() and not stop.is_set():
        cause = inside.failure
        raise KopfEnded(f"kopf ended by itself: {cause or 'without an error'}") from cause
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await ended.wait()
    except TimeoutError:
        log.warning("kopf did not stop within %g s; the process ends without it", _STOP_SECONDS)


class _Inside:
    """What the main loop needs of kopf's."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.beat: LoopBeat | None = None
        self.stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = False

    def enter(self) -> None:
        """Call it first thing in kopf's loop."""
        self._loop = asyncio.get_running_loop()
        self.beat = LoopBeat(self._loop)
        self.stop = asyncio.Event()
        if self._asked:
            self.stop.set()

    def ask_to_stop(self) -> None:
        self._asked = True  # before the look at the loop: whoever comes second sees what the first one did
        if self._loop is not None and self.stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.stop.set)


async def _all_synced(feeds: Sequence[KopfFeed[Any]], stop: asyncio.Event) -> bool:
    """Wait for the first list of every feed; False when `stop` came first."""
    waiting = [asyncio.ensure_future(feed.wait_synced()) for feed in feeds]
    stopped = asyncio.ensure_future(stop.wait())
    try:
        for feed in waiting:
            await asyncio.wait({feed, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not feed.done():
                return False
        return not stop.is_set()
    finally:
        for future in (*waiting, stopped):
            future.cancel()


async def _watch_over(stop: asyncio.Event, ended: asyncio.Event, inside: _Inside) -> None:
    """Returns when `stop` or `ended` is set; raises KopfEnded when kopf's loop does not turn any more."""
    while not (stop.is_set() or ended.is_set()):
        if inside.beat is not None:
            inside.beat.poke()
            if inside.beat.age() > _HANGS_AFTER_SECONDS:
                raise KopfEnded(f"kopf's event loop has not turned for {inside.beat.age():.0f} s")
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, ended)]
        await asyncio.wait(waits, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
