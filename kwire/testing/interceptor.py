"""An interceptor between a broker's connections and its node, which records requests and injects faults.

The interceptor replaces the node in the server, and gets each request before the node does. It checks for
responses at the end of each turn of the event loop: a response that is complete then has not been sent yet.
Requests of other nodes, and of the test itself, are neither recorded nor changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from kwire.broker.api.request.context import Channel, RequestContext, size_of
from kwire.broker.storage.file_region import FileRegion
from kwire.host.system_time import libc_time_ns, perf_counter
from kwire.testing.exchange import CLIENT_ID, Exchange
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer, Region, Uuid
from kwire.wire.registry import (
    API_VERSIONS,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)

if TYPE_CHECKING:
    from kwire.broker.metadata.image import MetadataImage
    from kwire.broker.net.socket_server import SocketServer
    from kwire.broker.node.base import NodeBase
    from kwire.testing.faults import Fault, Faults
    from kwire.testing.recorder import Recorder

FULL_FETCH_EPOCHS: Final = -1, 0
"""Session epochs of full fetch requests, which name all partitions. KIP-227."""

NODE_CLIENT_ID: Final = re.compile(r"node-\d+-")
"""The start of the client ids of requests between nodes."""

FetchedTopic = tuple[str, Uuid]


class Topics(Protocol):
    """The source of the recorder's topic names."""

    def find_unknown(self, exchange: Exchange, *, is_needed: bool) -> Collection[Uuid]:
        """Add new topics to the topic names. Return the topic ids in the request for which to call `look_up`.

        Without `is_needed`, the names matter only for Fetch requests, whose sessions are tracked.
        """

    def look_up(self, channel: Channel, topic_ids: Collection[Uuid], done: Callable[[], None]) -> None:
        """Look up names, and call `done` even if there are none."""


class _PendingResponse:
    """A request that waits for its response."""

    __slots__ = ("context", "exchange", "fault", "started_s")

    def __init__(self, context: RequestContext, exchange: Exchange, fault: Fault | None) -> None:
        self.context = context
        self.exchange = exchange
        self.fault = fault
        self.started_s = perf_counter()


class Interceptor:
    """A `ServedNode` that forwards to another one. It runs in the thread of the event loop."""

    def __init__(self, server: SocketServer, recorder: Recorder, faults: Faults, topics: Topics) -> None:
        """Replace the node of a server. `topics` adds new topics to the recorder's topic names."""
        self._server = server
        self._loop = server.loop
        self._inner = server.node
        self._topics = topics
        self._recorder = recorder
        self._faults = faults
        self._pending: list[_PendingResponse] = []
        self._held: dict[int, RequestContext] = {}
        """Placeholders of delayed and ignored requests, by channel id.

        Placeholders keep the responses in order.
        """
        self._connections: dict[int, int] = {}
        """The number of each connection in the recorder, by channel id."""
        self._fetched: dict[int, set[tuple[FetchedTopic, int]]] = {}
        """The partitions of the fetch session, by channel id."""
        server.node = self

    # --- the interface of a node

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Return whether a frame has to wait for an earlier request of its channel."""
        return channel.id in self._held or self._inner.must_wait(channel, frame)

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        """Record a request, and process it with the fault that applies to it."""
        if channel.authentication is not None and channel.authentication.expects_raw_tokens:
            self._forward(channel, frame)
            return
        header, position = decode_request_header(frame)
        api = API_VERSIONS.get(header.api_key)
        if (
            api is None
            or header.api_version not in api.request_class.VERSIONS
            or header.client_id == CLIENT_ID
        ):
            self._forward(channel, frame)
            return
        exchange = Exchange(
            libc_time_ns() / 1_000_000_000, header, frame[position:], self._recorder.topic_names
        )
        if _is_from_node(channel, exchange):
            self._forward(channel, frame)
            return
        unknown = self._topics.find_unknown(exchange, is_needed=self._faults.any_pending)
        if unknown:
            self._held[channel.id] = slot = channel.open_slot(header, self._loop.now_ms())
            again = partial(self._resume, channel, slot, partial(self.handle_frame, channel, frame))
            self._topics.look_up(channel, unknown, again)
            return
        connection = self._connections.get(channel.id)
        if connection is None:
            connection = self._connections[channel.id] = next(self._recorder.connections)
        exchange.connection = connection
        if header.api_key == ApiKey.FETCH:
            self._track_fetch_session(channel, exchange)
        fault = None
        if self._faults.any_pending:
            fault = self._faults.match(exchange.api, exchange.client_id, exchange.partitions)
        if fault is not None:
            exchange.fault = fault.description
        self._recorder.record_request(exchange)
        if fault is None:
            self._handle(channel, frame, exchange, None)
            return
        if fault.kind in ("delay", "ignore"):
            self._held[channel.id] = slot = channel.open_slot(header, self._loop.now_ms())
            if fault.kind == "delay":
                again = partial(
                    self._resume, channel, slot, partial(self._handle, channel, frame, exchange, None)
                )
                self._loop.schedule(int(fault.delay_s * 1000), again)
        elif fault.kind == "return_error" and header.api_key != ApiKey.FETCH:
            self._respond_with_error(channel, frame, exchange, ErrorCode(fault.error_code))
        else:
            if fault.kind == "return_error":
                frame = _without_wait(exchange)
            self._handle(channel, frame, exchange, fault)

    def end_turn(self, respond: Callable[[], None] | None = None) -> None:
        """Call `end_turn` of the node, and record the responses that are complete.

        The node may call `respond` to send responses early.
        """

        def check_and_respond() -> None:
            self._check_pending()
            if respond is not None:
                respond()

        self._inner.end_turn(check_and_respond)
        self._check_pending()

    def channel_opened(self, channel: Channel) -> None:
        """Pass the event to the node."""
        self._inner.channel_opened(channel)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the requests of the channel, and pass the event to the node."""
        self._held.pop(channel.id, None)
        self._fetched.pop(channel.id, None)
        self._connections.pop(channel.id, None)
        self._inner.channel_closed(channel)

    def begin_shutdown(self) -> None:
        """Close the connections of delayed and ignored requests, and shut the node down."""
        for slot in self._held.values():
            slot.close_connection()
        self._held.clear()
        self._inner.begin_shutdown()

    # --- requests

    def _forward(self, channel: Channel, frame: memoryview) -> None:
        self._inner.handle_frame(channel, frame)
        channel.repeated_request = None  # otherwise the next heartbeats would bypass the interceptor

    def _handle(self, channel: Channel, frame: memoryview, exchange: Exchange, fault: Fault | None) -> None:
        count = len(channel.slots)
        try:
            self._forward(channel, frame)
        except WireError as error:
            exchange.complete(0.0, None, 0, f"the connection was closed: {error}")
            raise
        if len(channel.slots) > count:
            self._pending.append(_PendingResponse(channel.slots[-1], exchange, fault))

    def _resume(self, channel: Channel, slot: RequestContext, handle: Callable[[], None]) -> None:
        """Process a request in the place of its placeholder."""
        if channel.closed or self._held.get(channel.id) is not slot:
            return
        del self._held[channel.id]
        channel.slots.remove(slot)
        connection = self._server.connections[channel.id]
        try:
            handle()
        except WireError as error:
            self._server.refuse(connection, str(error))
            return
        connection.mark_dirty()

    def _respond_with_error(
        self, channel: Channel, frame: memoryview, exchange: Exchange, code: ErrorCode
    ) -> None:
        channel.fetches.complete_all()
        context = channel.open_slot(exchange.header, self._loop.now_ms(), len(frame))
        self._pending.append(_PendingResponse(context, exchange, None))
        try:
            context.request = exchange.request_message
            context.refuse(ApiError(code))
        except WireError:
            context.close_connection()  # the response has no error field, as for Produce with acks=0

    def _track_fetch_session(self, channel: Channel, exchange: Exchange) -> None:
        """Track the partitions of a fetch session. Incremental requests name only changed partitions."""
        try:
            request: Any = exchange.request_message
        except WireError:
            return
        fetched = self._fetched.setdefault(channel.id, set())
        if request.session_epoch in FULL_FETCH_EPOCHS:
            fetched.clear()
        for topic in request.forgotten_topics_data:
            fetched.difference_update(((topic.topic, topic.topic_id), index) for index in topic.partitions)
        for topic in request.topics:
            fetched.update(((topic.topic, topic.topic_id), one.partition) for one in topic.partitions)
        names = self._recorder.topic_names
        exchange.fetched_partitions = frozenset(
            (name or names.get(topic_id, ""), index) for (name, topic_id), index in fetched
        )

    # --- responses

    def _check_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for one in pending:
            if one.context.completed or one.context.channel.closed:
                self._complete(one)
            else:
                self._pending.append(one)

    def _complete(self, one: _PendingResponse) -> None:
        context, exchange = one.context, one.exchange
        duration_ms = (perf_counter() - one.started_s) * 1000
        if context.reply is None:
            disconnected, closed = "the client disconnected", "the connection was closed"
            outcome = (
                closed
                if context.closes
                else disconnected
                if context.channel.closed
                else "no response requested"
            )
            exchange.complete(duration_ms, None, 0, outcome)
            return
        if one.fault is not None and not context.channel.closed:
            self._apply_fault(one.fault, context)
        response = None
        if context.response_bytes <= self._recorder.max_response_bytes:
            response = join_pieces(context.reply)
        outcome = (
            "the client disconnected"  # before the response, which is not sent
            if context.channel.closed
            else _describe_closed(one.fault, context.response_bytes)
        )
        exchange.complete(duration_ms, response, context.response_bytes, outcome)
        self._recorder.count_response_bytes(len(response or b""))

    def _apply_fault(self, fault: Fault, context: RequestContext) -> None:
        assert context.reply is not None
        if fault.kind == "return_error":
            self._replace(context, self._with_errors(context, ErrorCode(fault.error_code)))
            return
        half = join_pieces(context.reply)[
            : context.response_bytes // 2 if fault.kind == "truncate_response" else 0
        ]
        self._replace(context, [half])
        channel = context.channel
        closing = RequestContext(context.header, channel, context.arrived_ms, 0)
        channel.slots.insert(channel.slots.index(context) + 1, closing)
        closing.close_connection()

    def _with_errors(self, context: RequestContext, code: ErrorCode) -> list[Buffer | Region]:
        """Return the Fetch response with this error for each partition of the session, and without records.

        A response with an error of its own is returned unchanged.
        """
        header, reply = context.header, context.reply
        assert reply is not None
        _, response = decode_response(FetchResponse, header.api_version, memoryview(join_pieces(reply))[4:])
        if response.error_code:
            return reply
        topics: dict[FetchedTopic, list[PartitionData]] = {}
        for topic, index in sorted(self._fetched.get(context.channel.id, ())):
            refused = PartitionData(
                partition_index=index,
                error_code=code,
                high_watermark=-1,
                aborted_transactions=[],
                records=b"",
            )
            topics.setdefault(topic, []).append(refused)
        response.responses = [
            FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=refused)
            for (name, topic_id), refused in topics.items()
        ]
        return encode_response(header.api_key, header.api_version, header.correlation_id, response)

    def _replace(self, context: RequestContext, reply: list[Buffer | Region]) -> None:
        response_bytes = sum(map(size_of, reply))
        context.channel.queued_bytes += response_bytes - context.response_bytes
        context.reply, context.response_bytes = reply, response_bytes


class ImageTopics:
    """The topics in a node's metadata image, which has all topics."""

    def __init__(self, node: NodeBase, recorder: Recorder) -> None:
        self._node, self._recorder = node, recorder
        self._image: MetadataImage | None = None

    def find_unknown(self, exchange: Exchange, *, is_needed: bool) -> Collection[Uuid]:
        """Add the topics of a new image to the recorder's topic names. No request has to wait."""
        image = self._node.image
        if image is not self._image:
            self._image = image
            self._recorder.topic_names.update((topic.topic_id, name) for name, topic in image.topics.items())
        return ()

    def look_up(self, channel: Channel, topic_ids: Collection[Uuid], done: Callable[[], None]) -> None:
        """Not called."""


def _is_from_node(channel: Channel, exchange: Exchange) -> bool:
    """Return whether another node sent a request, judged by its client id and its software name."""
    if not NODE_CLIENT_ID.match(exchange.client_id):
        return False
    from kwire.broker.net.peer_link import SOFTWARE_NAME  # not needed by a single broker, so imported late

    software = channel.client_software_name
    if exchange.header.api_key == ApiKey.API_VERSIONS:  # the request that contains the software name
        try:
            request: Any = exchange.request_message
        except WireError:
            return False
        software = request.client_software_name
    return software == SOFTWARE_NAME


def join_pieces(pieces: list[Buffer | Region]) -> bytes:
    """Return a response as bytes. `pieces` are its parts in order: buffers, and regions of files to read."""
    return b"".join(
        piece if isinstance(piece, Buffer) else cast(FileRegion, piece).read() for piece in pieces
    )


def _without_wait(exchange: Exchange) -> memoryview:
    """Return the frame of a Fetch request, changed to max_wait_ms=0, without its size prefix.

    The request need not wait for records, because its response will be replaced by errors.
    """
    request: FetchRequest = exchange.decode()
    request.max_wait_ms = 0
    header = exchange.header
    frame = encode_request(request, header.api_version, header.correlation_id, header.client_id)
    return memoryview(bytearray(frame))[4:]


def _describe_closed(fault: Fault | None, sent_bytes: int) -> str:
    if fault is None or fault.kind not in ("drop_response", "truncate_response"):
        return ""
    return f"{plural(sent_bytes, 'byte')}, then the connection was closed"
