"""The connection to a broker for one connection of a client.

Requests and responses keep their order and their correlation ids, because each client's connection has its
own connection to the broker. So SASL needs no support: the client authenticates to the broker.

Both directions are bounded. The socket server stops receiving from a client while too many of its requests
have no response; a Produce with acks=0 counts until its bytes have been sent to the broker. The connection to
the broker stops receiving while the client has not received `MAX_UNSENT_BYTES` of responses.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from kwire.broker.api.request.context import RequestContext
from kwire.broker.net.peer_connection import PeerConnection, PeerConnections
from kwire.broker.net.receiver import MAX_UNSENT_BYTES
from kwire.testing.direction import do_nothing
from kwire.testing.exchange import CLIENT_ID
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import WireError
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import RequestHeader, decode_response, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kwire.broker.api.request.context import Channel
    from kwire.broker.net.connection import Connection
    from kwire.broker.net.peer_link import TransportEvents
    from kwire.host.host import PeerAddress
    from kwire.host.system_socket import Socket
    from kwire.wire.primitives import Buffer, Region, Uuid

CONNECT_TIMEOUT_MS: Final = 10_000

LOOKUP: Final = RequestHeader(ApiKey.METADATA, 12, -12, CLIENT_ID, 2)
"""The header of Metadata requests of the proxy. Version 12 is the first one with topic ids in the request."""
NO_REQUEST: Final = RequestHeader(ApiKey.API_VERSIONS, 0, 0, None)
"""The header of a slot that only closes the connection."""


class UpstreamLink(PeerConnection):
    """An open connection to a broker, which can stop receiving for a while."""

    __slots__ = ("_is_held", "on_flushed")

    def __init__(
        self,
        connections: PeerConnections,
        sock: Socket,
        to: PeerAddress,
        events: TransportEvents,
        listener: str,
    ) -> None:
        self._is_held = False
        self.on_flushed: Callable[[], None] = do_nothing
        """Called after all queued bytes were sent."""
        super().__init__(connections, sock, to, events, listener)

    def send_request(self, frame: Buffer) -> None:
        """Queue a request without its size prefix."""
        self.queue.extend([len(frame).to_bytes(4, "big"), frame], 4 + len(frame))
        self.mark_dirty()

    def hold(self) -> None:
        """Stop receiving until `release_hold`."""
        self._is_held = True
        self._pause()

    def release_hold(self) -> None:
        """Continue to receive."""
        self._is_held = self._paused = False
        self._watch()
        self.mark_dirty()

    def _is_full(self) -> bool:
        return self._is_held

    def _process(self) -> None:
        super()._process()
        if not self.closed and not self.queue:
            self.on_flushed()


class TopicLookup(NamedTuple):
    """A Metadata request of the proxy, in the order of the client's requests."""

    header: RequestHeader
    done: Callable[[Any], None]


class Upstreams(Protocol):
    """The state that all connections of a proxy to brokers share."""

    @property
    def connections(self) -> PeerConnections:
        """All connections to brokers."""

    def convert(self, header: RequestHeader, frame: memoryview) -> list[Buffer | Region]:
        """Return the response to send to the client. Raises WireError."""

    def connection_of(self, channel: Channel) -> Connection | None:
        """Return the client's connection, unless it is closed."""

    def held(self, upstream: Upstream) -> None:
        """Call `release_hold_if_drained` of this connection at the end of turns."""

    def lost(self, upstream: Upstream, reason: str, *, is_expected: bool) -> None:
        """Log that a connection to a broker could not be opened, or was lost."""


class Upstream:
    """The connection to a broker that belongs to the connection of a client."""

    def __init__(self, upstreams: Upstreams, channel: Channel, to: PeerAddress) -> None:
        self.channel = channel
        self.to = to
        self.is_held = False
        """Whether the client has to receive responses before further responses are received."""
        self._upstreams = upstreams
        self._awaiting: deque[RequestContext | TopicLookup] = deque()
        """Requests that wait for their response, in order."""
        self._one_way: list[RequestContext] = []
        """Requests without a response whose bytes have not been sent."""
        self._unsent: list[memoryview] = []
        """Requests that wait for the connection to open."""
        self._link: UpstreamLink | None = None
        self._is_closed = False
        self._transport = upstreams.connections.dial(to, self, "")
        loop = upstreams.connections.loop
        self._timer = loop.schedule(CONNECT_TIMEOUT_MS, self._connecting_timed_out)

    def forward(self, context: RequestContext, frame: memoryview, *, has_response: bool) -> None:
        """Send a request to the broker."""
        if self._is_closed:
            context.close_connection()
            return
        if has_response:
            self._awaiting.append(context)
        else:
            self._one_way.append(context)
        self._send(frame)

    def look_up_topics(self, topic_ids: Collection[Uuid], done: Callable[[Any], None]) -> None:
        """Send a Metadata request for topics. `done` is not called if the connection is lost."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids],
            allow_auto_topic_creation=False,
        )
        self._awaiting.append(TopicLookup(LOOKUP, done))
        frame = encode_request(request, LOOKUP.api_version, LOOKUP.correlation_id, LOOKUP.client_id)
        self._send(memoryview(frame)[4:])

    def _send(self, frame: memoryview) -> None:
        if self._link is None:
            self._unsent.append(frame)
        else:
            self._link.send_request(frame)

    def close(self) -> None:
        """Close the connection. Later responses are dropped."""
        self._is_closed = True
        self._timer.cancel()
        self._transport.close()

    def release_hold_if_drained(self) -> None:
        """Receive further responses if the client has received enough of the earlier ones."""
        if self._link is None or self._is_closed:
            self.is_held = False
        elif self._unsent_bytes() <= MAX_UNSENT_BYTES:
            self.is_held = False
            self._link.release_hold()

    # --- TransportEvents

    def opened(self) -> None:
        """Send the requests that have arrived in the meantime."""
        self._timer.cancel()
        self._link = link = cast(UpstreamLink, self._transport.connection)
        link.on_flushed = self._complete_one_way
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            link.send_request(frame)

    def received(self, frame: memoryview) -> None:
        """Complete the oldest request with its response."""
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._awaiting or self._awaiting[0].header.correlation_id != correlation_id:
            self._fail(f"it sent a response with correlation id {correlation_id}, which is not expected")
            return
        context = self._awaiting.popleft()
        if isinstance(context, TopicLookup):
            self._looked_up(context, frame)
            return
        try:
            pieces = self._upstreams.convert(context.header, frame)
        except WireError as error:
            self._awaiting.appendleft(context)
            self._fail(f"its response to {context.header} cannot be forwarded: {error}")
            return
        context.complete_encoded(pieces)
        if not self.is_held and self._unsent_bytes() > MAX_UNSENT_BYTES and self._link is not None:
            self.is_held = True
            self._link.hold()
            self._upstreams.held(self)

    def _looked_up(self, lookup: TopicLookup, frame: memoryview) -> None:
        try:
            _, response = decode_response(MetadataResponse, lookup.header.api_version, frame)
        except WireError as error:
            self._fail(f"its response to {lookup.header} cannot be decoded: {error}")
            return
        lookup.done(response)

    def closed(self, reason: str) -> None:
        """Close the client's connection after the responses that have arrived."""
        self._timer.cancel()
        self._is_closed = True
        is_expected = self._link is not None and not self._awaiting and not self._one_way
        self._upstreams.lost(self, reason, is_expected=is_expected)
        self._close_client(reason)

    # --- details

    def _unsent_bytes(self) -> int:
        connection = self._upstreams.connection_of(self.channel)
        return 0 if connection is None else connection.queue.size_bytes + self.channel.queued_bytes

    def _complete_one_way(self) -> None:
        one_way, self._one_way = self._one_way, []
        for context in one_way:
            context.complete_without_reply()

    def _connecting_timed_out(self) -> None:
        self._fail(f"connecting takes longer than {CONNECT_TIMEOUT_MS} ms")

    def _fail(self, reason: str) -> None:
        self.close()
        self._upstreams.lost(self, reason, is_expected=False)
        self._close_client(reason)

    def _close_client(self, reason: str) -> None:
        channel = self.channel
        connection = self._upstreams.connection_of(channel)
        if connection is None:
            return
        pending = [one for one in self._awaiting if isinstance(one, RequestContext)] + self._one_way
        self._awaiting.clear()
        self._one_way.clear()
        if any(not slot.completed and slot not in pending for slot in channel.slots):
            connection.close(reason)  # a delayed or ignored request comes first, and has no end
            return
        for context in pending:
            context.close_connection()
        if not pending:
            closing = RequestContext(NO_REQUEST, channel, 0, 0)
            channel.slots.append(closing)
            closing.close_connection()
