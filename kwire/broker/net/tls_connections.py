"""The TLS of a node's connections, from the configuration of their listeners."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.broker.security.principal_mapping import NoMatchingRuleError
from kwire.host.loggers import escape_unprintable

if TYPE_CHECKING:
    from kwire.broker.security.listener_tls import ListenerTls
    from kwire.broker.security.node_tls import NodeTls
    from kwire.broker.security.principal import Principal
    from kwire.host.host import PeerAddress
    from kwire.host.system_socket import Socket

MAX_REASON_LENGTH: Final = 1_000
"""The limit for the part of a reason that may contain the subject of a certificate."""


class ServedTlsLayer(TlsTransportLayer):
    """TLS on a connection that a listener has accepted."""

    __slots__ = ("_listener_tls",)

    def __init__(self, sock: Socket, tls: ListenerTls, scratch: memoryview) -> None:
        assert tls.server is not None, "this node serves the listener"
        super().__init__(sock, tls.server, scratch, is_server=True)
        self._listener_tls = tls

    def peer_principal(self) -> Principal:
        try:
            return self._listener_tls.principal_of(self.peer_certificate())
        except NoMatchingRuleError as error:
            raise HandshakeError(f"ssl.principal.mapping.rules: {_for_log(error)}") from error
        except ValueError as error:
            raise HandshakeError(f"the subject of the certificate is malformed: {_for_log(error)}") from error


def _for_log(error: ValueError) -> str:
    return escape_unprintable(str(error)[:MAX_REASON_LENGTH])


class TlsConnections:
    """The transport layers of the connections of one node."""

    def __init__(self, node_tls: NodeTls) -> None:
        self._node_tls = node_tls

    @cached_property
    def _scratch(self) -> memoryview:
        return memoryview(bytearray(WINDOW_BYTES))

    def new_layer(self, sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
        """Return the transport layer of a connection, as `NewTransportLayer` specifies."""
        tls = self._node_tls.of(listener)
        assert tls is not None, "the certificates of a listener are loaded before it opens"
        if to is None:
            return ServedTlsLayer(sock, tls, self._scratch)
        assert tls.client is not None, "this node connects to the listener of other nodes"
        return TlsTransportLayer(sock, tls.client, self._scratch, server_hostname=to.host, is_server=False)
