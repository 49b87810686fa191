"""The thread of a proxy."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kwire.broker.net.loop import Loop
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.broker.net.transport_layer import NewTransportLayer, PlaintextTransportLayer
from kwire.host.clock import SystemClock
from kwire.host.host import PeerAddress
from kwire.host.system_time import libc_time_ns
from kwire.testing.interceptor import Interceptor
from kwire.testing.loop_thread import LoopThread
from kwire.testing.proxy.node import ProxyNode

if TYPE_CHECKING:
    from kwire.host.system_socket import Socket
    from kwire.testing.faults import Faults
    from kwire.testing.recorder import Recorder

MAX_CONNECTIONS: Final = 1_000
"""The largest number of connections of clients. Further connections wait until others close."""
MAX_RESPONSE_BYTES: Final = 256 << 20
NEVER: Final = -1


class ProxyThread(LoopThread):
    """A thread that runs the event loop of a proxy."""

    def __init__(
        self,
        servers: Sequence[PeerAddress],
        tls: ssl.SSLContext | None,
        recorder: Recorder,
        faults: Faults,
    ) -> None:
        """`tls` is for connections to the cluster; None without TLS."""
        super().__init__("proxy")
        self.bootstrap = ""
        """The addresses for clients, separated by commas, after the start."""
        self._servers, self._tls, self._recorder, self._faults = servers, tls, recorder, faults

    def serve(self) -> None:
        """Open the listeners, and forward requests until the end."""
        loop = Loop(SystemClock(libc_time_ns), name="proxy")
        try:
            # The brokers close idle connections.
            of_clients = SocketSettings(max_connections=MAX_CONNECTIONS, max_idle_ms=NEVER)
            upstream = SocketSettings(
                request_max_bytes=MAX_RESPONSE_BYTES, new_transport_layer=_transport_layers(self._tls)
            )
            node = ProxyNode(loop, of_clients, upstream, self._recorder)
            try:
                self.bootstrap = node.brokers.listen_for_bootstrap(self._servers)
                Interceptor(node.server, self._recorder, self._faults, node.topics)
                loop.run_until(self.run_until_end(loop))
            finally:
                node.server.kill()
                node.connections.close()
        finally:
            loop.close()

    def end(self, ending: str) -> None:
        """Do nothing more: the proxy has nothing to store."""


def _transport_layers(tls: ssl.SSLContext | None) -> NewTransportLayer:
    if tls is None:
        return PlaintextTransportLayer
    scratch = memoryview(bytearray(WINDOW_BYTES))

    def new_layer(sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
        assert to is not None
        return TlsTransportLayer(sock, tls, scratch, server_hostname=to.host, is_server=False)

    return new_layer
