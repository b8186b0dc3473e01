"""Leases: which of several replicas may act, and which daemons are alive.

Election is compare-and-swap on a coordination Lease. A Lease bounds how long two processes can both believe that they
lead; it cannot make it impossible. So every write of a leader is correct by itself (its own compare-and-swap), and the
Lease only keeps replicas out of each other's way.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from runtime.api import ApiError, Conflict, NotFound, Object
from runtime.backoff import Backoff
from runtime.resources import LEASES, NAMESPACE, Resource

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 2.0
_NAME_LIMIT = 253
_HASH_DIGITS = 10


class LeaseApi(Protocol):
    """The calls of `Api` that Leases need."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object: ...
    async def create(
        self, resource: Resource, body: Object, namespace: str | None = None, *, urgent: bool = False
    ) -> Object: ...
    async def replace(
        self, resource: Resource, body: Object, namespace: str | None = None, *, urgent: bool = False
    ) -> Object: ...


class LeadershipLost(Exception):  # noqa: N818 - an end, raised so that the process ends
    """The Lease could not be renewed in time, or somebody else holds it. The process must exit."""


def monotonic() -> float:
    """Seconds that go on while the machine is suspended: a leader that slept must know that its time is over."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _now() -> datetime:
    return datetime.now(UTC)


class LeaderElection:
    """Holds the Lease `name` for `identity` (unique per process) while it can.

    Another holder's Lease counts as expired when it has not changed for its duration by our own monotonic clock since
    we saw it change: clocks of two machines are never compared. A holder stops leading `renew_deadline` seconds after
    it sent its last successful renewal, before anybody else may take over (`lease_seconds`).
    """

    def __init__(
        self,
        api: LeaseApi,
        name: str,
        identity: str,
        *,
        namespace: str = NAMESPACE,
        lease_seconds: int = 15,
        renew_deadline: float = 10.0,
        retry_seconds: float = 2.0,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], datetime] = _now,
        jitter: random.Random | None = None,
    ) -> None:
        if not 0 < retry_seconds < renew_deadline < lease_seconds:
            raise ValueError("an election needs retry_seconds < renew_deadline < lease_seconds")
        self.name = name
        self.identity = identity
        self.acquired = asyncio.Event()
        self.lost = asyncio.Event()
        self.state = "not started"
        self._api = api
        self._namespace = namespace
        self._duration = lease_seconds
        self._deadline = renew_deadline
        self._retry = retry_seconds
        self._clock = clock
        self._now = now
        self._random = jitter or random.Random()  # noqa: S311 - spreads attempts, guards nothing
        self._renewed: float | None = None
        self._lease: Object | None = None
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0

    @property
    def leading(self) -> bool:
        """True while this process may act. Ask again right before each write: it turns False by itself in time."""
        return self._renewed is not None and not self.lost.is_set() and self._left() > 0

    async def run(self, stop: asyncio.Event) -> None:
        """Stand for election and stay leader until `stop`; then release the Lease, so that another takes over at once.

        Set `stop` only when nothing of the leader's work runs any more. Raises LeadershipLost.
        """
        while not stop.is_set():
            await self._step()
            try:
                async with asyncio.timeout(self._pause()):
                    await stop.wait()
            except TimeoutError:
                continue
        await self._release()

    async def _step(self) -> None:
        started = self._clock()
        limit = self._deadline / 2
        if self._renewed is not None:
            limit = min(limit, self._left())
            if limit <= 0:
                self._lose(f"not renewed for {self._deadline:g} s: {self.state}")
        held: bool | None = None
        try:
            async with asyncio.timeout(limit):
                held = await self._acquire_or_renew()
        except TimeoutError:
            self.state = f"no answer within {limit:.1f} s"
        except ApiError as error:
            self.state = str(error)
            self._lease = None
        if held:
            self._renewed = started
            self.state = "leading"
            if not self.acquired.is_set():
                log.info("%s leads as holder of Lease %s", self.identity, self.name)
                self.acquired.set()
        elif held is False and self._renewed is not None:
            self._lose(self.state)

    def _lose(self, why: str) -> None:
        self.lost.set()
        raise LeadershipLost(f"Lease {self.name}: {why}")

    def _left(self) -> float:
        """Seconds for which the last renewal still counts."""
        assert self._renewed is not None
        return self._renewed + self._deadline - self._clock()

    def _pause(self) -> float:
        if self._renewed is None:
            return self._retry * self._random.uniform(1.0, 1.2)
        return max(0.0, min(self._retry, self._left()))

    async def _acquire_or_renew(self) -> bool | None:
        """True: the Lease is ours now. False: somebody else's. None: unknown, try again."""
        for _ in range(2):
            lease = self._lease if self._lease is not None else await self._read()
            if lease is not None and not self._free(lease):
                return False
            try:
                self._lease = await self._take(lease)
            except (Conflict, NotFound):
                self._lease = None  # changed, created or deleted since it was read: look again
            else:
                return True
        self.state = "the Lease keeps changing"
        return None

    async def _read(self) -> Object | None:
        try:
            return await self._api.get(LEASES, self.name, self._namespace)
        except NotFound:
            return None

    def _free(self, lease: Object) -> bool:
        """True when we hold it, nobody does, or its holder has been silent for its duration."""
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == self.identity:
            return True
        seen = (holder, spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen = seen
            self._seen_at = self._clock()
        if not holder:
            return True
        duration = spec.get("leaseDurationSeconds")
        if not isinstance(duration, int) or duration <= 0:
            duration = self._duration
        self.state = f"held by {holder}"
        return self._clock() - self._seen_at >= duration

    async def _take(self, lease: Object | None) -> Object:
        now = _micro_time(self._now())
        spec: Object = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._duration,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        if lease is None:
            body: Object = {"metadata": {"name": self.name, "namespace": self._namespace}, "spec": spec}
            return await self._api.create(LEASES, body, self._namespace, urgent=True)
        old = lease.get("spec") or {}
        transitions = old.get("leaseTransitions")
        spec["leaseTransitions"] = transitions if isinstance(transitions, int) else 0
        if old.get("holderIdentity") == self.identity:
            spec["acquireTime"] = old.get("acquireTime") or now
        else:
            spec["leaseTransitions"] += 1
        return await self._api.replace(LEASES, {**lease, "spec": spec}, self._namespace, urgent=True)

    async def _release(self) -> None:
        if self._lease is None or self._renewed is None or self.lost.is_set():
            return
        now = _micro_time(self._now())
        spec = {**(self._lease.get("spec") or {}), "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
        self._renewed = None
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._api.replace(LEASES, {**self._lease, "spec": spec}, self._namespace, urgent=True)
            log.info("%s released Lease %s", self.identity, self.name)
        except (ApiError, TimeoutError) as error:
            log.warning("Lease %s was not released, it expires in %d s: %s", self.name, self._duration, error)


class Heartbeat:
    """Keeps the Lease of a node daemon fresh: holder is the node, silence for `duration_seconds` means it is gone."""

    def __init__(
        self,
        api: LeaseApi,
        component: str,
        node: str,
        *,
        namespace: str = NAMESPACE,
        duration_seconds: int = 900,
        renew_seconds: float = 300.0,
        now: Callable[[], datetime] = _now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.name = daemon_lease_name(component, node)
        self.state = "not started"
        self._api = api
        self._component = component
        self._node = node
        self._namespace = namespace
        self._duration = duration_seconds
        self._renew = renew_seconds
        self._now = now
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads renewals, guards nothing
        self._lease: Object | None = None
        self._backoff = Backoff(2.0, min(60.0, max(2.0, renew_seconds / 2)), self._random)

    async def run(self) -> None:
        """Renew until cancelled; a failure is retried, and the Lease outlives several of them."""
        while True:
            try:
                await self.renew()
            except ApiError as error:
                if self._backoff.failures == 0:
                    log.warning("Lease %s was not renewed: %s", self.name, error)
                self.state = str(error)
                await self._sleep(self._backoff.next())
            else:
                self._backoff.reset()
                self.state = "renewed"
                await self._sleep(self._renew * self._random.uniform(0.9, 1.0))

    async def renew(self) -> None:
        """One renewal; creates the Lease when it is missing. Raises ApiError.

        By create and update only, so that the daemon needs no right to patch Leases.
        """
        for last in (False, True):
            try:
                if self._lease is None:
                    self._lease = await self._read()
                self._lease = await self._write(self._lease)
                return
            except (Conflict, NotFound):
                self._lease = None  # somebody changed, created or deleted it since it was read: look again
                if last:
                    raise

    async def _read(self) -> Object | None:
        try:
            return await self._api.get(LEASES, self.name, self._namespace)
        except NotFound:
            return None

    async def _write(self, lease: Object | None) -> Object:
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": self._duration,
            "renewTime": _micro_time(self._now()),
        }
        if lease is not None:
            return await self._api.replace(LEASES, {**lease, "spec": {**(lease.get("spec") or {}), **spec}})
        labels = {"app.kubernetes.io/component": self._component}
        metadata = {"name": self.name, "namespace": self._namespace, "labels": labels}
        return await self._api.create(LEASES, {"metadata": metadata, "spec": spec}, self._namespace)


def daemon_lease_name(component: str, node: str) -> str:
    """`<component>.<node>`, cut to 253 characters with a hash when it is longer."""
    name = f"{component}.{node}"
    if len(name) <= _NAME_LIMIT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    # Each label must end with a letter or a digit, so the cut may not leave a dot or a dash at its end.
    return f"{name[: _NAME_LIMIT - _HASH_DIGITS - 1].rstrip('.-')}-{digest}"


def _micro_time(moment: datetime) -> str:
    """metav1.MicroTime: RFC 3339 with exactly six digits of a second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
