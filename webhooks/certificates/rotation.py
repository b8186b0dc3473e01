"""Certificates of our own making, for clusters without an issuer: every replica renews them, by compare-and-swap.

Each look reads the configurations, then the Secret, in this order: a caBundle is then set only where nobody has set it
since the Secret was read, so that a slow replica cannot put an older bundle back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from runtime.api import Conflict, NotFound, Object
from runtime.certificates import certificates_in
from runtime.resources import NAMESPACE, SECRETS, Resource
from webhooks.certificates.configurations import (
    TARGETS,
    Configuration,
    ConfigurationApi,
    Target,
    bundles_of,
    disown,
    read_configurations,
    set_bundle,
)
from webhooks.certificates.held import Held
from webhooks.certificates.keeper import Look
from webhooks.certificates.plan import Lifetimes, Situation, next_held
from webhooks.certificates.server_clock import skew_fault
from webhooks.certificates.serving_pair import UnusablePair

log = logging.getLogger(__name__)

_MOST_WRITES = 6
_SPAN = timedelta(hours=1)
"""Writes of one replica within this time, or within the life of a certificate where that is shorter; a change of
authorities takes three, and a caBundle has room for the authorities of them all."""

SECRET = "npufleet-webhook-tls"  # noqa: S105 - a name


class RotationApi(ConfigurationApi, Protocol):
    """The calls of `Api` that this needs."""

    async def replace(self, resource: Resource, body: Object, namespace: str | None = None) -> Object: ...


class Rotation:
    """A source of certificates for `hosts`. The Secret has to exist, empty if need be: nobody here may create one.

    `skew` tells how far the clock of `now` is ahead of the API server's, None while nobody knows.
    """

    pause_seconds = 15.0
    hurry_seconds = 2.0

    def __init__(
        self,
        api: RotationApi,
        *,
        hosts: frozenset[str],
        lifetimes: Lifetimes,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        skew: Callable[[], timedelta | None] = lambda: None,
        targets: Sequence[Target] = TARGETS,
    ) -> None:
        self._skew = skew
        self._api = api
        self._hosts = hosts
        self._lifetimes = lifetimes
        self._now = now
        self._clock = clock
        self._targets = targets
        self._trusted: tuple[str, float] | None = None
        self._written: deque[float] = deque()
        # Longer than a new caBundle is left to settle before a certificate of it is made: what somebody else has put
        # into the Secret is replaced before it is served.
        self.grace_seconds = lifetimes.settle.total_seconds() + 60.0

    async def look(self) -> Look:
        """One step of the rotation, if one is due. Raises ApiError; UnusablePair without the Secret."""
        configurations = await read_configurations(self._api, self._targets)
        try:
            secret = await self._api.get(SECRETS, SECRET, NAMESPACE)
        except NotFound as error:
            raise UnusablePair(
                f"Secret {NAMESPACE}/{SECRET} is missing: apply kustomize/components/certificates-built-in"
            ) from error
        held = Held.read(secret.get("data"))
        doubt = skew_fault(self._skew())
        if doubt is not None:
            return Look(held.leaf, configurations, doubt=doubt)
        planned = next_held(self._situation(held, configurations))
        if planned is not None:
            following, why = planned
            self._bound_writes(why)
            try:
                await self._api.replace(SECRETS, {**secret, "data": following.data()}, NAMESPACE)
            except Conflict:
                # Another replica was faster: what it wrote is looked at next.
                return Look(None, configurations, under_way=True)
            log.info("Changed Secret %s/%s: %s", NAMESPACE, SECRET, why)
            held = following
        behind = [one for one in configurations if any(bundle != held.bundle for bundle in one.bundles.values())]
        for configuration in configurations:
            try:
                if configuration in behind:
                    await set_bundle(self._api, configuration, held.bundle)
                    log.info("Set caBundle of %s", configuration.target)
                else:
                    await disown(self._api, configuration)  # of a replica that died, or of a former version
            except Conflict:
                continue  # changed since it was read: the next look sees it anew
        return Look(held.leaf, configurations, under_way=planned is not None or bool(behind))

    def _bound_writes(self, why: str) -> None:
        """Raises UnusablePair when the Secret was written too often: then somebody writes it back all the time."""
        span = min(_SPAN, self._lifetimes.leaf)
        while self._written and self._clock() - self._written[0] >= span.total_seconds():
            self._written.popleft()
        if len(self._written) >= _MOST_WRITES:
            raise UnusablePair(
                f"Secret {NAMESPACE}/{SECRET} was changed {_MOST_WRITES} times within {span.total_seconds():.0f} s and "
                f"is not as it should be yet ({why}): see who else writes it"
            )
        self._written.append(self._clock())

    def _situation(self, held: Held, configurations: Sequence[Configuration]) -> Situation:
        found = [certificates_in(bundle) for bundle in bundles_of(configurations)]
        return Situation(
            held=held,
            trusted_for=self._trusted_for(held, found),
            elsewhere=tuple(one for bundle in found for one in bundle),
            hosts=self._hosts,
            now=self._now(),
            lifetimes=self._lifetimes,
        )

    def _trusted_for(self, held: Held, bundles: Sequence[Sequence[object]]) -> timedelta | None:
        """Since when we have seen the newest authority in every caBundle. One who starts begins to wait anew."""
        if held.newest is None or any(held.newest.certificate not in bundle for bundle in bundles):
            self._trusted = None
            return None
        digest = str(held.newest.certificate.serial_number)
        if self._trusted is None or self._trusted[0] != digest:
            self._trusted = (digest, self._clock())
        return timedelta(seconds=self._clock() - self._trusted[1])
