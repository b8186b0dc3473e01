"""Keeps the server's certificate good: looks at the source and at the configurations again and again.

A new certificate is served once the API server trusts it. Where that does not come to pass within a grace it is served
all the same: what a person put there is the truth, and readiness says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from runtime.api import ApiError
from webhooks.certificates.configurations import Configuration
from webhooks.certificates.serving import Serving
from webhooks.certificates.serving_pair import ServingPair, UnusablePair

log = logging.getLogger(__name__)

# API servers learn of a changed configuration by their own watch, a moment after it can be read.
TRUST_SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the certificate that is to be served, and the configurations as they stood before the look.

    `under_way`: something was changed, or failed, that the next look should see soon. `doubt`: why it is not known
    whether the certificate is trusted.
    """

    pair: ServingPair | None
    configurations: Sequence[Configuration]
    under_way: bool = False
    doubt: str | None = None


class Source(Protocol):
    """Where certificates come from. `hurry_seconds` is the pause between looks while something is under way,
    `grace_seconds` how long a new certificate waits for the trust in it while the former one is good."""

    pause_seconds: float
    hurry_seconds: float
    grace_seconds: float

    async def look(self) -> Look:
        """What there is now; does what is due for renewal. Raises ApiError, UnusablePair."""
        ...


class Keeper:
    """Follows one source for one server. `fault` is for the readiness check: plain reading, from any thread."""

    def __init__(
        self,
        source: Source,
        serving: Serving,
        *,
        hosts: frozenset[str],
        now: Callable[[], datetime],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._serving = serving
        self._hosts = hosts
        self._now = now
        self._clock = clock
        self._sleep = sleep
        self._source_fault: str | None = "the certificate was not looked for yet"
        self._trust_fault: str | None = None
        self._offered: tuple[str, float] | None = None
        self._trusted_at: float | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            in_hurry = await self.look()
            await self._sleep(self._source.hurry_seconds if in_hurry else self._source.pause_seconds)

    async def look(self) -> bool:
        """One look; True when the next one should come soon."""
        try:
            found = await self._source.look()
        except (ApiError, UnusablePair) as error:
            self._tell(str(error))
            return True
        except Exception as error:
            # Whatever it is, the certificate that is served stays good for a while, and the next look may go well.
            log.exception("Looking for the certificate failed")
            self._tell(f"{type(error).__name__}: {error}")
            return True
        waits = False
        fault = None
        if found.pair is not None:
            try:
                waits = self._offer(found.pair, found.configurations)
            except UnusablePair as error:
                fault = str(error)
        self._tell(fault)
        self._trust_fault = found.doubt or self._untrusting(found.configurations)
        return waits or found.under_way or self._trust_fault is not None or fault is not None

    def fault(self) -> str | None:
        """Why the API server cannot, or soon could not, talk to this server; None when it can."""
        own = self._serving.fault(self._now())
        if own is not None:
            return f"{own}: {self._source_fault}" if self._source_fault else own
        return self._trust_fault

    @property
    def source_fault(self) -> str | None:
        """What is wrong with the source, though the certificate that is served may be good."""
        return self._source_fault

    def _offer(self, pair: ServingPair, configurations: Sequence[Configuration]) -> bool:
        """Serve it, unless what is served is better for now; True when it has to wait."""
        served, now = self._serving.pair, self._now()
        if served is None or served.digest == pair.digest:
            self._offered = None
            self._serving.use(pair)
            return False
        if self._offered is None or self._offered[0] != pair.digest:
            self._offered = (pair.digest, self._clock())
            self._trusted_at = None
        if _distrusting(pair, configurations, now):
            self._trusted_at = None
            wait_until = self._offered[1] + self._source.grace_seconds
        else:
            self._trusted_at = self._clock() if self._trusted_at is None else self._trusted_at
            wait_until = self._trusted_at + TRUST_SETTLE_SECONDS
        still_good = served.is_valid(now) and not _distrusting(served, configurations, now)
        if still_good and self._clock() < wait_until:
            return True
        self._offered = None
        self._serving.use(pair)
        return False

    def _untrusting(self, configurations: Sequence[Configuration]) -> str | None:
        pair = self._serving.pair
        if pair is None:
            return None
        lacking = self._hosts - pair.hosts
        if lacking:
            return f"the certificate is not for {', '.join(sorted(lacking))}"
        where = _distrusting(pair, configurations, self._now())
        return f"caBundle of {', '.join(where)} does not trust the certificate that is served" if where else None

    def _tell(self, fault: str | None) -> None:
        if fault is not None and fault != self._source_fault:
            log.warning("The certificate: %s", fault)
        self._source_fault = fault


def _distrusting(pair: ServingPair, configurations: Sequence[Configuration], now: datetime) -> list[str]:
    """The configurations whose caBundle does not fit. One that has no entries asks nobody."""
    return [
        str(configuration.target)
        for configuration in configurations
        if not all(pair.is_trusted_by(bundle, now) for bundle in configuration.bundles.values())
    ]
