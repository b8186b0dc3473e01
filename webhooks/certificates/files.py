"""Certificates from a directory, as an issuer's Secret is mounted: read again all the time, told apart by content.

Times of change say nothing: the kubelet swaps a link, and a copy may keep its times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from runtime.api import ApiError
from webhooks.certificates.configurations import (
    TARGETS,
    Configuration,
    ConfigurationApi,
    Target,
    bundles_of,
    read_configurations,
)
from webhooks.certificates.held import LEAF, LEAF_KEY
from webhooks.certificates.keeper import Look
from webhooks.certificates.serving_pair import ServingPair, UnusablePair

_CONFIGURATIONS_SECONDS = 15.0
_MOST_BYTES = 1 << 20


class Files:
    """A source of certificates: `tls.crt` and `tls.key` of `directory`."""

    pause_seconds = 1.0
    hurry_seconds = 1.0
    grace_seconds = 30.0

    def __init__(
        self,
        api: ConfigurationApi,
        directory: Path,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        targets: Sequence[Target] = TARGETS,
    ) -> None:
        self._api = api
        self._directory = directory
        self._now = now
        self._clock = clock
        self._targets = targets
        self._configurations: list[Configuration] | None = None
        self._asked = float("-inf")

    async def look(self) -> Look:
        """The files as they are now. Raises UnusablePair: two files that do not fit (yet) are one."""
        pair = ServingPair.read(self._read(LEAF), self._read(LEAF_KEY))
        doubt = None
        if self._are_due(pair):
            try:
                self._configurations = await read_configurations(self._api, self._targets)
                self._asked = self._clock()
            except ApiError as error:
                # The certificate is served all the same: the API server that cannot be asked will come back.
                doubt = f"whether the API server trusts the certificate is not known: {error}"
        if self._configurations is None:
            return Look(pair, (), doubt=doubt)
        return Look(pair, self._configurations)

    def _are_due(self, pair: ServingPair) -> bool:
        """Asked now and then, and at every look while they do not trust what the files hold."""
        if self._configurations is None or self._clock() - self._asked >= _CONFIGURATIONS_SECONDS:
            return True
        return not all(pair.is_trusted_by(bundle, self._now()) for bundle in bundles_of(self._configurations))

    def _read(self, name: str) -> bytes:
        path = self._directory / name
        try:
            with path.open("rb") as file:
                return file.read(_MOST_BYTES)
        except OSError as error:
            raise UnusablePair(f"{path}: {error.strerror}") from error
