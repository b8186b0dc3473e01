"""Keys and certificates of the local control plane. Two authorities: one for Kubernetes identities, one for etcd alone,
so that no Kubernetes client certificate (a node's, say) opens the database."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cli.cluster.files import write_private
from runtime.certificates import (
    CLIENT,
    SERVER,
    Authority,
    Pair,
    authority_of,
    name,
    new_authority,
    new_key,
    new_leaf,
    private_pem,
    public_pem,
)

__all__ = [
    "Authority",
    "Pair",
    "authority_at",
    "client_pair",
    "load_authority",
    "server_pair",
    "signing_key_at",
    "signing_request",
    "write_pair",
]

AUTHORITY_LIFE = datetime.timedelta(days=3650)
LEAF_LIFE = datetime.timedelta(days=365)


def authority_at(certificate: Path, key: Path, common_name: str) -> Authority:
    """The authority kept in these files; made anew when they are absent, damaged, do not belong together, or expire
    within a year (a leaf must never outlive its authority)."""
    existing = load_authority(certificate, key)
    if existing is not None and existing.certificate.not_valid_after_utc > _now() + LEAF_LIFE:
        return existing
    made = new_authority(common_name, now=_now(), lifetime=AUTHORITY_LIFE)
    write_private(key, made.key_pem)
    write_private(certificate, made.pem)
    return made


def load_authority(certificate: Path, key: Path) -> Authority | None:
    """The authority kept in these files, or None when they are absent, damaged or do not belong together."""
    try:
        return authority_of(certificate.read_bytes(), key.read_bytes())
    except OSError:
        return None


def signing_key_at(private: Path, public: Path) -> None:
    """Make the service account key pair unless a usable one is there."""
    try:
        loaded = serialization.load_pem_private_key(private.read_bytes(), password=None)
        key = loaded if isinstance(loaded, ec.EllipticCurvePrivateKey) else None
    except (OSError, ValueError):
        key = None
    if key is None:
        key = new_key()
        write_private(private, private_pem(key))
    write_private(public, public_pem(key))


def client_pair(authority: Authority, user: str, groups: tuple[str, ...] = ()) -> Pair:
    """A client certificate: Kubernetes takes the user from the common name and the groups from the organizations."""
    return new_leaf(authority, user, organizations=groups, usages=[CLIENT], now=_now(), lifetime=LEAF_LIFE)


def server_pair(authority: Authority, common_name: str, hosts: tuple[str, ...], *, also_client: bool = False) -> Pair:
    """A serving certificate for `hosts` (DNS names and IP addresses)."""
    usages = [SERVER, *([CLIENT] if also_client else [])]
    return new_leaf(authority, common_name, hosts=hosts, usages=usages, now=_now(), lifetime=LEAF_LIFE)


def write_pair(pair: Pair, certificate: Path, key: Path) -> None:
    write_private(key, pair.key)
    write_private(certificate, pair.certificate)


def signing_request(user: str, groups: tuple[str, ...]) -> Pair:
    """A PKCS#10 request (as `certificate`) and its new key, for a cluster whose authority we do not hold."""
    key = new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(name(user, groups)).sign(key, hashes.SHA256())
    return Pair(request.public_bytes(serialization.Encoding.PEM), private_pem(key))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
