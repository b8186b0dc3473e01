"""What the Secret holds: authorities that are to be trusted, the key of the newest, and the leaf that is served.

Everything that a rotation needs to know stands in this one object, so that one compare-and-swap moves it from one sound
state to the next, and a process that dies leaves nothing else behind.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.certificates import Authority, Certificate, authority_of, certificates_in, pem, signed
from webhooks.certificates.serving_pair import ServingPair, UnusablePair

LEAF = "tls.crt"
LEAF_KEY = "tls.key"
BUNDLE = "ca.crt"
AUTHORITY_KEY = "ca.key"


@dataclass(frozen=True, slots=True)
class Held:
    """`authorities`: newest first. `newest` is None when its key is not there; `leaf` None when there is none."""

    authorities: tuple[Certificate, ...] = ()
    newest: Authority | None = None
    leaf: ServingPair | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> Held:
        """From `data` of a Secret, whatever it holds: what cannot be read is not there."""
        values = {key: _decoded(data, key) for key in (LEAF, LEAF_KEY, BUNDLE, AUTHORITY_KEY)}
        authorities = certificates_in(values[BUNDLE])
        newest = authority_of(pem(authorities[0]), values[AUTHORITY_KEY]) if authorities else None
        try:
            leaf = ServingPair.read(values[LEAF], values[LEAF_KEY])
        except UnusablePair:
            leaf = None
        return cls(authorities, newest, leaf)

    def data(self) -> dict[str, str]:
        """As `data` of a Secret."""
        values = {BUNDLE: self.bundle}
        if self.newest is not None:
            values[AUTHORITY_KEY] = self.newest.key_pem
        if self.leaf is not None:
            values |= {LEAF: self.leaf.chain_pem, LEAF_KEY: self.leaf.key_pem}
        return {key: base64.b64encode(value).decode() for key, value in values.items()}

    @property
    def bundle(self) -> bytes:
        """What the API server is to trust."""
        return bundle_of(self.authorities)

    @property
    def leaf_is_of_newest(self) -> bool:
        return self.leaf is not None and self.newest is not None and signed(self.newest.certificate, self.leaf.leaf)


def bundle_of(authorities: Iterable[Certificate]) -> bytes:
    """A caBundle."""
    return b"".join(map(pem, authorities))


def _decoded(data: Mapping[str, Any] | None, key: str) -> bytes:
    value = (data or {}).get(key)
    if not isinstance(value, str):
        return b""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""
