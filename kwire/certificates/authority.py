"""A certificate authority with a P-256 key, and the certificates that it issues (RFC 5280).

    authority = Authority.create("development", now_ms)
    broker = authority.issue("CN=broker", ["localhost", "127.0.0.1"], now_ms=now_ms)
    broker.key_pem, broker.chain_pem, authority.certificate_pem

Nodes and clients can use the certificates, since a broker is also a client of other brokers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from kwire.certificates import CertificatesUnavailable
from kwire.wire.named_tuple import NamedTuple

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise CertificatesUnavailable(
        "the Python package cryptography is not installed, and certificates need it: pip install 'kwire[tls]'"
    ) from error

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""The longest lifetime that Apple's TLS libraries accept in a certificate of a private authority."""
CLOCK_SKEW: Final = timedelta(hours=1)
"""A certificate is valid this long before it is issued, because the clocks of machines differ."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ALIAS: Final = "kafka"
"""The alias of an entry in a PKCS12 store. Apache Kafka uses this alias for PEM key stores."""

_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*")
_MAX_HOST_LENGTH: Final = 253

_PEM: Final = serialization.Encoding.PEM
_DER: Final = serialization.Encoding.DER


class IssuedCertificate(NamedTuple):
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"IssuedCertificate({self.subject}, [hidden])"

    @classmethod
    def load(cls, text: str) -> IssuedCertificate:
        """Load a certificate and its private key from a PEM text. Raises ValueError if one is missing."""
        certificate = x509.load_pem_x509_certificate(text.encode())
        return cls(certificate, _load_key(certificate, text))

    @property
    def subject(self) -> str:
        """The subject as in RFC 4514, which differs from the name of the principal for rare attributes."""
        return self.certificate.subject.rfc4514_string()

    @property
    def der(self) -> bytes:
        """The certificate as DER."""
        return self.certificate.public_bytes(_DER)

    @property
    def chain(self) -> tuple[bytes, ...]:
        """The certificates to send, as DER. A root certificate is not sent (RFC 8446, section 4.4.2)."""
        return (self.der,)

    @property
    def chain_pem(self) -> str:
        """The certificates to send, as PEM."""
        return self.certificate.public_bytes(_PEM).decode()

    @property
    def key_der(self) -> bytes:
        """The private key as DER in PKCS #8."""
        return _private_bytes(self.key, _DER)

    @property
    def key_pem(self) -> str:
        """The private key as PEM in PKCS #8."""
        return _private_bytes(self.key, _PEM).decode()

    @property
    def names(self) -> list[str]:
        """The host names and IP addresses, in the order of the certificate."""
        try:
            found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return []
        return [str(one.value) for one in found]

    @property
    def expires_ms(self) -> int:
        """The end of the validity in ms since 1970."""
        return _milliseconds(self.certificate.not_valid_after_utc)

    def inline_settings(self) -> dict[str, str]:
        """Return the key store as Kafka's settings, with the key and the certificate as texts."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": self.key_pem,
            "ssl.keystore.certificate.chain": self.chain_pem,
        }

    def key_store(self, password: str) -> bytes:
        """Return a PKCS12 key store, which Java reads, too."""
        return pkcs12.serialize_key_and_certificates(
            ALIAS.encode(),
            self.key,
            self.certificate,
            None,
            serialization.BestAvailableEncryption(password.encode()),
        )


class Authority:
    """A certificate authority. Clients and brokers that trust it accept the certificates that it issues."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    def __repr__(self) -> str:
        return f"Authority({self.certificate.subject.rfc4514_string()}, [hidden])"

    @classmethod
    def create(cls, name: str, now_ms: int, lifetime_days: int = AUTHORITY_DAYS) -> Authority:
        """Create an authority with a new key and a self-signed certificate. `name` is the common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = _moment(now_ms)
        builder = _builder(subject, subject, key, now - CLOCK_SKEW, now + timedelta(days=lifetime_days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(is_authority=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate_pem: str, key_pem: str) -> Authority:
        """Load an authority that was stored as PEM. Raises ValueError if the texts are not an authority."""
        certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
        key = _load_key(certificate, key_pem)
        try:
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = x509.BasicConstraints(ca=False, path_length=None)
        if not constraints.ca:
            raise ValueError("the certificate is not that of an authority")
        return cls(certificate, key)

    @property
    def der(self) -> bytes:
        """The certificate as DER."""
        return self.certificate.public_bytes(_DER)

    @property
    def certificate_pem(self) -> str:
        """The certificate as PEM, which others have to trust."""
        return self.certificate.public_bytes(_PEM).decode()

    @property
    def key_pem(self) -> str:
        """The private key as PEM in PKCS #8."""
        return _private_bytes(self._key, _PEM).decode()

    @property
    def expires_ms(self) -> int:
        """The end of the validity in ms since 1970."""
        return _milliseconds(self.certificate.not_valid_after_utc)

    def inline_settings(self) -> dict[str, str]:
        """Return the trust store as Kafka's settings, with the certificate as text."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.certificate_pem}

    def trust_store(self, password: str) -> bytes:
        """Return a PKCS12 trust store, which Java reads, too."""
        trusted = pkcs12.PKCS12Certificate(self.certificate, ALIAS.encode())
        encryption = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_java_truststore([trusted], encryption)

    def has_issued(self, issued: IssuedCertificate) -> bool:
        """Return whether the certificate has this authority's signature."""
        try:
            issued.certificate.verify_directly_issued_by(self.certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    def issue(
        self, subject: str, names: Sequence[str] = (), *, now_ms: int, lifetime_days: int = CERTIFICATE_DAYS
    ) -> IssuedCertificate:
        """Issue a certificate with a new key, for a node or a client.

        `subject` is a distinguished name as in RFC 4514, such as `CN=alice,OU=billing`. `names` are the host
        names and IP addresses of a node. The certificate does not outlive that of the authority. Raises
        ValueError for an invalid subject or name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = _moment(now_ms)
        not_after = min(now + timedelta(days=lifetime_days), self.certificate.not_valid_after_utc)
        issuer = self.certificate.subject
        builder = _builder(_parse_subject(subject), issuer, key, now - CLOCK_SKEW, not_after)
        own_key_id = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        authority_key_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_key_id)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(authority_key_id, critical=False)
        )
        if names:
            alternative = x509.SubjectAlternativeName([_general_name(name) for name in names])
            builder = builder.add_extension(alternative, critical=False)
        return IssuedCertificate(builder.sign(self._key, hashes.SHA256()), key)


def common_name(name: str) -> str:
    """Return the subject with this common name and no other attribute."""
    return f"CN={re.sub(r'([^A-Za-z0-9])', _escaped, name)}"


def canonical_name(name: str) -> str:
    """Return a host name or IP address as it is in certificates. Raises ValueError if it is invalid."""
    return str(_general_name(name).value)


def _load_key(certificate: x509.Certificate, text: str) -> ec.EllipticCurvePrivateKey:
    """Load the private key of a certificate. Raises ValueError if the text has none, or another one."""
    try:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    except TypeError as error:  # the key is encrypted
        raise ValueError("the private key has a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the private key is not an elliptic-curve key")
    if key.public_key() != certificate.public_key():
        raise ValueError("the private key does not belong to the certificate")
    return key


def _escaped(found: re.Match[str]) -> str:
    """Return a character in a form that is valid everywhere in a value. RFC 4514, section 2.4."""
    return "".join(f"\\{byte:02x}" for byte in found[0].encode())


def _parse_subject(text: str) -> x509.Name:
    try:
        subject = x509.Name.from_rfc4514_string(text)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        raise ValueError(f"{text} is not a subject such as CN=alice,OU=billing{why}") from error
    if not list(subject):
        raise ValueError("the subject is empty: use one such as CN=alice,OU=billing")
    return subject


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        encoded = name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        encoded = ""
    is_number = encoded.replace(".", "").isdigit()  # an IPv4 address with a typing error
    if is_number or len(encoded) > _MAX_HOST_LENGTH or _HOST.fullmatch(encoded) is None:
        raise ValueError(f"{name!r} is neither a host name nor an IP address")
    return x509.DNSName(encoded)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(not_before, not_after))
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _private_bytes(key: ec.EllipticCurvePrivateKey, encoding: serialization.Encoding) -> bytes:
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _moment(time_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time_ms)


def _milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)
