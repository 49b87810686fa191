"""A network between virtual nodes and simulated clients, which does what TCP may do to them.

    network = Network(EventQueue())
    first = VirtualNode({"node.id": "1", "listeners": "PLAINTEXT://one:9092", ...}, network=network)
    second = VirtualNode({"node.id": "2", "listeners": "PLAINTEXT://two:9092", ...}, network=network)
    client = network.connect(PeerAddress("one", 9092), "a client")
    client.send(12, MetadataRequest(topics=None), print)
    network.events.advance(10)

What crosses it are the bytes of the real codec. Within a connection nothing is lost or overtaken, but any
connection may break at any moment: what was on its way arrives or does not, so that a request may have been
done and its answer be lost. What is sent where the way is cut waits there, as TCP sends it again; who waits
too long gives up. Without `rng` each frame takes a millisecond and nothing goes wrong.

Whoever is on it has a name: a node that of its host, a client what it says. `PeerAddress`es are looked up
when somebody connects. A process that dies resets its connections; a machine that dies says nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Any, Final, NamedTuple, cast

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.peer_link import TransportEvents
from kwire.broker.net.receiver import ServedNode
from kwire.broker.storage.disk import FileRegion
from kwire.host.host import OnResponse, PeerAddress, PeerUnreachable
from kwire.testing.virtual_host import EventQueue, VirtualHost
from kwire.wire.errors import WireError
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

MAX_IN_TRANSIT = 10_000
"""How many frames may be on their way in one direction of a connection."""
UNKNOWN_HOST = "nobody"


class NetworkFaults(NamedTuple):
    """What may happen to a frame, and how likely it is. What takes no chance is certain."""

    shortest_ms: int = 1
    longest_ms: int = 1
    slow: float = 0.0
    """How likely it takes much longer, up to `slowest_ms`."""
    slowest_ms: int = 1_000
    breaks: float = 0.0
    """How likely its connection breaks while it is under way."""


NO_FAULTS: Final = NetworkFaults()


class NetworkListener(NamedTuple):
    """A listener of a node."""

    host: VirtualHost
    node: ServedNode
    name: str
    role: ListenerRole


class Network:
    """See the module."""

    def __init__(
        self,
        events: EventQueue,
        rng: random.Random | None = None,
        faults: NetworkFaults = NO_FAULTS,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`note` is told of what goes wrong."""
        self.events = events
        self.faults = faults
        """May be changed at any time."""
        self.note = note
        self._rng = rng
        self._listeners: dict[PeerAddress, NetworkListener] = {}
        self._names: dict[PeerAddress, str] = {}
        """Whose machine an address belongs to, whether its process lives or not."""
        self._powered_off: set[str] = set()
        """Machines that are off."""
        self._cuts: set[tuple[str, str]] = set()
        self._isolated: set[str] = set()
        self.connections: dict[Connection, None] = {}
        """Those that one of their ends still holds, in the order in which they were made."""
        self.channel_ids = count(1)
        self.on_request: Callable[[Connection, bytes], None] = lambda connection, frame: None
        """Called with each frame that is sent to a node, before it is under way."""

    # --- who is there

    def join(
        self,
        host: VirtualHost,
        node: ServedNode,
        listeners: Mapping[PeerAddress, tuple[str, ListenerRole]],
    ) -> None:
        """A node listens from now on."""
        if host.name in self._powered_off:
            self._powered_off.discard(host.name)
            for connection in list(self.connections):
                if connection.server == host.name:
                    self.events.timers.add(self.delay_ms(), connection.retransmit)
        for address, (listener, role) in listeners.items():
            assert address not in self._listeners, f"{address} is in use"
            self._listeners[address] = NetworkListener(host, node, listener, role)
            self._names[address] = host.name

    def stop_listening(self, host: VirtualHost) -> None:
        """Who connects to this node is refused from now on."""
        self._listeners = {at: place for at, place in self._listeners.items() if place.host is not host}

    def leave(self, host: VirtualHost, *, silently: bool = False) -> None:
        """A node's process is gone; `silently`, its machine is: nobody is told that connections ended."""
        self.stop_listening(host)
        if silently:
            self._powered_off.add(host.name)
        for connection in list(self.connections):
            connection.on_process_end(host, silently=silently)

    def listener_at(self, address: PeerAddress) -> NetworkListener | None:
        return self._listeners.get(address)

    def is_powered_off(self, name: str) -> bool:
        """Whether nothing that is sent there is ever answered."""
        return name in self._powered_off

    # --- connecting

    def dial(self, host: VirtualHost, to: PeerAddress, hears: TransportEvents) -> Connection:
        """Connect a node to another; a `kwire.broker.net.peer_link.Dial` when it is given the host."""
        return Connection(self, to, hears, host.name, host.call_soon, host)

    def connect(self, to: PeerAddress, client: str, client_id: str = "me") -> ClientConnection:
        """Connect a client. What it asks before it is connected waits."""
        return ClientConnection(self, to, client, client_id)

    def host_name_at(self, address: PeerAddress) -> str:
        """Whose machine is asked for at an address."""
        return self._names.get(address, UNKNOWN_HOST)

    # --- what goes wrong

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """Nothing goes from one to the other, until this heals; nor back, where that is cut too."""
        self.note(f"{one} {'and' if both_ways else 'to'} {other} is cut")
        self._cuts |= {(one, other), (other, one)} if both_ways else {(one, other)}

    def isolate(self, name: str) -> None:
        """Nothing goes to this one or comes from there, until this heals."""
        self.note(f"{name} is cut off")
        self._isolated.add(name)

    def heal(self, but: Collection[tuple[str, str]] = ()) -> None:
        """No way is cut any more, but these: what was sent meanwhile arrives, if its sender still waits."""
        if self._isolated or not self._cuts <= set(but):
            self.note("the network heals")
        self._cuts &= set(but)
        self._isolated.clear()
        for connection in list(self.connections):
            for way in (connection.to_server, connection.to_client):
                if way.is_blocked:
                    self.events.timers.add(self.delay_ms(), way.deliver_due)

    def is_cut(self, one: str, other: str) -> bool:
        """Whether what one sends does not reach the other."""
        if one == other:
            return False
        return (one, other) in self._cuts or not self._isolated.isdisjoint((one, other))

    def break_some(self, share: float) -> None:
        """Break each connection with this chance."""
        chosen = [connection for connection in self.connections if self._happens(share)]
        self.note(f"{len(chosen)} of {len(self.connections)} connections break")
        for connection in chosen:
            connection.break_off(is_told=True)

    def delay_ms(self) -> int:
        """How long a frame is under way."""
        faults = self.faults
        if self._happens(faults.slow):
            return self._between(faults.longest_ms, faults.slowest_ms)
        return self._between(faults.shortest_ms, faults.longest_ms)

    def break_at_ms(self, delay_ms: int) -> int | None:
        """When the connection breaks while a frame is under way for so long, if it does."""
        return self._between(0, delay_ms) if self._happens(self.faults.breaks) else None

    def surviving_count(self, most: int) -> int:
        """How many of those that were under way when a connection broke still arrive."""
        return self._between(0, most)

    def _happens(self, likely: float) -> bool:
        return self._rng is not None and likely > 0 and self._rng.random() < likely

    def _between(self, least: int, most: int) -> int:
        return least if self._rng is None or most <= least else self._rng.randint(least, most)


class Direction:
    """One direction of a connection: what is sent arrives in its order."""

    __slots__ = (
        "_connection",
        "_due",
        "_in_transit",
        "_is_stalled",
        "_last_ms",
        "_network",
        "_receiver",
        "_sender",
    )

    def __init__(self, connection: Connection, network: Network, sender: str, receiver: str) -> None:
        self._connection = connection
        self._network = network
        self._sender = sender
        self._receiver = receiver
        self._in_transit: deque[Callable[[], None]] = deque()
        self._due = 0  # how many would have arrived by now
        self._last_ms = 0  # when the last one does
        self._is_stalled = False

    @property
    def is_blocked(self) -> bool:
        """Whether something would have arrived, but for a cut."""
        return self._due > 0

    def send(self, arrive: Callable[[], None]) -> None:
        """Send something: `arrive` is called when it gets there."""
        assert len(self._in_transit) < MAX_IN_TRANSIT, f"too much on the way to {self._receiver}"
        network = self._network
        timers = network.events.timers
        now_ms = timers.monotonic_ms()
        delay_ms = network.delay_ms()
        self._last_ms = max(self._last_ms, now_ms + delay_ms)
        self._in_transit.append(arrive)
        timers.add(self._last_ms - now_ms, self._arrive)
        break_ms = network.break_at_ms(delay_ms)
        if break_ms is not None:
            timers.add(break_ms, self._connection.break_off)

    def _arrive(self) -> None:
        self._due += 1
        self.deliver_due()

    def deliver_due(self) -> None:
        """Have everything arrive that is due, unless the way is cut."""
        while self._due and not self._is_stalled and not self._network.is_cut(self._sender, self._receiver):
            self._due -= 1
            self._in_transit.popleft()()

    def stall(self) -> None:
        """Nothing arrives on this connection, until it goes on: those beside it are not held up."""
        self._is_stalled = True

    def resume(self) -> None:
        self._is_stalled = False
        self.deliver_due()

    def drop_some(self) -> None:
        """The connection has broken: of what is under way, some at the end does not arrive."""
        kept = self._network.surviving_count(len(self._in_transit))
        self._in_transit = deque(
            arrive if number < kept else _drop for number, arrive in enumerate(self._in_transit)
        )


def _drop() -> None:
    return None


class Connection:
    """A TCP connection. To whoever made it, it is a `kwire.broker.net.peer_link.Line`."""

    def __init__(
        self,
        network: Network,
        to: PeerAddress,
        hears: TransportEvents,
        client: str,
        call_client: Callable[[Callable[[], None]], None],
        client_host: VirtualHost | None = None,
    ) -> None:
        """`call_client` makes a call in the process of whoever connects."""
        self._network = network
        self._to = to
        self.client = client
        self._call_client = call_client
        self._client_host = client_host
        self._hears: TransportEvents | None = hears
        self._served: ServerConnection | None = None
        self._broken = False
        self._undelivered: Callable[[], None] | None = None
        """What was last sent to a machine that was off."""
        server = network.host_name_at(to)
        self.server = server
        self.to_server = Direction(self, network, client, server)
        self.to_client = Direction(self, network, server, client)
        network.connections[self] = None
        self.to_server.send(self._accept)

    def __repr__(self) -> str:
        return f"<{self.client} to {self.server}>"

    # --- of whoever connects

    def send(self, frame: bytes) -> None:
        if self._hears is not None:
            self._network.on_request(self, frame)
            self.to_server.send(lambda: self._deliver(frame))

    def close(self) -> None:
        if self._hears is not None:
            self._hears = None
            self.to_server.send(self._end_server)
            self._remove_if_closed()

    def _notify_client(self, tell: Callable[[TransportEvents], None]) -> None:
        """Have whoever connects hear something, if he still listens."""

        def call() -> None:
            if self._hears is not None:
                tell(self._hears)

        self._call_client(call)

    def _end_client(self, reason: str) -> None:
        def end(hears: TransportEvents) -> None:
            self._hears = None
            hears.closed(reason)
            self._remove_if_closed()

        self._notify_client(end)

    # --- of whoever is connected to

    def _accept(self) -> None:
        """Somebody asks for a connection. The kernel accepts, also for a process that is paused."""
        network = self._network
        if network.is_powered_off(self.server):
            self._undelivered = self._accept
            return
        place = network.listener_at(self._to)
        if place is None:
            self.to_client.send(lambda: self._end_client("connections are refused"))
            return
        self._served = ServerConnection(self, place, next(network.channel_ids), self.to_client)
        self.to_client.send(lambda: self._notify_client(lambda hears: hears.opened()))

    def receive_response(self, frame: bytes) -> None:
        """An answer has arrived."""
        if self._hears is None and not self._network.is_powered_off(self.client):
            # Whoever has asked is gone.
            self.to_server.send(self._end_server)
            return
        view = memoryview(bytearray(frame))[4:]
        self._notify_client(lambda hears: hears.received(view))

    def _deliver(self, frame: bytes) -> None:
        if self._served is not None:
            self._served.receive(frame)
        elif self._network.is_powered_off(self.server):
            self._undelivered = lambda: self._deliver(frame)
        else:
            # Whoever was connected is gone.
            self.to_client.send(lambda: self._end_client("the peer reset the connection"))

    def retransmit(self) -> None:
        """A machine is on again, and TCP tries again what it did not hear."""
        unheard, self._undelivered = self._undelivered, None
        if unheard is not None and self._hears is not None:
            unheard()

    def _end_server(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.end()
        self._remove_if_closed()

    def on_server_close(self) -> None:
        """The node has closed it, after what it has sent."""
        self._served = None
        self.to_client.send(lambda: self._end_client("the peer closed the connection"))

    # --- what goes wrong

    def break_off(self, *, is_told: bool = False) -> None:
        """Both ends learn, each in its time, that it is over; what was under way may be lost."""
        if self._broken or self not in self._network.connections:
            return
        self._broken = True
        if not is_told:
            self._network.note(f"{self!r} breaks")
        self.to_server.drop_some()
        self.to_client.drop_some()
        self.to_server.send(self._end_server)
        self.to_client.send(lambda: self._end_client("the peer reset the connection"))

    def on_process_end(self, host: VirtualHost, *, silently: bool) -> None:
        """A process is gone, and its end of this with it."""
        if self._client_host is host:
            self._hears = None
            if not silently:
                self.to_server.send(self._end_server)
        if self._served is not None and self._served.listener.host is host:
            self._served = None
            if not silently:
                self.to_client.send(lambda: self._end_client("the peer reset the connection"))
        self._remove_if_closed()

    def _remove_if_closed(self) -> None:
        if self._hears is None and self._served is None:
            self._network.connections.pop(self, None)


class ServerConnection:
    """The end of a node that somebody has connected to: what `kwire.broker.net.connection` does there."""

    def __init__(
        self, connection: Connection, place: NetworkListener, channel_id: int, back: Direction
    ) -> None:
        self.listener = place
        self._connection = connection
        self._to_client = back
        self._waiting: deque[memoryview] = deque()
        self._channel = Channel(
            channel_id,
            peer_host="127.0.0.1",
            listener=place.name,
            on_ready=lambda channel: place.host.call_soon(self._send_responses),
            logger=place.host.logger("kwire.dispatch"),
            role=place.role,
        )
        place.node.channel_opened(self._channel)

    def receive(self, frame: bytes) -> None:
        """A frame has arrived. The process sees it when it runs."""

        def take() -> None:
            self._waiting.append(memoryview(bytearray(frame))[4:])
            self._handle_frames()

        self.listener.host.call_soon(take)

    def end(self) -> None:
        """The other end is gone. The process sees it when it runs."""
        self.listener.host.call_soon(self._end)

    def _end(self) -> None:
        self._waiting.clear()
        if not self._channel.closed:
            self.listener.node.channel_closed(self._channel)

    def _handle_frames(self) -> None:
        """Hand over the frames that need not wait for an answer."""
        channel, node = self._channel, self.listener.node
        while self._waiting and not channel.closed and not channel.ending:
            if channel.slots and node.must_wait(channel, self._waiting[0]):
                return
            try:
                node.handle_frame(channel, self._waiting.popleft())
            except WireError:
                self._close()

    def _send_responses(self) -> None:
        """Send the answers that are ready, in their order."""
        if self._channel.closed:
            return
        pieces = cast("list[bytes | bytearray | memoryview | FileRegion]", self._channel.take_ready())
        sent = b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)
        while sent:
            end = 4 + int.from_bytes(sent[:4], "big")
            frame, sent = sent[:end], sent[end:]
            self._to_client.send(lambda frame=frame: self._connection.receive_response(frame))  # type: ignore[misc]
        if self._channel.closing:
            self._close()
        else:
            self._handle_frames()

    def _close(self) -> None:
        self._end()
        self._connection.on_server_close()


class ClientConnection:
    """A connection of a simulated client, which chooses its versions itself."""

    def __init__(self, network: Network, to: PeerAddress, client: str, client_id: str) -> None:
        self.to = to
        self.close_reason: str | None = None
        """Why it is over, once it is."""
        self.on_close: Callable[[], None] = lambda: None
        self._client_id = client_id
        self._ids = count(1)
        self._pending: deque[tuple[int, int, int, OnResponse]] = deque()
        self._soon = network.events.soon
        self._connection = Connection(network, to, self, client, self._soon.append)

    def send(self, version: int, request: Any, on_response: OnResponse | None) -> None:
        """Ask, and have `on_response` called with the answer, or with why there is none.

        None where there will be no answer: Produce with acks=0.
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
        """Hang up: nothing more is answered."""
        self._connection.close()
        self._end("closed")

    # --- TransportEvents

    def opened(self) -> None:
        pass

    def received(self, frame: memoryview) -> None:
        expected_id, api_key, version, on_response = self._pending.popleft()
        correlation_id, answer = decode_response(API_VERSIONS[api_key].response_class, version, frame)
        assert correlation_id == expected_id, f"answer {correlation_id} to request {expected_id}"
        on_response(answer)

    def closed(self, reason: str) -> None:
        self._end(f"{self.to}: {reason}")

    def _end(self, reason: str) -> None:
        if self.close_reason is None:
            self.close_reason = reason
            asked, self._pending = self._pending, deque()
            for _, _, _, on_response in asked:
                on_response(PeerUnreachable(reason))
            self.on_close()
