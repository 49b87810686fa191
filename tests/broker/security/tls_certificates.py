"""Certificates and stores for TLS tests, made in memory."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)
PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8


class Identity:
    """A private key and its certificate, signed by `issuer` or by the key itself."""

    def __init__(
        self,
        name: str,
        issuer: Identity | None = None,
        *,
        host: str = "broker.test",
        is_expired: bool = False,
    ) -> None:
        self.key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.issuer = self if issuer is None else issuer
        names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(self.issuer.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 9 * DAY)
            .not_valid_after(NOW - DAY if is_expired else NOW + DAY)
            .add_extension(x509.BasicConstraints(ca="ca" in name, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.issuer.key, hashes.SHA256())
        )
        self.der = certificate.public_bytes(serialization.Encoding.DER)
        self.pem = certificate.public_bytes(PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(PEM, PKCS8, encryption).decode()

    def keys(self, *chain: Identity) -> dict[str, str]:
        """Return the settings of an inline key store."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": self.key_pem(),
            "ssl.keystore.certificate.chain": "".join(one.pem for one in (self, *chain)),
        }

    def trust(self) -> dict[str, str]:
        """Return the settings of an inline trust store."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.pem}
