"""Authorities, the certificates that they sign, and who trusts whom: one making and one reading for everything.

Nothing here reads a clock: the moment from which something holds is given.
"""

from __future__ import annotations

import datetime
import ipaddress
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Certificate = x509.Certificate

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH

# A clock that was set back a little must not make a fresh certificate "not yet valid".
BACKDATED = datetime.timedelta(hours=1)

_MAX_DEPTH = 8
_MAX_CERTIFICATES = 64


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        return private_pem(self.key)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(common_name: str, *, now: datetime.datetime, lifetime: datetime.timedelta) -> Authority:
    """A self-signed authority for leaves only."""
    key = new_key()
    named = name(common_name)
    certificate = (
        _builder(named, named, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def new_leaf(
    authority: Authority,
    common_name: str,
    *,
    organizations: Iterable[str] = (),
    hosts: Iterable[str] = (),
    usages: Sequence[x509.ObjectIdentifier] = (SERVER,),
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> Pair:
    """A certificate of its own key for `hosts` (DNS names and IP addresses). It never outlives its authority."""
    key = new_key()
    lifetime = min(lifetime, authority.certificate.not_valid_after_utc - now)
    builder = (
        _builder(name(common_name, organizations), authority.certificate.subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    named = [_host(host) for host in hosts]
    if named:
        builder = builder.add_extension(x509.SubjectAlternativeName(named), critical=False)
    return Pair(pem(builder.sign(authority.key, hashes.SHA256())), private_pem(key))


def authority_of(certificate: bytes, key: bytes) -> Authority | None:
    """The authority of these PEM texts; None when they cannot be read or do not belong together."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or loaded.public_key() != private.public_key():
        return None
    return Authority(loaded, private)


def key_fits(certificate: x509.Certificate, key: bytes) -> bool:
    """Whether this PEM is the private key, of whatever algorithm, of the certificate."""
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        return False
    return private.public_key() == certificate.public_key()


@lru_cache(maxsize=64)
def certificates_in(text: bytes) -> tuple[x509.Certificate, ...]:
    """All certificates of a PEM text, in its order; empty when there is none or one of them cannot be read."""
    try:
        return tuple(x509.load_pem_x509_certificates(text))[:_MAX_CERTIFICATES]
    except ValueError:
        return ()


def trusts(roots: Iterable[x509.Certificate], chain: Sequence[x509.Certificate], now: datetime.datetime) -> bool:
    """Whether a client that trusts `roots` accepts `chain` (the leaf first) at that moment, whatever it is for."""
    trusted = tuple(roots)
    if not chain:
        return False
    current, rest = chain[0], list(chain[1:])
    for _ in range(_MAX_DEPTH):
        if not is_valid(current, now):
            return False
        if current in trusted:
            return True
        if any(is_valid(root, now) and signed(root, current) for root in trusted):
            return True
        issuer = next((one for one in rest if signed(one, current)), None)
        if issuer is None:
            return False
        rest.remove(issuer)
        current = issuer
    return False


def is_valid(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


@lru_cache(maxsize=256)
def signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether `issuer` is an authority and has signed the certificate."""
    try:
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        certificate.verify_directly_issued_by(issuer)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature):
        return False
    return True


def hosts_of(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names and IP addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return frozenset(names.get_values_for_type(x509.DNSName)) | frozenset(addresses)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def name(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    """A subject; the common name may be longer than X.520 allows, which Go does not mind."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    with warnings.catch_warnings():
        # X.520 stops at 64 characters; `system:node:<name>` may have 265, and the API server reads them all.
        warnings.simplefilter("ignore", UserWarning)
        return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name, _validate=False)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
    )


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
