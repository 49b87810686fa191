"""Connections and requests as handlers see them.

A `Channel` is the part of a connection that does no I/O. Each request takes a slot in arrival order. A
request may be completed at any time, but its response is sent only after the responses of all earlier slots.
The I/O shell owns the socket, and calls `take_ready` for the bytes to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from kwire.broker.api.request.error_responses import error_response
from kwire.broker.api.request.repeated_request import FastPath, RepeatedRequest
from kwire.broker.api.request.request_log import client_bytes, request_id
from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ApiError, ErrorCode, NotInVersion
from kwire.wire.primitives import Buffer, Region
from kwire.wire.registry import RequestHeader, encode_response
from kwire.wire.schema import Message


class Delayed:
    """The type of `DELAYED`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DELAYED"


DELAYED: Final = Delayed()
"""A handler returns this for a delayed operation: it completes the request context later."""

MAX_CLIENT_ID_LENGTH: Final = 255
"""A connection does not keep a longer client id, which could have 32 KiB."""

MAX_FRAME_BYTES: Final = 2**31 - 1

_PENDING, _READY = range(2)


class ChannelAuthentication(Protocol):
    """The authentication of a connection on a SASL listener. Implemented in `api.security.sasl_session`."""

    @property
    def expects_raw_tokens(self) -> bool:
        """Whether the next frame is a raw SASL token without a Kafka request header."""

    @property
    def session_expires(self) -> bool:
        """Whether the session has an end, so that `handle_frame` must see each request."""

    def handle_frame(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        """Handle a frame that is not for the API handlers, and return whether it was one. WireError."""

    def fail_invalid_size(self, channel: Channel, reason: str, now_ms: int) -> bool:
        """Fail a running authentication over a frame of invalid size, and return whether one was running.

        If it returns True, the connection will be closed after the delay for failed authentication.
        """


class Channel:
    """One client connection, without its socket."""

    __slots__ = (
        "_client",
        "_client_id",
        "authentication",
        "client_software_name",
        "client_software_version",
        "closed",
        "closing",
        "ending",
        "id",
        "interrupt",
        "listener",
        "local_host",
        "logger",
        "max_frame_bytes",
        "on_ready",
        "peer_host",
        "peer_port",
        "pending_bytes",
        "principal",
        "queued_bytes",
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
    ) -> None:
        """`request_metrics` counts each request, and each response when it is sent."""
        self.id = channel_id
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.local_host = local_host
        self.listener = listener
        self.role = role
        """Whether the listener is a broker's or a controller's."""
        self.principal = principal
        self.authentication: ChannelAuthentication | None = None
        """None if the listener requires no authentication."""
        self.max_frame_bytes = MAX_FRAME_BYTES
        """A longer frame closes the connection."""
        self.on_ready = on_ready
        self.logger = logger
        self.request_metrics = request_metrics
        self._client_id: str | None = None
        self._client = client_bytes(None, peer_host)
        self.received_s = 0.0
        """When the current frames were received, in seconds of the clock of `request_metrics`.

        The I/O shell sets it.
        """
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.slots: deque[RequestContext] = deque()
        self.pending_bytes = 0
        """Bytes of the requests whose responses have not been sent."""
        self.queued_bytes = 0
        """Bytes of completed responses that `take_ready` has not returned yet."""
        self.ending = False
        """True once a pending request will close the connection: no further request may be read."""
        self.closing = False
        """True once the connection must be closed after the responses that `take_ready` returned."""
        self.closed = False
        self.interrupt: Callable[[], None] | None = None
        """Completes the long poll that later requests of this channel wait for, if there is one."""
        self.repeated_request: RepeatedRequest | None = None
        """The last request that is expected to be repeated byte for byte, with its response."""

    @property
    def pending(self) -> int:
        """The number of requests whose responses `take_ready` has not returned."""
        return len(self.slots)

    @property
    def client_id(self) -> str | None:
        """The client id of the last request; None before it, and without `request_metrics`."""
        return self._client_id

    def open_slot(self, header: RequestHeader, arrived_ms: int, size_bytes: int = 0) -> RequestContext:
        """Append a slot for a request of `size_bytes` to the order of responses."""
        request_metrics = self.request_metrics
        number = 0 if request_metrics is None else self.log_request(request_metrics, header, size_bytes)
        context = RequestContext(header, self, arrived_ms, size_bytes, number)
        self.slots.append(context)
        self.pending_bytes += size_bytes
        return context

    def log_request(self, request_metrics: RequestMetrics, header: RequestHeader, size_bytes: int) -> int:
        """Log a request before it is handled, and return its number in the request log."""
        client_id = header[3]
        if client_id == self._client_id:
            client = self._client
        else:
            client = client_bytes(client_id, self.peer_host)
            if client_id is None or len(client_id) <= MAX_CLIENT_ID_LENGTH:
                self._client_id, self._client = client_id, client
        return request_metrics.log.begin(header, client, self.id, size_bytes, self.received_s)

    def take_ready(self) -> list[Buffer | Region]:
        """Pop the completed responses at the head, in request order, and return the pieces to send.

        Requests behind one that closes the connection get no response.
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
                    context.from_follower,
                )
            if reply is not None:
                pieces.extend(reply)
                self.queued_bytes -= context.response_bytes
            if context.closes:
                self.closing = True
                self._drop_slots()
        return pieces

    def _drop_slots(self) -> None:
        self.interrupt = None
        self.slots.clear()
        self.pending_bytes = 0
        self.queued_bytes = 0

    def close(self) -> None:
        """Mark the connection as closed. Later completions are dropped."""
        self.closed = True
        self.repeated_request = None
        self._drop_slots()


def size_of(piece: Buffer | Region) -> int:
    """Return the bytes of one piece of a response."""
    if isinstance(piece, (bytes, bytearray)):
        return len(piece)
    if isinstance(piece, memoryview):
        return piece.nbytes
    return piece.size_bytes


class RequestContext:
    """One request, and the only way to respond to it."""

    __slots__ = (
        "arrived_ms",
        "channel",
        "closes",
        "fast_path",
        "from_follower",
        "header",
        "number",
        "received_s",
        "reply",
        "request",
        "response_bytes",
        "size_bytes",
        "state",
    )

    def __init__(
        self, header: RequestHeader, channel: Channel, arrived_ms: int, size_bytes: int, number: int = 0
    ) -> None:
        self.header = header
        self.channel = channel
        self.arrived_ms = arrived_ms
        self.size_bytes = size_bytes
        self.received_s = channel.received_s
        self.number = number
        """The number of the request in the `RequestLog`."""
        self.from_follower = False
        """Whether the request is a Fetch of a follower."""
        self.state = _PENDING
        self.reply: list[Buffer | Region] | None = None
        self.response_bytes = 0
        self.closes = False
        """Whether the connection is closed after this request, and after its response if it has one."""
        self.request: object = None
        """Kept until the response is encoded. If encoding fails, the error response needs it."""
        self.fast_path: FastPath | None = None
        """Set by a handler that completed the request at once and expects it to be repeated."""

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def request_id(self) -> str:
        """The id of the request in log lines."""
        return request_id(self.channel.id, self.header.correlation_id)

    @property
    def listener(self) -> str:
        """The name of the listener that received the request."""
        return self.channel.listener

    @property
    def principal(self) -> Principal:
        """The principal that sent the request."""
        return self.channel.principal

    @property
    def peer_host(self) -> str:
        """The address of the client."""
        return self.channel.peer_host

    @property
    def client_id(self) -> str:
        """The client id; empty if the request had none."""
        return self.header.client_id or ""

    @property
    def completed(self) -> bool:
        return self.state == _READY

    def complete(self, response: Message) -> None:
        """Encode `response`, and release it once all earlier responses are released. Call it exactly once."""
        channel = self.channel
        if channel.closed or channel.closing:
            self.state = _READY
            self.request = None
            return
        header = self.header
        try:
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, response)
        except NotInVersion as error:
            self.channel.logger.info("rejecting %s from %s: %s", header, self.channel.peer_host, error)
            self._complete_with_error(ErrorCode.UNSUPPORTED_VERSION)
            return
        except Exception:
            # The response does not fit its version. Usually a string is longer than 32767 bytes, which a
            # client can cause with names that an error message quotes. Other waiting requests must not be
            # affected.
            self.channel.logger.exception(
                "could not encode the response to %s from %s",
                header,
                self.channel.peer_host,
                extra={"request": self.request_id},
            )
            self._complete_with_error(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self.complete_encoded(encoded)

    def refuse(self, error: ApiError) -> None:
        """Respond with an error for the whole request."""
        self.complete(self.error_response(error))

    def error_response(self, error: ApiError) -> Message:
        """Return the response with an error for the whole request. WireError if the API has none."""
        return error_response(self.header.api_key, self.header.api_version, self.request, error)

    def _complete_with_error(self, code: ErrorCode) -> None:
        """Respond with this error, or close the connection if that response cannot be encoded either."""
        header = self.header
        self.fast_path = None
        try:
            failed = self.error_response(ApiError(code))
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, failed)
        except Exception as error:
            self.channel.logger.warning(
                "closing the connection of %s: no error response to %s: %s",
                self.channel.peer_host,
                header,
                error,
            )
            self.close_connection()
            return
        self.complete_encoded(encoded)

    def complete_encoded(self, pieces: list[Buffer | Region]) -> None:
        """Release a response that is already encoded, with its size in front."""
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
        """Complete the request without a response (Produce with acks=0)."""
        assert self.state == _PENDING, f"a second response to {self.header}"
        self.state = _READY
        self.request = None
        channel = self.channel
        if not channel.closed and not channel.closing and channel.slots[0] is self:
            channel.on_ready(channel)

    def complete_and_close(self, response: Message) -> None:
        """Respond, and close the connection once the response is sent."""
        self.closes = True
        self.channel.ending = True
        self.complete(response)

    def close_connection(self) -> None:
        """Complete the request without a response, and close the connection after the earlier responses."""
        self.closes = True
        self.channel.ending = True
        self.complete_without_reply()
