"""The transport layer of a connection, between the event loop and the nonblocking socket, as Kafka calls it.

The security protocol of a connection's listener determines its transport layer. PLAINTEXT and SASL_PLAINTEXT
transfer bytes as they are: their transport layer consists of the socket's own methods, written in C. SSL and
SASL_SSL use `tls_transport_layer`, which is imported with the first connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

from kwire.broker.config.tls import TLS_PROTOCOLS
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.host.system_os import os
from kwire.host.system_socket import Socket
from kwire.wire.primitives import Buffer

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.security.node_tls import NodeTls
    from kwire.host.host import PeerAddress


class TransportLayer(Protocol):
    """The bytes of one connection. No method waits: it raises BlockingIOError instead.

    A lost connection and a violation of the protocol raise another OSError.

    A method that sends returns how many of the given bytes are sent. If it raises BlockingIOError, the
    transport layer may have encrypted the first of these bytes. So the next call must begin with the same
    bytes. The transport layer counts them as sent once the socket has them all.
    """

    @property
    def has_more(self) -> bool:
        """Whether `receive_into` can return bytes that the socket has delivered, for which no event comes."""

    def handshake(self) -> int:
        """Continue the handshake. Return the events of the socket to wait for, or 0 once it is complete.

        A handshake that fails has sent its alert, as far as possible.
        """

    def peer_principal(self) -> Principal:
        """Return the principal of the client after the handshake; ANONYMOUS if it has no certificate.

        Raises OSError if its certificate has no principal.
        """

    def receive_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive bytes and return their number, 0 at the end of the stream. The buffer need not be full."""

    def send(self, data: Buffer, /) -> int: ...
    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        """Send several buffers. With MSG_MORE, they may wait for the next call and share a record with it."""

    def send_region(self, fd: int, position: int, count: int, /) -> int:
        """Send `count` bytes of a file. Return 0 if the file ends at `position`."""

    def close(self) -> None:
        """Close the socket."""


class PlaintextTransportLayer:
    """A transport layer that consists of the socket's own methods."""

    __slots__ = ("close", "receive_into", "send", "send_region", "sendmsg")

    has_more = False

    def __init__(self, sock: Socket, listener: str = "", to: PeerAddress | None = None) -> None:
        self.receive_into = sock.recv_into
        self.send = sock.send
        self.sendmsg = sock.sendmsg
        self.send_region = partial(os.sendfile, sock.fileno())
        self.close = sock.close

    def handshake(self) -> int:
        return 0

    def peer_principal(self) -> Principal:
        return ANONYMOUS


NewTransportLayer = Callable[[Socket, str, "PeerAddress | None"], TransportLayer]
"""Return the transport layer of a connected socket.

The other arguments are the name of the listener, and the other node if this node has opened the connection.
"""


TRANSPORT_LAYERS: dict[str, NewTransportLayer] = {
    "PLAINTEXT": PlaintextTransportLayer,
    "SASL_PLAINTEXT": PlaintextTransportLayer,
}
"""The transport layers by security protocol, for protocols without settings."""


def transport_layers(config: BrokerConfig, tls: NodeTls | None) -> NewTransportLayer:
    """Return a function that chooses by the security protocol of the listener.

    `tls` has the certificates of the listeners that use TLS.
    """

    @cache
    def new_tls_layer() -> NewTransportLayer:
        from kwire.broker.net.tls_connections import TlsConnections

        assert tls is not None, "the certificates of a listener are loaded before it opens"
        return TlsConnections(tls).new_layer

    def new_layer(sock: Socket, listener: str, to: PeerAddress | None) -> TransportLayer:
        protocol = config.protocol(listener)
        chosen = new_tls_layer() if protocol in TLS_PROTOCOLS else TRANSPORT_LAYERS[protocol]
        return chosen(sock, listener, to)

    return new_layer
