"""Replicas of the webhook that renew their certificates in virtual time, on a cluster in memory, watched by a client.

The client is the API server: it believes configurations as they stood some seconds ago, and must never meet a replica
that was ready and serves what it does not trust.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from runtime.certificates import certificates_in
from runtime.resources import SECRETS
from tests.builders.webhook_cluster import VALIDATING, Died, WebhookCluster
from webhooks.certificates.held import Held
from webhooks.certificates.keeper import Keeper
from webhooks.certificates.plan import Lifetimes
from webhooks.certificates.rotation import SECRET, Rotation
from webhooks.certificates.serving import Serving

START = datetime(2026, 1, 1, tzinfo=UTC)
HOST = "npufleet-webhook.npufleet-system.svc"
LAG_SECONDS = 5.0
CALL_SECONDS = 1.0
QUICK = Lifetimes(
    authority=timedelta(hours=36), leaf=timedelta(hours=12), settle=timedelta(minutes=2), overlap=timedelta(minutes=60)
)


@dataclass
class World:
    """`seconds` is the clock of all. `deaths` are numbers of calls (counted from 0, twice each: before and after) at
    which the caller dies."""

    seconds: float = 0.0
    lifetimes: Lifetimes = QUICK
    deaths: set[int] = field(default_factory=set)
    calls: int = 0
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = WebhookCluster(lambda: self.seconds)
        self.cluster.fault = self._call
        self.replicas: list[Replica] = []

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def held(self) -> Held:
        return Held.read(self.cluster.find(SECRETS, SECRET).get("data"))

    def authorities_trusted(self) -> set[int]:
        found: set[int] = set()
        for bundle in self.bundles(0.0):
            found |= {one.serial_number for one in certificates_in(bundle)}
        return found

    def bundles(self, seconds_ago: float) -> Iterator[bytes]:
        """What the entries of the configuration trust, each bundle once."""
        entries = self.cluster.believed(VALIDATING.name, seconds_ago)["webhooks"]
        for told in {entry["clientConfig"].get("caBundle", "") for entry in entries}:
            yield base64.b64decode(told)

    async def run(self, hours: float) -> None:
        """Let time go by: each replica looks when it is due, and the client asks after every call."""
        end = self.seconds + hours * 3600
        while True:
            replica = min(self.replicas, key=lambda one: one.due)
            if replica.due > end:
                self.seconds = end
                self.ask()
                return
            self.seconds = max(self.seconds, replica.due)
            await replica.look()
            self.ask()

    def ask(self) -> None:
        """A handshake of the API server with each replica that is ready for long enough to be asked."""
        asked = [(one.name, one.serving.pair) for one in self.replicas if one.serving.pair and one.is_asked()]
        if not asked:
            return
        now, bundles = self.now(), list(self.bundles(LAG_SECONDS))
        for name, pair in asked:
            if not all(pair.is_trusted_by(bundle, now) for bundle in bundles):
                self.refusals.append(f"at {now}: {name} serves what is not trusted")

    def _call(self, when: str, verb: str, name: str) -> None:
        number = self.calls
        self.calls += 1
        self.seconds += CALL_SECONDS / 2
        self.ask()
        if number in self.deaths:
            raise Died


class Replica:
    """One process, which is started again whenever it dies."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        pause: float = 1200.0,
        hosts: frozenset[str] = frozenset({HOST}),
        skew: timedelta = timedelta(),
    ):
        self.world = world
        self.skew = skew
        self.name = name
        self.pause = pause
        self.hosts = hosts
        self.deaths = 0
        self.due = world.seconds
        world.replicas.append(self)
        self.start()

    def start(self) -> None:
        """A process that remembers nothing."""
        world = self.world
        self.serving = Serving()
        self.rotation = Rotation(
            world.cluster,
            hosts=self.hosts,
            lifetimes=world.lifetimes,
            now=self.now,
            clock=lambda: world.seconds,
            skew=lambda: self.skew,
            targets=(VALIDATING,),
        )
        self.keeper = Keeper(self.rotation, self.serving, hosts=self.hosts, now=self.now, clock=lambda: world.seconds)
        self._ready_since: float | None = None

    def now(self) -> datetime:
        """By its own clock."""
        return self.world.now() + self.skew

    async def look(self) -> None:
        try:
            in_hurry = await self.keeper.look()
        except Died:
            self.deaths += 1
            self.start()
            self.due = self.world.seconds + 3.0
            return
        ready = self.keeper.fault() is None
        self._ready_since = (self._ready_since or self.world.seconds) if ready else None
        self.due = self.world.seconds + (2.0 if in_hurry else self.pause)

    def is_asked(self) -> bool:
        """Endpoints list a replica some time after it has become ready."""
        return self._ready_since is not None and self.world.seconds - self._ready_since > LAG_SECONDS
