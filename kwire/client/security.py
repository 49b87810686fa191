"""Security of connections from a client's properties: TLS, SASL, both or neither.

Keys, values and defaults are those of Apache Kafka's clients. TLS and SASL are imported on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.wire.mechanisms import MECHANISMS, PLAIN

if TYPE_CHECKING:
    import ssl

    from kwire.broker.security.settings import Credentials

PROTOCOLS: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
DEFAULT_MECHANISM: Final = "GSSAPI"
UNSUPPORTED_KEYS: Final = (
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)
"""Keys of SASL that only make sense with a JVM. They are rejected, since ignoring them could be insecure."""


class Security(NamedTuple):
    """TLS context and credentials of connections."""

    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None

    @property
    def protocol(self) -> str:
        """The value of security.protocol."""
        return PROTOCOLS[2 * (self.tls is not None) + (self.credentials is not None)]


PLAINTEXT: Final = Security()


def parse_security(properties: Mapping[str, str]) -> Security:
    """Parse a client's properties. Raises ValueError with a message about the wrong key."""
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol={protocol}: expected one of {', '.join(PROTOCOLS)}")
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for key in UNSUPPORTED_KEYS:
        if has_sasl and properties.get(key):
            raise ValueError(f"{key} is not supported: remove it")
    tls = None
    if has_tls:
        from kwire.client.tls import create_context

        tls = create_context(properties)
    return Security(tls, parse_credentials(properties) if has_sasl else None)


def parse_credentials(properties: Mapping[str, str]) -> Credentials:
    """Parse sasl.mechanism and sasl.jaas.config. Raises ValueError with a message about the wrong key."""
    mechanism = properties.get("sasl.mechanism", DEFAULT_MECHANISM).strip()
    if mechanism not in MECHANISMS:
        default = "" if "sasl.mechanism" in properties else ", which is Kafka's default,"
        raise ValueError(
            f"sasl.mechanism={mechanism}{default} is not supported: use one of {', '.join(MECHANISMS)}"
        )
    text = properties.get("sasl.jaas.config", "").strip()
    if not text:
        raise ValueError(
            "sasl.jaas.config is missing: add credentials, like "
            f"sasl.jaas.config={jaas_config(mechanism, 'alice', 'alice-secret')}"
        )
    from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE, MalformedJaas, parse_jaas
    from kwire.broker.security.settings import Credentials

    try:
        login = parse_jaas(text)
    except MalformedJaas as error:
        raise ValueError(f"sasl.jaas.config: {error}") from None
    wanted = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
    name = login.modules[0].name
    if name != wanted:
        raise ValueError(f"sasl.jaas.config has {name}: sasl.mechanism={mechanism} needs {wanted}")
    if not login.username or not login.password:
        raise ValueError("sasl.jaas.config needs a username and a password")
    return Credentials(mechanism, login.username, login.password, login.is_token)


def jaas_config(mechanism: str, username: str, password: str, *, is_token: bool = False) -> str:
    """Return the `sasl.jaas.config` for credentials."""
    kind = "plain.Plain" if mechanism == PLAIN else "scram.Scram"
    as_token = " tokenauth=true" if is_token else ""
    return (
        f"org.apache.kafka.common.security.{kind}LoginModule required "
        f"username={quote_jaas(username)} password={quote_jaas(password)}{as_token};"
    )


def quote_jaas(text: str) -> str:
    """Quote a value for a JAAS configuration."""
    inner = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{inner}"'
