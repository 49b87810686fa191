"""What the configuration says of those who come by a listener, and as whom this node goes. KIP-43, KIP-85.

It is the listener's when it was taken up: as with Kafka, no listener changes what it asks of clients while it
is there (KIP-226).
"""

from __future__ import annotations

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError
from kwire.broker.config.sasl import SASL_PROTOCOLS, ListenerSasl
from kwire.wire.mechanisms import PLAIN
from kwire.wire.named_tuple import NamedTuple


class Credentials(NamedTuple):
    """What a client shows."""

    mechanism: str
    username: str
    password: str
    is_token: bool = False
    """Whether they are a delegation token's id and HMAC. KIP-48."""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism}, {self.username}, [hidden])"


def listener_security(config: BrokerConfig, listener: str) -> ListenerSasl | None:
    """What a listener asks of clients; None where it takes everyone, which is for its protocol alone to say.

    ConfigError where it was never taken up, KeyError where there is no such listener.
    """
    sasl = config.listener_sasl(listener)
    if sasl is None and config.protocol(listener) in SASL_PROTOCOLS:
        raise ConfigError(f"{listener} is not taken up: what it asks of clients is not known")
    return sasl


def requires_authentication(config: BrokerConfig) -> bool:
    """Whether clients have to say who they are, by whatever listener they come."""
    endpoints = config.listener_endpoints()
    return bool(endpoints) and all(config.listener_sasl(one.name) is not None for one in endpoints)


def scram_mechanisms(config: BrokerConfig) -> list[str]:
    """The mechanisms of SCRAM that clients may use on some listener: the ways to show a token."""
    endpoints = config.running_listeners() + config.controller_endpoints()
    listeners = [sasl for one in endpoints if (sasl := config.listener_sasl(one.name)) is not None]
    found = [name for sasl in listeners for name in sasl.mechanisms if name != PLAIN]
    return list(dict.fromkeys(found))


def peer_credentials(config: BrokerConfig, listener: str) -> Credentials | None:
    """What this node shows other nodes on a listener of theirs; None where they take everyone.

    The listener is inter.broker.listener.name, or one of controller.listener.names. ConfigError where the
    settings do not tell it.
    """
    login = config.peer_login(listener)
    if login is None:
        return None
    mechanism, context = login
    return Credentials(mechanism, context.username, context.password, context.is_token)
