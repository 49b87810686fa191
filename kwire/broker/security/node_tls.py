"""TLS of a node: the certificates of its listeners, and their replacement while it runs. KIP-226."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.config.definition import ConfigError
from kwire.broker.config.tls import TLS_PROTOCOLS, tls_settings

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.config.dynamic import EffectiveSettings
    from kwire.broker.security.listener_tls import ListenerTls, StoreFiles


def tls_listeners(config: BrokerConfig) -> list[str]:
    """Return the listeners with TLS of a node, and those of other nodes to which it connects."""
    names = [one.name for one in (*config.listener_endpoints(), *config.controller_endpoints())]
    protocols = config.effective.listeners.protocols
    return [
        name
        for name in dict.fromkeys([*names, *config.peer_listeners()])
        if protocols.get(name) in TLS_PROTOCOLS
    ]


def load_listener(
    config: BrokerConfig, files: StoreFiles, listener: str, state: EffectiveSettings
) -> ListenerTls:
    """Load the certificates of a listener with TLS. Raises ConfigError."""
    # Imported here to shorten the start of a node without TLS.
    from kwire.broker.security.listener_tls import ListenerTls, ListenerUse

    is_served = any(one.name == listener for one in state.listeners.endpoints)
    use = ListenerUse(
        is_served=is_served,
        connects=listener in config.peer_listeners(),
        is_inter_broker=is_served and listener == state.listeners.inter_broker,
    )
    return ListenerTls(listener, _settings_of(listener, state), files, use)


def _settings_of(listener: str, state: EffectiveSettings) -> dict[str, str]:
    return tls_settings(state.settings, listener, state.listeners.protocols.get(listener, ""))


class NodeTls:
    """The certificates of the listeners of a node, and of those of other nodes to which it connects."""

    def __init__(self, config: BrokerConfig, files: StoreFiles) -> None:
        """Load the certificates of all listeners that use TLS. Raises ConfigError."""
        self._config = config
        self._files = files
        self._listeners: dict[str, ListenerTls] = {}
        for name in tls_listeners(config):
            self.add(name, config.effective)

    def of(self, listener: str) -> ListenerTls | None:
        return self._listeners.get(listener)

    def add(self, listener: str, state: EffectiveSettings) -> None:
        self._listeners.pop(listener, None)
        if (tls := self._load(listener, state)) is not None:
            self._listeners[listener] = tls
            for warning in tls.warnings:
                self._config.logger.warning("Listener %s: %s", listener, warning)

    def _load(self, listener: str, state: EffectiveSettings) -> ListenerTls | None:
        if state.listeners.protocols.get(listener) not in TLS_PROTOCOLS:
            return None
        return load_listener(self._config, self._files, listener, state)

    def check(self, state: EffectiveSettings) -> None:
        existing = {one.name for one in self._config.effective.listeners.endpoints}
        for listener in state.listeners.endpoints:
            if listener.name not in existing:
                self._load(listener.name, state)
        for _, current, settings in self._kept(state):
            if settings != current.settings:  # as in Kafka, changed files alone are not validated
                current.replaced(settings)

    def _kept(self, state: EffectiveSettings) -> list[tuple[str, ListenerTls, dict[str, str]]]:
        """Return the listeners that also exist in `state`, with their certificates and new settings."""
        names = {*(one.name for one in state.listeners.endpoints), *self._config.peer_listeners()}
        return [
            (name, current, current.with_stores_of(_settings_of(name, state)))
            for name, current in self._listeners.items()
            if name in names
        ]

    def reload(self, state: EffectiveSettings) -> None:
        logger = self._config.logger
        for name, current, settings in self._kept(state):
            if not current.has_changed(settings):
                continue
            try:
                self._listeners[name] = current.replaced(settings)
            except ConfigError as error:
                logger.error("Listener %s keeps its previous certificates: %s", name, error)
            else:
                logger.info("New connections of listener %s use its new certificates", name)
