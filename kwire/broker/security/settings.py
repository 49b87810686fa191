"""SASL settings of listeners, and the credentials of this node at other nodes. KIP-43, KIP-85.

As in Kafka, the SASL settings of a listener do not change after the listener was created (KIP-226).
"""

from __future__ import annotations

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError
from kwire.broker.config.sasl import SASL_PROTOCOLS, ListenerSasl
from kwire.wire.mechanisms import PLAIN
from kwire.wire.named_tuple import NamedTuple


class Credentials(NamedTuple):
    """The credentials with which a client authenticates."""

    mechanism: str
    username: str
    password: str
    is_token: bool = False
    """Whether user name and password are the id and the HMAC of a delegation token. KIP-48."""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism}, {self.username}, [hidden])"


def listener_security(config: BrokerConfig, listener: str) -> ListenerSasl | None:
    """Return the SASL settings of a listener; None if its security protocol has no authentication.

    Raises ConfigError if the listener was never created, and KeyError if there is no such listener name.
    """
    sasl = config.listener_sasl(listener)
    if sasl is None and config.protocol(listener) in SASL_PROTOCOLS:
        raise ConfigError(f"listener {listener} was never created, so its SASL settings are unknown")
    return sasl


def requires_authentication(config: BrokerConfig) -> bool:
    """Return whether all broker listeners require authentication."""
    endpoints = config.listener_endpoints()
    return bool(endpoints) and all(config.listener_sasl(one.name) is not None for one in endpoints)


def scram_mechanisms(config: BrokerConfig) -> list[str]:
    """Return the SCRAM mechanisms that any listener has enabled. All of them accept delegation tokens."""
    endpoints = config.running_listeners() + config.controller_endpoints()
    listeners = [sasl for one in endpoints if (sasl := config.listener_sasl(one.name)) is not None]
    found = [name for sasl in listeners for name in sasl.mechanisms if name != PLAIN]
    return list(dict.fromkeys(found))


def peer_credentials(config: BrokerConfig, listener: str) -> Credentials | None:
    """Return the credentials for connections to other nodes; None if `listener` has no authentication.

    `listener` is inter.broker.listener.name or one of controller.listener.names. Raises ConfigError if the
    settings have no valid credentials for the listener.
    """
    login = config.peer_login(listener)
    if login is None:
        return None
    mechanism, context = login
    return Credentials(mechanism, context.username, context.password, context.is_token)
