"""The brokers of the cluster: their addresses, and the proxy's listener for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kwire.broker.net.listeners import BindError, Listener, bind
from kwire.host.host import PeerAddress
from kwire.testing.proxy.addresses import LOOPBACK
from kwire.wire.errors import WireError

if TYPE_CHECKING:
    from kwire.broker.net.socket_server import SocketServer

MAX_BROKERS: Final = 1_000
"""The largest number of listeners. It limits the file descriptors that the proxy opens for a cluster."""


class Brokers:
    """The listeners of a proxy. Each has a name, and forwards to one address.

    A broker id keeps its listener as long as the proxy runs. If the address of the broker changes, later
    connections go to the new address.
    """

    def __init__(self, server: SocketServer) -> None:
        self._server = server
        self._upstream: dict[str, PeerAddress] = {}
        """The address of each listener's broker, by the name of the listener."""
        self._listeners: dict[str, Listener] = {}

    def listen_for_bootstrap(self, servers: Sequence[PeerAddress]) -> str:
        """Open a listener for each bootstrap server. Return their addresses, separated by commas."""
        opened = []
        for number, address in enumerate(servers):
            name = f"bootstrap-{number}"
            self._upstream[name] = address
            opened.append(self._listen(name))
        return ",".join(listener.address for listener in opened)

    def upstream(self, listener: str) -> PeerAddress:
        """Return the address to which a listener forwards."""
        return self._upstream[listener]

    def local_port(self, broker_id: int, host: str, port: int) -> int:
        """Return the port of the listener for a broker, which now has this address.

        Open the listener if there is none. Raises WireError if that is not possible.
        """
        name, address = f"broker-{broker_id}", PeerAddress(host, port)
        if self._upstream.get(name) != address:
            if name not in self._listeners and len(self._listeners) >= MAX_BROKERS:
                raise WireError(f"a response names broker {broker_id}, after {MAX_BROKERS} other brokers")
            self._upstream[name] = address
        listener = self._listeners.get(name)
        if listener is None:
            try:
                listener = self._listen(name)
            except BindError as error:
                raise WireError(str(error)) from error
            self._server.logger.info(
                "Listener %s at %s forwards to broker %d at %s", name, listener.address, broker_id, address
            )
        return listener.port

    def _listen(self, name: str) -> Listener:
        listener = bind(name, LOOPBACK, 0, self._server.settings)
        try:
            self._server.listen(listener)
        except BindError:
            listener.sock.close()
            raise
        self._listeners[name] = listener
        return listener
