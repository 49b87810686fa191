"""TLS in tests: certificates made in memory, for a listener and for clients.

The module that makes certificates is imported on first use: its package `cryptography` is optional, and the
import takes 60 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from kwire.certificates.authority import Authority, IssuedCertificate

ClientAuth = Literal["none", "requested", "required"]
"""The values of `ssl.client.auth`."""
Defect = Literal["expired", "foreign", "wrong-host"]
"""Reasons why a peer refuses a certificate: its end, its authority, or its host names."""

HOST_NAMES: Final = ("localhost", "127.0.0.1", "::1")
WRONG_HOST_NAMES: Final = ("wrong-host.test",)
BROKER_NAME: Final = "broker"
OWN_NAME: Final = "kwire-testing"
"""The common name of the certificate with which `Broker` and `Cluster` connect to themselves."""
DAY_MS: Final = 24 * 3600 * 1000
VALID_DAYS: Final = 30


class Tls(NamedTuple):
    """The TLS settings of a `Broker` or `Cluster`."""

    client_auth: ClientAuth = "none"
    """The value of `ssl.client.auth`: whether clients need a certificate."""
    defect: Defect | None = None
    """A reason for clients to refuse the broker's certificate; None for a valid certificate."""


class ClientTls(NamedTuple):
    """The certificates of a client, as PEM."""

    authority: str
    """The certificate of the authority that the client trusts."""
    certificate: str = ""
    """The client's own certificate; empty if the client has none."""
    key: str = ""
    """The private key of the client's certificate, in PKCS #8."""

    def __repr__(self) -> str:
        return f"ClientTls({'[hidden]' if self.key else 'no certificate'})"

    def java(self) -> dict[str, str]:
        """Return the settings of the Java client, without the security protocol."""
        settings = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.authority}
        if self.key:
            settings["ssl.keystore.type"] = "PEM"
            settings["ssl.keystore.key"] = self.key
            settings["ssl.keystore.certificate.chain"] = self.certificate
        return settings

    def confluent(self) -> dict[str, str]:
        """Return the settings of librdkafka, without the security protocol."""
        settings = {"ssl.ca.pem": self.authority}
        if self.key:
            settings["ssl.certificate.pem"] = self.certificate
            settings["ssl.key.pem"] = self.key
        return settings


class Certificates:
    """The authority of a broker or cluster, and the certificates that it issues to brokers and clients."""

    def __init__(self, tls: Tls) -> None:
        """Create the authority. Raises ImportError if the package `cryptography` is not installed."""
        from kwire.certificates.authority import Authority
        from kwire.host.system_time import libc_time_ns

        self.tls = tls
        self._now_ms = libc_time_ns() // 1_000_000
        self._authority = Authority.create("kwire.testing CA", self._now_ms)
        self._foreign_authority: Authority | None = None
        self._clients: dict[tuple[str, Defect | None], IssuedCertificate] = {}

    def listener_settings(self, listener: str) -> dict[str, str]:
        """Return the broker configs of a listener: key store, trust store and client authentication."""
        issued = self._issue(BROKER_NAME, self.tls.defect)
        settings = {
            **issued.inline_settings(),
            **self._authority.inline_settings(),
            "ssl.client.auth": self.tls.client_auth,
        }
        return {f"listener.name.{listener.lower()}.{key}": value for key, value in settings.items()}

    def client(self, name: str | None, defect: Defect | None) -> ClientTls:
        """Return the certificates of a client that trusts the broker's authority.

        `name` is the common name of the client's own certificate; None for a client without a certificate.
        """
        if name is None:
            return ClientTls(self._authority.certificate_pem)
        issued = self._clients.get((name, defect))
        if issued is None:
            issued = self._clients.setdefault((name, defect), self._issue(name, defect))
        return ClientTls(self._authority.certificate_pem, issued.chain_pem, issued.key_pem)

    def own_client_name(self) -> str | None:
        """Return the common name with which the broker's own methods connect; None for no certificate."""
        return OWN_NAME if self.tls.client_auth == "required" else None

    def _issue(self, name: str, defect: Defect | None) -> IssuedCertificate:
        from kwire.certificates.authority import Authority, common_name

        authority, now_ms = self._authority, self._now_ms
        if defect == "foreign":
            if self._foreign_authority is None:
                self._foreign_authority = Authority.create("foreign CA", now_ms)
            authority = self._foreign_authority
        elif defect == "expired":
            now_ms -= (VALID_DAYS + 1) * DAY_MS
        return authority.issue(
            common_name(name),
            WRONG_HOST_NAMES if defect == "wrong-host" else HOST_NAMES,
            now_ms=now_ms,
            lifetime_days=VALID_DAYS,
        )


def parse_tls(tls: object) -> Tls | None:
    """Return the argument `tls` as settings; None if it is false. Raises TypeError or ValueError."""
    if not isinstance(tls, (bool, Tls)):
        raise TypeError(f"tls is True, or Tls(client_auth='required'), not {tls!r:.100}")
    if isinstance(tls, bool):
        return Tls() if tls else None
    if tls.client_auth not in get_args(ClientAuth):
        raise ValueError(f"client_auth={tls.client_auth!r}: use one of {', '.join(get_args(ClientAuth))}")
    check_defect(tls.defect)
    return tls


def check_defect(defect: object) -> None:
    """Raise ValueError unless this is None or a defect of certificates."""
    if defect is not None and defect not in get_args(Defect):
        raise ValueError(f"defect={defect!r}: use one of {', '.join(get_args(Defect))}")
