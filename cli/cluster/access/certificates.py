"""Keys and certificates of the local control plane. Two authorities: one for Kubernetes identities, one for etcd alone,
so that no Kubernetes client certificate (a node's, say) opens the database."""

from __future__ import annotations

import datetime
import ipaddress
import warnings
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.errors import ClusterError
from cli.cluster.files import write_private

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:
    raise ClusterError(f"{error.name} is not installed: pip install 'npufleet[cluster]'") from error

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
RENEW_BEFORE = datetime.timedelta(days=LEAF_DAYS)
# A clock that was set back a little must not make a fresh certificate "not yet valid".
BACKDATED = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def authority_at(certificate: Path, key: Path, common_name: str) -> Authority:
    """The authority kept in these files; made anew when they are absent, damaged, do not belong together, or expire
    within a year (a leaf must never outlive its authority)."""
    existing = _load(certificate, key)
    if existing is not None and existing.certificate.not_valid_after_utc > _now() + RENEW_BEFORE:
        return existing
    made = _new_authority(common_name)
    write_private(key, _private_pem(made.key))
    write_private(certificate, made.pem)
    return made


def load_authority(certificate: Path, key: Path) -> Authority | None:
    """The authority kept in these files, or None when they are absent, damaged or do not belong together."""
    return _load(certificate, key)


def signing_key_at(private: Path, public: Path) -> None:
    """Make the service account key pair unless a usable one is there."""
    try:
        loaded = serialization.load_pem_private_key(private.read_bytes(), password=None)
        key = loaded if isinstance(loaded, ec.EllipticCurvePrivateKey) else None
    except (OSError, ValueError):
        key = None
    if key is None:
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(private, _private_pem(key))
    write_private(
        public,
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


def client_pair(authority: Authority, user: str, groups: tuple[str, ...] = ()) -> Pair:
    """A client certificate: Kubernetes takes the user from the common name and the groups from the organizations."""
    return _leaf(authority, user, groups, (), [ExtendedKeyUsageOID.CLIENT_AUTH])


def server_pair(authority: Authority, common_name: str, hosts: tuple[str, ...], *, also_client: bool = False) -> Pair:
    """A serving certificate for `hosts` (DNS names and IP addresses)."""
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if also_client else [])]
    return _leaf(authority, common_name, (), hosts, usages)


def write_pair(pair: Pair, certificate: Path, key: Path) -> None:
    write_private(key, pair.key)
    write_private(certificate, pair.certificate)


def signing_request(user: str, groups: tuple[str, ...]) -> Pair:
    """A PKCS#10 request (as `certificate`) and its new key, for a cluster whose authority we do not hold."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(user, groups)).sign(key, hashes.SHA256())
    return Pair(request.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def _load(certificate: Path, key: Path) -> Authority | None:
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError):
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or loaded.public_key() != private.public_key():
        return None
    return Authority(loaded, private)


def _new_authority(common_name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name, ())
    certificate = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _leaf(
    authority: Authority,
    common_name: str,
    organizations: tuple[str, ...],
    hosts: tuple[str, ...],
    usages: list[x509.ObjectIdentifier],
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(common_name, organizations), authority.certificate.subject, key, LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - BACKDATED)
        .not_valid_after(_now() + datetime.timedelta(days=days))
    )


def _name(common_name: str, organizations: tuple[str, ...]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    with warnings.catch_warnings():
        # X.520 stops at 64 characters; `system:node:<name>` may have 265, and the API server reads them all.
        warnings.simplefilter("ignore", UserWarning)
        return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name, _validate=False)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
