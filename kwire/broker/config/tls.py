"""The TLS settings of listeners, and what the configuration needs of the loaded certificates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kwire.broker.config.dynamic import EffectiveSettings

TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
PREFIX: Final = "ssl."
CLIENT_AUTH: Final = "ssl.client.auth"


class ListenerCertificates(Protocol):
    """The certificates of one listener. `security.listener_tls` implements it."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The ssl keys of the listener, without its prefix, with which the certificates were loaded."""

    @property
    def own_name(self) -> str | None:
        """The name of this node's principal at other nodes; None if it has no certificate."""

    @property
    def asks_for_certificates(self) -> bool:
        """Whether clients may have a certificate (ssl.client.auth is required or requested)."""


class NodeCertificates(Protocol):
    """The certificates of a node. `security.node_tls` implements it."""

    def of(self, listener: str) -> ListenerCertificates | None:
        """Return the certificates of a listener of this node or of other nodes; None without TLS."""

    def check(self, state: EffectiveSettings) -> None:
        """Raise ConfigError if the settings of an existing or a new listener are invalid (KIP-226)."""

    def add(self, listener: str, state: EffectiveSettings) -> None:
        """Load the certificates of a listener that this node starts to serve. Raises ConfigError."""

    def reload(self, state: EffectiveSettings) -> None:
        """Load what has changed: settings or files. The previous certificates stay after an error."""


def tls_settings(settings: Mapping[str, str], listener: str, protocol: str) -> dict[str, str]:
    """Return the ssl keys that are set for a listener with this security protocol, without its prefix.

    As in Kafka, a key with the listener's prefix overrides the key without it (KIP-103). Clients of SASL_SSL
    authenticate with SASL, so ssl.client.auth applies to them only with the prefix (KIP-684).
    """
    own = f"listener.name.{listener.lower()}."
    found = {name: text for name, text in settings.items() if name.startswith(PREFIX)}
    if protocol == "SASL_SSL":
        found.pop(CLIENT_AUTH, None)
    prefixed = {name: text for name, text in settings.items() if name.startswith(own + PREFIX)}
    return found | {name.removeprefix(own): text for name, text in prefixed.items()}
