"""A simulated network between virtual nodes and clients, with the faults of TCP connections.

    network = Network(EventQueue())
    first = VirtualNode({"node.id": "1", "listeners": "PLAINTEXT://one:9092", ...}, network=network)
    second = VirtualNode({"node.id": "2", "listeners": "PLAINTEXT://two:9092", ...}, network=network)
    client = network.connect(PeerAddress("one", 9092), "a client")
    client.send(12, MetadataRequest(topics=None), print)
    network.events.advance(10)

The network transfers the bytes of the real codec. A connection keeps the order of its frames and loses none
while it is open. With TLS, it transfers pieces of the encrypted bytes in place of frames. A connection can
break at any time: then frames in flight may or may not arrive, so a request may have been processed although
its response is lost. Frames on a cut link wait until the link heals, like retransmissions of TCP, and the
sender may time out. Without `rng`, each frame takes 1 ms and no fault occurs.

Nodes and clients have names: a node has the name of its host, and a client passes its name. A `PeerAddress`
is resolved when a connection is opened. A process that dies resets its connections. A machine that loses
power does not, so its peers have to time out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, cast

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.peer_link import TransportEvents
from kwire.broker.net.receiver import ServedNode
from kwire.broker.storage.file_region import FileRegion
from kwire.host.host import OnResponse, PeerAddress, PeerUnreachable
from kwire.testing.direction import Direction, do_nothing
from kwire.testing.tls_end import NewTlsLayer, TlsEnd, TlsLayers, no_tls
from kwire.testing.virtual_host import EventQueue, VirtualHost
from kwire.wire.errors import WireError
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

UNKNOWN_HOST = "nobody"


class NetworkFaults(NamedTuple):
    """Delays of frames, and the probabilities of faults."""

    shortest_ms: int = 1
    longest_ms: int = 1
    slow: float = 0.0
    """The probability of a long delay, up to `slowest_ms`."""
    slowest_ms: int = 1_000
    breaks: float = 0.0
    """The probability that the connection breaks while the frame is in flight."""


NO_FAULTS: Final = NetworkFaults()


class NetworkListener(NamedTuple):
    """A listener of a node."""

    host: VirtualHost
    node: ServedNode
    name: str
    role: ListenerRole
    new_tls_layer: NewTlsLayer | None
    """Creates the transport layer of a connection; None without TLS."""


class Network:
    """The machines, links and connections of a simulated network."""

    def __init__(
        self,
        events: EventQueue,
        rng: random.Random | None = None,
        faults: NetworkFaults = NO_FAULTS,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Create a network without nodes. `note` receives a line for each fault."""
        self.events = events
        self.faults = faults
        """The current faults. Tests can replace them at any time."""
        self.note = note
        self.new_client_layer: NewTlsLayer | None = None
        """Creates the transport layer of a client's connection; None without TLS."""
        self._rng = rng
        self._listeners: dict[PeerAddress, NetworkListener] = {}
        self._names: dict[PeerAddress, str] = {}
        """The name of the machine at each address, including machines whose process is down."""
        self._powered_off: set[str] = set()
        """Machines without power."""
        self._cuts: set[tuple[str, str]] = set()
        self._isolated: set[str] = set()
        self.connections: dict[Connection, None] = {}
        """Connections with at least one open end, in the order in which they were opened."""
        self.channel_ids = count(1)
        self.on_request: Callable[[Connection, bytes], None] = lambda connection, frame: None
        """Called with each frame that a client or node sends to a node, before it is in flight."""

    # --- nodes

    def join(
        self,
        host: VirtualHost,
        node: ServedNode,
        listeners: Mapping[PeerAddress, tuple[str, ListenerRole]],
        tls: TlsLayers = no_tls,
    ) -> None:
        """Start the listeners of a node, and restore the power of its machine.

        `listeners` maps each address to the name and role of the listener.
        """
        if host.name in self._powered_off:
            self._powered_off.discard(host.name)
            for connection in list(self.connections):
                if connection.server == host.name:
                    self.events.timers.add(self.delay_ms(), connection.retransmit)
        for address, (listener, role) in listeners.items():
            assert address not in self._listeners, f"{address} is in use"
            self._listeners[address] = NetworkListener(host, node, listener, role, tls(listener))
            self._names[address] = host.name

    def stop_listening(self, host: VirtualHost) -> None:
        """Refuse new connections to a node."""
        self._listeners = {
            at: listener for at, listener in self._listeners.items() if listener.host is not host
        }

    def leave(self, host: VirtualHost, *, silently: bool = False) -> None:
        """End the process of a node. With `silently`, its machine loses power: connections are not reset."""
        self.stop_listening(host)
        if silently:
            self._powered_off.add(host.name)
        for connection in list(self.connections):
            connection.on_process_end(host, silently=silently)

    def listener_at(self, address: PeerAddress) -> NetworkListener | None:
        """Return the listener at an address, or None."""
        return self._listeners.get(address)

    def is_powered_off(self, name: str) -> bool:
        """Return whether a machine is without power, so that it never responds."""
        return name in self._powered_off

    # --- connections

    def dial(
        self,
        host: VirtualHost,
        to: PeerAddress,
        handler: TransportEvents,
        listener: str,
        tls: TlsLayers = no_tls,
    ) -> Connection:
        """Connect a node to another node. `partial(dial, host)` is a `kwire.broker.net.peer_link.Dial`.

        The network transfers complete frames, unless the listener has TLS.
        """
        return Connection(self, to, handler, host.name, host.call_soon, host, tls(listener))

    def connect(self, to: PeerAddress, client: str, client_id: str = "me") -> ClientConnection:
        """Connect a client. Requests can be sent before the connection is established.

        `client` is the client's name in this network, and `client_id` the client id in its requests.
        """
        return ClientConnection(self, to, client, client_id)

    def host_name_at(self, address: PeerAddress) -> str:
        """Return the name of the machine at an address, or `UNKNOWN_HOST`."""
        return self._names.get(address, UNKNOWN_HOST)

    # --- faults

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """Cut the link from one machine to another until `heal`, by default in both directions."""
        self.note(
            f"network cut {'between' if both_ways else 'from'} {one} {'and' if both_ways else 'to'} {other}"
        )
        self._cuts |= {(one, other), (other, one)} if both_ways else {(one, other)}

    def isolate(self, name: str) -> None:
        """Cut all links of a machine until `heal`."""
        self.note(f"{name} is isolated")
        self._isolated.add(name)

    def heal(self, but: Collection[tuple[str, str]] = ()) -> None:
        """Restore all links except `but`, pairs of sender and receiver.

        Frames that waited for the link then arrive, if their connection is still open.
        """
        if self._isolated or not self._cuts <= set(but):
            self.note("network restored")
        self._cuts &= set(but)
        self._isolated.clear()
        for connection in list(self.connections):
            for way in (connection.to_server, connection.to_client):
                if way.is_blocked:
                    self.events.timers.add(self.delay_ms(), way.deliver_due)

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether the link from machine `one` to machine `other` is cut."""
        if one == other:
            return False
        return (one, other) in self._cuts or not self._isolated.isdisjoint((one, other))

    def break_some(self, share: float) -> None:
        """Break each connection with a probability of `share`."""
        chosen = [connection for connection in self.connections if self._happens(share)]
        self.note(f"connections break: {len(chosen)} of {len(self.connections)}")
        for connection in chosen:
            connection.break_off(is_noted=True)

    def delay_ms(self) -> int:
        """Return a random time for which a frame is in flight."""
        faults = self.faults
        if self._happens(faults.slow):
            return self._between(faults.longest_ms, faults.slowest_ms)
        return self._between(faults.shortest_ms, faults.longest_ms)

    def break_at_ms(self, delay_ms: int) -> int | None:
        """Return after how many ms, at most `delay_ms`, the connection breaks; None if it does not break.

        `delay_ms` is the time for which a frame is in flight.
        """
        return self._between(0, delay_ms) if self._happens(self.faults.breaks) else None

    def surviving_count(self, most: int) -> int:
        """Return how many of the `most` frames in flight still arrive when their connection breaks."""
        return self._between(0, most)

    def fraction(self) -> float:
        """Return a random number from 0 to 1, or 0 without `rng`."""
        return 0.0 if self._rng is None else self._rng.random()

    def _happens(self, likely: float) -> bool:
        return self._rng is not None and likely > 0 and self._rng.random() < likely

    def _between(self, least: int, most: int) -> int:
        return least if self._rng is None or most <= least else self._rng.randint(least, most)


class Connection:
    """A TCP connection, which is the `kwire.broker.net.peer_link.PeerTransport` of its client."""

    def __init__(
        self,
        network: Network,
        to: PeerAddress,
        handler: TransportEvents,
        client: str,
        call_client: Callable[[Callable[[], None]], None],
        client_host: VirtualHost | None = None,
        new_tls_layer: NewTlsLayer | None = None,
    ) -> None:
        """Open a connection from the client named `client`.

        `handler` gets the client's events, in calls that `call_client` makes in the process of the client.
        With `new_tls_layer`, the connection has TLS.
        """
        self._network = network
        self._to = to
        self.client = client
        self._call_client = call_client
        self._client_host = client_host
        self._handler: TransportEvents | None = handler
        self._served: ServerConnection | None = None
        self._broken = False
        self._undelivered: Callable[[], None] | None = None
        """Delivers the last frame that was sent to a machine without power."""
        server = network.host_name_at(to)
        self.server = server
        self.to_server = Direction(self.break_off, network, client, server)
        self.to_client = Direction(self.break_off, network, server, client)
        self._tls: TlsEnd | None = None
        if new_tls_layer is not None:
            self._tls = TlsEnd(
                network.fraction,
                partial(new_tls_layer, to),
                self._send_to_server,
                call=lambda action: self._notify_client(lambda handler: action()),
                established=lambda: self._notify_client(lambda handler: handler.opened()),
                received=self._received,
                lost=self._lose_client,
            )
        network.connections[self] = None
        self.to_server.send(self._accept)

    def __repr__(self) -> str:
        return f"<{self.client} to {self.server}>"

    # --- the client's end

    def send(self, frame: bytes) -> None:
        """Send a frame to the server."""
        if self._handler is not None:
            self._network.on_request(self, frame)
            if self._tls is None:
                self._send_to_server(frame)
            else:
                self._tls.send(frame)

    def _send_to_server(self, data: bytes, arrived: Callable[[], None] = do_nothing) -> None:
        def arrive() -> None:
            arrived()
            self._deliver(data)

        self.to_server.send(arrive)

    def close(self) -> None:
        """Close the connection from the client's end."""
        if self._handler is not None:
            if self._tls is not None:
                self._tls.close()
            self._handler = None
            self.to_server.send(self._end_server)
            self._remove_if_closed()

    def _notify_client(self, notify: Callable[[TransportEvents], None]) -> None:
        """Notify the client if it has not closed the connection."""

        def call() -> None:
            if self._handler is not None:
                notify(self._handler)

        self._call_client(call)

    def _end_client(self, reason: str) -> None:
        def end(handler: TransportEvents) -> None:
            if self._tls is not None and self._tls.has_begun:
                self._tls.end(reason)
            else:
                self._lose_client(reason)

        self._notify_client(end)

    def _lose_client(self, reason: str) -> None:
        """Close the client's end, because the connection is lost or has failed."""
        handler, self._handler = self._handler, None
        assert handler is not None
        if self._tls is not None:
            self._tls.close()
            self.to_server.send(self._end_server)
        handler.closed(reason)
        self._remove_if_closed()

    def _received(self, frame: bytes) -> None:
        if self._handler is not None:
            self._handler.received(memoryview(bytearray(frame))[4:])

    # --- the server's end

    def _accept(self) -> None:
        """Accept the connection. The kernel accepts connections even for a paused process."""
        network = self._network
        if network.is_powered_off(self.server):
            self._undelivered = self._accept
            return
        listener = network.listener_at(self._to)
        if listener is None:
            self.to_client.send(lambda: self._end_client("connection refused"))
            return
        self._served = ServerConnection(self, listener, next(network.channel_ids), network)
        tls = self._tls

        def opened(handler: TransportEvents) -> None:
            if tls is None:
                handler.opened()
            else:
                tls.begin()

        self.to_client.send(lambda: self._notify_client(opened))

    def send_to_client(self, data: bytes, arrived: Callable[[], None] = do_nothing) -> None:
        """Send a response, or with TLS encrypted bytes, to the client. `arrived` is called on arrival."""

        def arrive() -> None:
            arrived()
            if self._handler is None and not self._network.is_powered_off(self.client):
                # The client has closed its end.
                self.to_server.send(self._end_server)
            elif self._tls is None:
                self._notify_client(lambda handler: self._received(data))
            else:
                self._tls.arrive(data)

        self.to_client.send(arrive)

    def _deliver(self, frame: bytes) -> None:
        if self._served is not None:
            self._served.receive(frame)
        elif self._network.is_powered_off(self.server):
            self._undelivered = lambda: self._deliver(frame)
        else:
            # The server's process is gone.
            self.to_client.send(lambda: self._end_client("the peer reset the connection"))

    def retransmit(self) -> None:
        """Deliver the last frame again, as TCP does when the machine has power again."""
        unheard, self._undelivered = self._undelivered, None
        if unheard is not None and self._handler is not None:
            unheard()

    def _end_server(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.end()
        self._remove_if_closed()

    def on_server_close(self) -> None:
        """Close the connection from the server's end, after the responses in flight."""
        self._served = None
        self.to_client.send(lambda: self._end_client("the peer closed the connection"))

    # --- faults

    def break_off(self, *, is_noted: bool = False) -> None:
        """Break the connection. Frames in flight may be lost, and each end notices the break separately.

        With `is_noted`, the break is not added to the log of faults again.
        """
        if self._broken or self not in self._network.connections:
            return
        self._broken = True
        if not is_noted:
            self._network.note(f"connection from {self.client} to {self.server} breaks")
        self.to_server.drop_some()
        self.to_client.drop_some()
        self.to_server.send(self._end_server)
        self.to_client.send(lambda: self._end_client("the peer reset the connection"))

    def on_process_end(self, host: VirtualHost, *, silently: bool) -> None:
        """Close the ends in the process of `host`, which has died. With `silently`, notify no other end."""
        if self._client_host is host:
            self._handler = None
            if not silently:
                self.to_server.send(self._end_server)
        if self._served is not None and self._served.listener.host is host:
            self._served = None
            if not silently:
                self.to_client.send(lambda: self._end_client("the peer reset the connection"))
        self._remove_if_closed()

    def _remove_if_closed(self) -> None:
        if self._handler is None and self._served is None:
            self._network.connections.pop(self, None)


class ServerConnection:
    """The server's end of a connection, which does what `kwire.broker.net.connection` does for sockets."""

    def __init__(
        self, connection: Connection, listener: NetworkListener, channel_id: int, network: Network
    ) -> None:
        self.listener = listener
        self._connection = connection
        self._waiting: deque[memoryview] = deque()
        self._channel = Channel(
            channel_id,
            peer_host="127.0.0.1",
            listener=listener.name,
            on_ready=lambda channel: listener.host.call_soon(self._send_responses),
            on_throttled=lambda throttle_ms: self._channel.mute(listener.host, throttle_ms),
            logger=listener.host.logger("kwire.dispatch"),
            role=listener.role,
        )
        listener.node.channel_opened(self._channel)
        self._tls: TlsEnd | None = None
        if listener.new_tls_layer is not None:
            self._tls = TlsEnd(
                network.fraction,
                partial(listener.new_tls_layer, None),
                connection.send_to_client,
                call=listener.host.call_soon,
                received=self._receive_frame,
                sent=self._send_responses,
                lost=lambda reason: self._close(),
            )
            listener.host.call_soon(self._tls.begin)

    def receive(self, data: bytes) -> None:
        """Queue a frame, or with TLS encrypted bytes, for the process, which handles it when it runs next."""
        if self._tls is None:
            self.listener.host.call_soon(lambda: self._receive_frame(data))
        else:
            self._tls.arrive(data)

    def _receive_frame(self, frame: bytes) -> None:
        self._waiting.append(memoryview(bytearray(frame))[4:])
        self._handle_frames()

    def end(self) -> None:
        """Close the channel when the process runs next, because the client's end is closed."""
        tls = self._tls
        self.listener.host.call_soon(self._end if tls is None else lambda: tls.end("the client closed"))

    def _end(self) -> None:
        self._waiting.clear()
        if not self._channel.closed:
            self.listener.node.channel_closed(self._channel)

    def _handle_frames(self) -> None:
        """Pass frames to the node until one has to wait for earlier responses."""
        channel, node = self._channel, self.listener.node
        while self._waiting and not channel.closed and not channel.ending:
            if channel.fetches.is_muted or (channel.slots and node.must_wait(channel, self._waiting[0])):
                return
            try:
                node.handle_frame(channel, self._waiting.popleft())
            except WireError:
                self._close()

    def _send_responses(self) -> None:
        """Send the responses that are ready, in order."""
        if self._channel.closed:
            return
        pieces = cast("list[bytes | bytearray | memoryview | FileRegion]", self._channel.take_ready())
        sent = b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)
        while sent:
            end = 4 + int.from_bytes(sent[:4], "big")
            frame, sent = sent[:end], sent[end:]
            if self._tls is None:
                self._connection.send_to_client(frame)
            else:
                self._tls.send(frame)
        if self._channel.closing:
            if self._tls is None or not self._tls.is_sending:
                self._close()
        else:
            self._handle_frames()

    def _close(self) -> None:
        self._end()
        if self._tls is not None:
            self._tls.close()
        self._connection.on_server_close()


class ClientConnection:
    """A connection of a simulated client. The client chooses the version of each request."""

    def __init__(self, network: Network, to: PeerAddress, client: str, client_id: str) -> None:
        self.to = to
        self.close_reason: str | None = None
        """The reason why the connection is closed, or None."""
        self.on_close: Callable[[], None] = lambda: None
        self._client_id = client_id
        self._ids = count(1)
        self._pending: deque[tuple[int, int, int, OnResponse]] = deque()
        self._soon = network.events.soon
        self._connection = Connection(
            network, to, self, client, self._soon.append, new_tls_layer=network.new_client_layer
        )

    def send(self, version: int, request: Any, on_response: OnResponse | None) -> None:
        """Send a request, and call `on_response` with the response or with PeerUnreachable.

        `on_response` is None for requests without a response: Produce with acks=0.
        """
        if self.close_reason is not None:
            if on_response is not None:
                error = PeerUnreachable(self.close_reason)
                self._soon.append(lambda: on_response(error))
            return
        correlation_id = next(self._ids)
        if on_response is not None:
            self._pending.append((correlation_id, request.API_KEY, version, on_response))
        self._connection.send(encode_request(request, version, correlation_id, self._client_id))

    def close(self) -> None:
        """Close the connection. Pending requests fail."""
        self._connection.close()
        self._end("closed")

    # --- TransportEvents

    def opened(self) -> None:
        """Do nothing: the client sends requests without waiting for the connection."""

    def received(self, frame: memoryview) -> None:
        """Pass a response to the request that it belongs to."""
        expected_id, api_key, version, on_response = self._pending.popleft()
        correlation_id, response = decode_response(API_VERSIONS[api_key].response_class, version, frame)
        assert correlation_id == expected_id, f"response {correlation_id} to request {expected_id}"
        on_response(response)

    def closed(self, reason: str) -> None:
        """Fail the pending requests, since the connection is closed."""
        self._end(f"{self.to}: {reason}")

    def _end(self, reason: str) -> None:
        if self.close_reason is None:
            self.close_reason = reason
            pending, self._pending = self._pending, deque()
            for _, _, _, on_response in pending:
                on_response(PeerUnreachable(reason))
            self.on_close()
