"""What the configuration says of those who come by a listener, and as whom this node goes. KIP-43, KIP-85.

It is the listener's when it was taken up: as with Kafka, no listener changes what it asks of clients while it
is there (KIP-226).
"""

from __future__ import annotations

from collections.abc import Mapping

from kwire.broker.config.broker import BrokerConfig
from kwire.wire.named_tuple import NamedTuple


class ListenerSecurity(NamedTuple):
    """What a listener of SASL asks of those who come by it."""

    mechanisms: tuple[str, ...]
    """Those that are enabled, in the order in which Kafka tells them."""
    plain_users: Mapping[str, str]
    """The passwords of those who may come by PLAIN."""
    max_receive_bytes: int
    """How long what a client says may be before it is authenticated."""
    max_reauth_ms: Mapping[str, int]
    """By mechanism, after how long a client has to authenticate again; 0 for never. KIP-368."""

    def __repr__(self) -> str:
        return f"ListenerSecurity({', '.join(self.mechanisms)}, [hidden])"


class Credentials(NamedTuple):
    """What a client shows."""

    mechanism: str
    username: str
    password: str
    is_token: bool = False
    """Whether they are a delegation token's id and HMAC. KIP-48."""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism}, {self.username}, [hidden])"


def listener_security(config: BrokerConfig, listener: str) -> ListenerSecurity | None:
    """What a listener asks of clients; None where it takes everyone."""
    sasl = config.listener_sasl(listener)
    if sasl is None:
        return None
    return ListenerSecurity(sasl.mechanisms, sasl.plain_users, sasl.max_receive_bytes, sasl.max_reauth_ms)


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
