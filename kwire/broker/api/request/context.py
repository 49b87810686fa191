"""Connections and requests as handlers see them.

A `Channel` is the part of a connection that does no I/O. Each request takes a slot in the order of arrival. A
request may be completed at any time, but its response is sent only after the responses of all earlier slots.
The network layer owns the socket, and calls `take_ready` for the bytes to send.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.api.request.client_quotas import NO_QUOTAS, ClientQuotas
from kwire.broker.api.request.error_responses import ItemResults, error_response
from kwire.broker.api.request.fetch_queue import FetchQueue
from kwire.broker.api.request.repeated_request import FastPath, RepeatedRequest
from kwire.broker.api.request.request_log import client_bytes, request_id
from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.response_errors import error_codes, error_codes_of_partitions
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ApiError, ErrorCode, NotInVersion
from kwire.wire.primitives import Buffer, Region
from kwire.wire.registry import RequestHeader, encode_response, encode_response_in_slices
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.security.standard_authorizer import StandardAuthorizer
    from kwire.host.host import Host


class Delayed:
    """The type of `DELAYED`, and the base class of `slices.InSlices`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DELAYED"


DELAYED: Final = Delayed()
"""The result of a handler that completes the request context itself, now or later."""

MAX_CLIENT_ID_LENGTH: Final = 255
"""The longest client id, in characters, that a connection keeps. Requests may have one of up to 32 KiB."""

MAX_FRAME_BYTES: Final = 2**31 - 1

CODES_PER_SLICE: Final = 4096
"""The number of error codes in a response that are counted in one turn of the event loop."""

_PENDING, _READY = range(2)


class ChannelAuthentication(Protocol):
    """The authentication of a connection on a SASL listener. `api.security.sasl_session` implements it."""

    @property
    def expects_raw_tokens(self) -> bool:
        """Whether the next frame is a raw SASL token without a Kafka request header."""

    @property
    def session_expires(self) -> bool:
        """Whether the session can expire, so that `handle_frame` must see each request."""

    def handle_frame(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        """Handle a frame of the authentication. Return False if the frame is for the API handlers.

        Raises WireError if the client violates the protocol; the caller must then close the connection.
        """

    def fail_invalid_size(self, channel: Channel, reason: str, now_ms: int) -> bool:
        """Fail a running authentication because of a frame of invalid size. An empty reason is not logged.

        Return False if no authentication is running. Otherwise the connection is closed after the delay for
        failed authentication.
        """


class Channel:
    """The connection of a client, without its socket."""

    __slots__ = (
        "_client",
        "_client_id",
        "_muted_until_ms",
        "authentication",
        "client_software_name",
        "client_software_version",
        "closed",
        "closing",
        "ending",
        "fetches",
        "id",
        "listener",
        "local_host",
        "logger",
        "max_frame_bytes",
        "on_ready",
        "on_throttled",
        "peer_host",
        "peer_port",
        "pending_bytes",
        "principal",
        "queued_bytes",
        "quotas",
        "received_s",
        "repeated_request",
        "request_metrics",
        "role",
        "slots",
    )

    def __init__(
        self,
        channel_id: int,
        *,
        peer_host: str,
        listener: str,
        on_ready: Callable[[Channel], None],
        logger: NodeLogger,
        principal: Principal = ANONYMOUS,
        local_host: str = "",
        peer_port: int = 0,
        role: ListenerRole = ListenerRole.BROKER,
        request_metrics: RequestMetrics | None = None,
        on_throttled: Callable[[int], None] = lambda throttle_ms: None,
    ) -> None:
        """`request_metrics` counts each received request and each sent response.

        `on_ready` is called when a response is ready, or when requests that had to wait may be handled.
        `on_throttled` is called with a throttle time in ms. It calls `mute`, unless the connection ends.
        """
        self.id = channel_id
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.local_host = local_host
        self.listener = listener
        self.role = role
        """The role in which the node serves this connection's listener."""
        self.principal = principal
        self.authentication: ChannelAuthentication | None = None
        """The SASL authentication; None if the listener requires none."""
        self.max_frame_bytes = MAX_FRAME_BYTES
        """The largest frame in bytes, without the size prefix. A larger frame closes the connection."""
        self.on_ready = on_ready
        self.on_throttled = on_throttled
        self._muted_until_ms = 0
        self.quotas: ClientQuotas = NO_QUOTAS
        self.logger = logger
        self.request_metrics = request_metrics
        self._client_id: str | None = None
        self._client = client_bytes(None, peer_host)
        self.received_s = 0.0
        """The time at which the current frames were received, in seconds of the clock of `request_metrics`.

        The network layer sets this attribute.
        """
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.slots: deque[RequestContext] = deque()
        self.pending_bytes = 0
        """The size in bytes of the requests whose responses `take_ready` has not returned."""
        self.queued_bytes = 0
        """The size in bytes of completed responses that `take_ready` has not returned yet."""
        self.ending = False
        """Whether a pending request will close the connection, so that no further request may be read."""
        self.closing = False
        """Whether to close the connection after the responses that `take_ready` has returned."""
        self.closed = False
        self.fetches = FetchQueue()
        self.repeated_request: RepeatedRequest | None = None
        """The last request that the client may repeat byte for byte, with its response; or None."""

    @property
    def pending(self) -> int:
        """The number of requests whose responses `take_ready` has not returned."""
        return len(self.slots)

    @property
    def client_id(self) -> str | None:
        """The last client id, except one that was too long to keep; None without `request_metrics`."""
        return self._client_id

    def open_slot(self, header: RequestHeader, arrived_ms: int, size_bytes: int = 0) -> RequestContext:
        """Append a slot for a request. Responses are sent in the order of slots.

        `arrived_ms` is wall-clock time. `size_bytes` is the size of the request without its size prefix.
        """
        request_metrics = self.request_metrics
        number = 0 if request_metrics is None else self.log_request(request_metrics, header, size_bytes)
        context = RequestContext(header, self, arrived_ms, size_bytes, number)
        self.slots.append(context)
        self.pending_bytes += size_bytes
        return context

    def log_request(self, request_metrics: RequestMetrics, header: RequestHeader, size_bytes: int) -> int:
        """Log a request before it is handled. Return its number in the request log."""
        client_id = header[3]
        if client_id == self._client_id:
            client = self._client
        else:
            client = client_bytes(client_id, self.peer_host)
            if client_id is None or len(client_id) <= MAX_CLIENT_ID_LENGTH:
                self._client_id, self._client = client_id, client
        return request_metrics.log.begin(header, client, self.id, size_bytes, self.received_s)

    def take_ready(self) -> list[Buffer | Region]:
        """Remove the completed requests at the head of `slots`, and return the pieces of their responses.

        Requests after a request that closes the connection get no response.
        """
        slots = self.slots
        pieces: list[Buffer | Region] = []
        request_metrics = self.request_metrics
        while slots and slots[0].state == _READY:
            context = slots.popleft()
            self.pending_bytes -= context.size_bytes
            reply = context.reply
            if request_metrics is not None:
                request_metrics.record(
                    context.number,
                    context.header,
                    self,
                    context.size_bytes,
                    context.response_bytes,
                    context.received_s,
                    context.counted_as,
                    context.handled_s,
                )
            if reply is not None:
                pieces.extend(reply)
                self.queued_bytes -= context.response_bytes
            if context.closes:
                self.closing = True
                self._drop_slots()
        return pieces

    def mute(self, host: Host, throttle_ms: int) -> None:
        """Handle no further request for this time. Responses are still sent, as in Kafka since KIP-219."""

        def end() -> None:
            if not self.closed and host.monotonic_ms() >= self._muted_until_ms:
                self.fetches.unmute()
                self.on_ready(self)

        self._muted_until_ms = max(self._muted_until_ms, host.monotonic_ms() + throttle_ms)
        self.fetches.is_muted = True
        host.schedule(throttle_ms, end)

    def _drop_slots(self) -> None:
        """Drop all requests, which get no response. As in Apache Kafka, metrics count them."""
        request_metrics = self.request_metrics
        if request_metrics is not None:
            for context in self.slots:
                request_metrics.record(
                    None,
                    context.header,
                    self,
                    context.size_bytes,
                    0,
                    context.received_s,
                    context.counted_as,
                    context.handled_s,
                )
        self.fetches.clear()
        self.slots.clear()
        self.pending_bytes = 0
        self.queued_bytes = 0

    def close(self) -> None:
        """Mark the connection as closed. Responses that are completed later are dropped."""
        self.closed = True
        self.repeated_request = None
        self._drop_slots()


def size_of(piece: Buffer | Region) -> int:
    """Return the size in bytes of one piece of a response."""
    if isinstance(piece, (bytes, bytearray)):
        return len(piece)
    if isinstance(piece, memoryview):
        return piece.nbytes
    return piece.size_bytes


class RequestContext:
    """A request with its connection. Handlers respond to the request only through this object."""

    __slots__ = (
        "arrived_ms",
        "authorizer",
        "channel",
        "closes",
        "counted_as",
        "fast_path",
        "handled_s",
        "header",
        "number",
        "received_s",
        "reply",
        "request",
        "response_bytes",
        "results",
        "size_bytes",
        "state",
        "throttle_ms",
    )

    def __init__(
        self, header: RequestHeader, channel: Channel, arrived_ms: int, size_bytes: int, number: int = 0
    ) -> None:
        self.header = header
        self.channel = channel
        self.arrived_ms = arrived_ms
        self.size_bytes = size_bytes
        self.received_s = channel.received_s
        self.handled_s = -1.0
        """The time until the handler returned without a response, in seconds; negative if it responded."""
        self.number = number
        """The number of the request in the `RequestLog`."""
        self.counted_as: tuple[int, int] | None = None
        """The API key and version of the request in metrics, if they differ from the header's."""
        self.state = _PENDING
        self.reply: list[Buffer | Region] | None = None
        self.response_bytes = 0
        self.closes = False
        """Whether to close the connection after this request, or after its response if there is one."""
        self.request: object = None
        """The decoded request, kept until the response is encoded. An error response may need it."""
        self.authorizer: StandardAuthorizer | None = None
        self.results: ItemResults | None = None
        """The results of items that the handler does not get, for the response."""
        self.fast_path: FastPath | None = None
        """The function for a repetition of this request. A handler that responds at once may set it."""
        self.throttle_ms: int | None = None
        """The throttle time in ms that a Fetch was given before its response was built."""

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def request_id(self) -> str:
        """The id of the request in log lines."""
        return request_id(self.channel.id, self.header.correlation_id)

    @property
    def listener(self) -> str:
        return self.channel.listener

    @property
    def role(self) -> ListenerRole:
        """The role in which the node serves the listener."""
        return self.channel.role

    @property
    def principal(self) -> Principal:
        return self.channel.principal

    @property
    def peer_host(self) -> str:
        return self.channel.peer_host

    @property
    def client_id(self) -> str:
        """The client id. It is empty if the request had none."""
        return self.header.client_id or ""

    @property
    def completed(self) -> bool:
        return self.state == _READY

    def complete(self, response: Message) -> None:
        """Encode the response, which is sent after all earlier responses. Call this exactly once."""
        if self.results is not None:
            self.results.add_to(response)
        channel = self.channel
        if channel.closed or channel.closing:
            self.state = _READY
            self.request = None
            self.record_errors(self.header.api_key, response)
            return
        header = self.header
        throttle_ms = self._throttle(response) if channel.quotas.is_enforced else 0
        try:
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, response)
        except Exception as error:
            self._handle_encoding_error(error, throttle_ms)
            return
        self.record_errors(header.api_key, response)
        self._complete(encoded)

    def complete_in_slices(self, response: Message) -> Generator[None, None, None]:
        """Encode a large response like `complete`, and yield between slices of its elements."""
        header = self.header
        if self.results is not None:
            yield from self.results.add_to_in_slices(response)
            self.results = None
        if self.channel.closed or self.channel.closing:
            self.complete(response)
            return
        throttle_ms = self._throttle(response) if self.channel.quotas.is_enforced else 0
        try:
            encoded = yield from encode_response_in_slices(
                header.api_key, header.api_version, header.correlation_id, response
            )
        except Exception as error:
            self._handle_encoding_error(error, throttle_ms)
            return
        yield
        metrics = self.channel.request_metrics
        if metrics is not None:
            codes = error_codes(header.api_key, response)
            while counts := Counter(islice(codes, CODES_PER_SLICE)):
                for code, count in counts.items():
                    if code:
                        metrics.record_error(header.api_key, code, count)
                yield
        self._complete(encoded)

    def _throttle(self, response: Message | None) -> int:
        """Record the request in the quotas of its client, and mute the connection if one is exceeded.

        Return the throttle time in ms, which is set in the response if it has the field.
        """
        self.fast_path = None
        throttle_ms = 0 if self.closes else self.channel.quotas.throttle_time_ms(self, response)
        if throttle_ms > 0:
            _set_throttle_time(response, throttle_ms)
            self.channel.on_throttled(throttle_ms)
        return throttle_ms

    def record_errors(self, api_key: int, response: Message) -> None:
        """Count the errors in a response of this API."""
        metrics = self.channel.request_metrics
        if metrics is not None:
            for code in error_codes(api_key, response):
                if code:
                    metrics.record_error(api_key, code)

    def _handle_encoding_error(self, error: Exception, throttle_ms: int) -> None:
        """Complete the request with an error, because its response cannot be encoded."""
        header = self.header
        if isinstance(error, NotInVersion):
            self.channel.logger.info(
                "Returning UNSUPPORTED_VERSION for request %s from %s: the response sets a field that this "
                "version does not have: %s",
                *(header, self.channel.peer_host, error),
            )
            self._complete_with_error(ErrorCode.UNSUPPORTED_VERSION, throttle_ms)
            return
        # The usual reason is a string of more than 32767 bytes. A client can cause that with names that an
        # error message quotes. Other requests must not be affected.
        self.channel.logger.error(
            "Cannot encode the response to request %s from %s; responding with UNKNOWN_SERVER_ERROR",
            header,
            self.channel.peer_host,
            exc_info=error,
            extra={"request": self.request_id},
        )
        self._complete_with_error(ErrorCode.UNKNOWN_SERVER_ERROR, throttle_ms)

    def was_delayed(self) -> None:
        """Record that the handler has returned, and that the response comes later."""
        metrics = self.channel.request_metrics
        if metrics is not None:
            self.handled_s = metrics.clock() - self.received_s

    def record_error(self, code: int, count: int = 1) -> None:
        """Count errors that `complete` does not count: those of partitions in Produce and Fetch responses."""
        metrics = self.channel.request_metrics
        if metrics is not None:
            metrics.record_error(self.header.api_key, code, count)

    def refuse(self, error: ApiError) -> None:
        self.complete(self.error_response(error))

    def error_response(self, error: ApiError) -> Message:
        """Return an error response for the whole request, which the caller must send.

        If the request is a Produce or Fetch, also count the errors of its partitions, as its handler does
        otherwise. Raises WireError for a Produce with acks=0.
        """
        header = self.header
        self.results = None  # every item of the request gets this error
        response = error_response(header.api_key, header.api_version, self.request, error)
        for code in error_codes_of_partitions(header.api_key, response):
            if code:
                self.record_error(code)
        return response

    def _complete_with_error(self, code: ErrorCode, throttle_ms: int) -> None:
        """Respond with this error. If the error response cannot be encoded either, close the connection."""
        header = self.header
        self.fast_path = None
        try:
            failed = self.error_response(ApiError(code))
            _set_throttle_time(failed, throttle_ms)
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, failed)
        except Exception as error:
            self.channel.logger.warning(
                "Closing connection to %s: cannot encode the error response to request %s: %s",
                self.channel.peer_host,
                header,
                error,
            )
            self.close_connection()
            return
        self.record_errors(header.api_key, failed)
        self._complete(encoded)

    def complete_encoded(self, pieces: list[Buffer | Region]) -> None:
        """Complete the request with an encoded response.

        `pieces` are sent one after the other. The caller has put the size prefix into the first piece, as
        `encode_response` does.
        """
        if self.channel.quotas.is_enforced:
            self._throttle(None)
        self._complete(pieces)

    def _complete(self, pieces: list[Buffer | Region]) -> None:
        assert self.state == _PENDING, f"a second response to {self.header}"
        self.state = _READY
        self.request = None
        channel = self.channel
        if channel.closed or channel.closing:
            return
        self.reply = pieces
        first = pieces[0]
        if len(pieces) == 1 and type(first) is bytearray:
            self.response_bytes = len(first)
        else:
            self.response_bytes = sum(map(size_of, pieces))
        channel.queued_bytes += self.response_bytes
        if channel.slots[0] is self:
            channel.on_ready(channel)

    def complete_without_reply(self) -> None:
        """Complete the request without a response, for example a Produce with acks=0."""
        assert self.state == _PENDING, f"a second response to {self.header}"
        self.state = _READY
        self.request = None
        channel = self.channel
        if channel.quotas.is_enforced:
            self._throttle(None)
        if not channel.closed and not channel.closing and channel.slots[0] is self:
            channel.on_ready(channel)

    def complete_and_close(self, response: Message) -> None:
        """Respond, and close the connection after the response was sent."""
        self.closes = True
        self.channel.ending = True
        self.complete(response)

    def close_connection(self) -> None:
        """Complete the request without a response. Close the connection after sending earlier responses."""
        self.closes = True
        self.channel.ending = True
        self.complete_without_reply()


def _set_throttle_time(response: Message | None, throttle_ms: int) -> None:
    """Set the throttle time of a response, unless it has no such field or a longer time of the controller."""
    if getattr(response, "throttle_time_ms", throttle_ms) < throttle_ms:
        response.throttle_time_ms = throttle_ms  # type: ignore[union-attr]
