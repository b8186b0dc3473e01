"""A serving certificate as a source gives it: read whole or refused, so that a half-written one is never served."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from runtime.certificates import Certificate, Pair, certificates_in, hosts_of, is_valid, key_fits, trusts

# A certificate that ends within this part of its life, and within this time, is near its end.
_NEAR_PART = 0.05
_NEAR_TIME = timedelta(hours=1)


class UnusablePair(ValueError):  # noqa: N818 - says what is wrong with the pair
    """What a source holds is no certificate with its key; the text says why."""


@dataclass(frozen=True, slots=True)
class ServingPair:
    """A certificate with its chain and its key. `digest` tells whether it is another one than before."""

    chain: tuple[Certificate, ...]
    chain_pem: bytes
    key_pem: bytes
    digest: str

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> ServingPair:
        """From PEM: the leaf first, then what is between it and its authority. Raises UnusablePair."""
        chain = certificates_in(certificate)
        if not chain:
            raise UnusablePair("tls.crt holds no certificate in PEM")
        if not key.strip():
            raise UnusablePair("tls.key is empty")
        if not key_fits(chain[0], key):
            raise UnusablePair("tls.key is not the key of the first certificate in tls.crt")
        digest = hashlib.sha256(certificate + b"\0" + key).hexdigest()
        return cls(chain, certificate, key, digest)

    @classmethod
    def of(cls, pair: Pair) -> ServingPair:
        return cls.read(pair.certificate, pair.key)

    @property
    def leaf(self) -> Certificate:
        return self.chain[0]

    @property
    def ends(self) -> datetime:
        return self.leaf.not_valid_after_utc

    @property
    def hosts(self) -> frozenset[str]:
        return hosts_of(self.leaf)

    def is_valid(self, now: datetime) -> bool:
        return is_valid(self.leaf, now)

    def is_trusted_by(self, bundle: bytes, now: datetime) -> bool:
        """Whether a client with this caBundle accepts it."""
        return trusts(certificates_in(bundle), self.chain, now)

    def age_fault(self, now: datetime) -> str | None:
        """Why it cannot be served for long, or at all, at that moment; None when it can."""
        if now < self.leaf.not_valid_before_utc:
            return f"the certificate is valid from {_shown(self.leaf.not_valid_before_utc)} only"
        if now > self.ends:
            return f"the certificate ended at {_shown(self.ends)}"
        life = self.ends - self.leaf.not_valid_before_utc
        if self.ends - now < min(_NEAR_TIME, life * _NEAR_PART):
            return f"the certificate ends at {_shown(self.ends)} and was not renewed"
        return None


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
