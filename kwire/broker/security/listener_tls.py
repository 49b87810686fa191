"""TLS of one listener: for clients that connect to it, and for this node's connections to other nodes.

The module imports Python's `ssl`, which takes 25 ms, so import it only if TLS is configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from kwire.broker.config.definition import ConfigError
from kwire.broker.config.dynamic import PER_LISTENER_KEYS
from kwire.broker.security.presented_certificates import watch_certificates
from kwire.broker.security.principal import USER, Principal
from kwire.broker.security.principal_mapping import NoMatchingRuleError, PrincipalMapper, principal_of
from kwire.broker.security.tls_context import (
    check_handshake,
    client_context,
    server_context,
    server_warnings,
    validation_context,
)
from kwire.broker.security.tls_replacement import check_replacement, check_trust_replacement
from kwire.broker.security.tls_settings import TlsConfigError, read_setting
from kwire.broker.security.tls_stores import load_key_store, load_trust_store
from kwire.wire.named_tuple import NamedTuple

MAPPING_RULES: Final = "ssl.principal.mapping.rules"
STORE_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location")

FileStamp = tuple[int, int] | None
"""The time of the last modification of a file in ns, and its size; None if there is no such file."""


class StoreFiles(Protocol):
    """Access to the files of key stores and trust stores."""

    def read(self, path: str) -> bytes:
        """Return the content of a file, or more than MAX_STORE_BYTES of it. Raises OSError."""

    def stamp(self, path: str) -> FileStamp: ...


class ListenerUse(NamedTuple):
    """The connections of a listener that this node accepts or opens."""

    is_served: bool
    """Whether clients connect to the listener of this node."""
    connects: bool
    """Whether this node connects to the listener of other nodes."""
    is_inter_broker: bool = False
    """Whether it is the listener of inter.broker.listener.name."""


class ListenerTls:
    """The contexts of a listener. They apply to new connections, and never change."""

    def __init__(
        self,
        listener: str,
        settings: Mapping[str, str],
        files: StoreFiles,
        use: ListenerUse,
    ) -> None:
        """Load the stores. `settings` has the ssl keys of the listener, without its prefix.

        Raises ConfigError. As in Kafka, brokers must be able to connect to the inter-broker listener with its
        own stores.
        """
        self.settings: Mapping[str, str] = dict(settings)
        self._listener = listener
        self._files = files
        self._use = use
        self._stamps = self._stamps_of(settings)
        try:
            self.key_store = load_key_store(settings, files.read)
            self.trust_store = load_trust_store(settings, files.read)
            stores = self.key_store, self.trust_store
            self.server = server_context(settings, *stores) if use.is_served else None
            self.client = client_context(settings, *stores) if use.connects else None
            self._validator = validation_context(settings, *stores) if use.is_inter_broker else None
            self._check_handshakes(self)
            watch_certificates(self.server if self.asks_for_certificates else None)
            watch_certificates(self.client)
        except TlsConfigError as error:
            raise ConfigError(f"listener {listener}: {error}") from error
        try:
            self._mapper = PrincipalMapper(settings.get(MAPPING_RULES, "DEFAULT"))
        except ValueError as error:
            raise ConfigError(f"listener {listener}: {MAPPING_RULES}: {error}") from error

    def _check_handshakes(self, other: ListenerTls) -> None:
        """Raise TlsConfigError if brokers with these stores and with those of `other` cannot connect."""
        for client, server in ((self._validator, other.server), (other._validator, self.server)):
            if client is not None and server is not None:
                check_handshake(server, client)

    def _stamps_of(self, settings: Mapping[str, str]) -> list[FileStamp]:
        paths = [read_setting(settings, name) for name in STORE_FILES]
        return [None if path is None else self._files.stamp(path) for path in paths]

    def with_stores_of(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of this listener, with the stores of `settings`.

        As in Kafka, the other keys of a listener stay as they were when it was created, although AlterConfigs
        accepts some of them. Otherwise a request could end client authentication on a running listener.
        """
        fixed = {name: text for name, text in self.settings.items() if name not in PER_LISTENER_KEYS}
        return fixed | {name: text for name, text in settings.items() if name in PER_LISTENER_KEYS}

    def has_changed(self, settings: Mapping[str, str]) -> bool:
        """Return whether the settings or the files of the stores differ from the loaded ones."""
        return self.settings != settings or self._stamps != self._stamps_of(settings)

    def replaced(self, settings: Mapping[str, str]) -> ListenerTls:
        """Load other stores for this listener (KIP-226).

        Raises ConfigError if the stores cannot be loaded, or cannot replace the current ones.
        """
        new = ListenerTls(self._listener, settings, self._files, self._use)
        try:
            check_replacement(
                self.key_store,
                new.key_store,
                allow_dn_changes=settings.get("ssl.allow.dn.changes", "").lower() == "true",
                allow_san_changes=settings.get("ssl.allow.san.changes", "").lower() == "true",
            )
            check_trust_replacement(self.trust_store, new.trust_store)
            self._check_handshakes(new)
        except TlsConfigError as error:
            raise ConfigError(f"listener {self._listener}: {error}") from error
        return new

    @property
    def warnings(self) -> list[str]:
        """Sentences about valid but unsafe settings."""
        return server_warnings(self.settings) if self._use.is_served else []

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a client with this certificate, in DER; None if it has sent none.

        Raises NoMatchingRuleError, or another ValueError if the subject is malformed.
        """
        return Principal(USER, principal_of(certificate, self._mapper))

    @property
    def own_name(self) -> str | None:
        if self.key_store is None:
            return None
        try:
            return self.principal_of(self.key_store.keys[0].chain[0]).name
        except NoMatchingRuleError:
            return None

    @property
    def asks_for_certificates(self) -> bool:
        return (read_setting(self.settings, "ssl.client.auth") or "none") != "none"
