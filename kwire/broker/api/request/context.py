"""What a handler is given: the connection's ordered replies, and the request at hand.

A `Channel` is the pure half of a connection. Each request takes a slot in arrival order; its reply may be
completed at any time, and leaves only when every earlier slot of the channel is complete. The shell owns
the socket, and client `take_ready` for what may be sent.
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
    """The type of `DELAYED`: the handler completes its context later."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DELAYED"


DELAYED: Final = Delayed()

MAX_CLIENT_ID_LENGTH: Final = 255
"""Longer ones are not remembered by connections, each of which may have one of 32 KiB."""

MAX_FRAME_BYTES: Final = 2**31 - 1

_PENDING, _READY = range(2)


class ChannelAuthentication(Protocol):
    """What stands before the handlers where who connects has to say who he is: `api.security.session`."""

    @property
    def expects_raw_tokens(self) -> bool:
        """Whether what comes next is no request."""

    @property
    def session_expires(self) -> bool:
        """Whether each request is to come by here, since one of them may be too late."""

    def handle_frame(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        """Whether a frame is not for the handlers; what has to come of it was done. WireError."""

    def fail_invalid_size(self, channel: Channel, reason: str, now_ms: int) -> bool:
        """Whether a frame of a size that cannot be was seen to, and the connection ends by itself."""


class Channel:
    """One client connection as the broker's machines see it."""

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
        """`request_metrics` is told of each request, and of each reply that leaves."""
        self.id = channel_id
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.local_host = local_host
        self.listener = listener
        self.role = role
        """Whose listener it is: a broker's, or a controller's."""
        self.principal = principal
        self.authentication: ChannelAuthentication | None = None
        """None where nobody is asked who he is."""
        self.max_frame_bytes = MAX_FRAME_BYTES
        """A longer one ends the connection."""
        self.on_ready = on_ready
        self.logger = logger
        self.request_metrics = request_metrics
        self._client_id: str | None = None
        self._client = client_bytes(None, peer_host)
        self.received_s = 0.0
        """When what is at hand was received, by the clock of `request_metrics`: the shell says so."""
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.slots: deque[RequestContext] = deque()
        self.pending_bytes = 0
        """Bytes of the requests that wait for their replies."""
        self.queued_bytes = 0
        """Bytes of completed replies that `take_ready` has not handed out yet."""
        self.ending = False
        """Set when no further request is to be read, since one that is under way ends the connection."""
        self.closing = False
        """Set when the connection must be closed once the replies that were handed out are sent."""
        self.closed = False
        self.interrupt: Callable[[], None] | None = None
        """Ends the long poll that later requests of this channel are waiting behind, if there is one."""
        self.repeated_request: RepeatedRequest | None = None
        """The last request that may come in the same words, and its answer."""

    @property
    def pending(self) -> int:
        """Requests received whose replies have not been handed to the shell."""
        return len(self.slots)

    @property
    def client_id(self) -> str | None:
        """What the last request has called who client; None before, and where nobody is told of requests."""
        return self._client_id

    def open_slot(self, header: RequestHeader, arrived_ms: int, size_bytes: int = 0) -> RequestContext:
        """Take the next place in the order of replies, for a request of `size_bytes`."""
        request_metrics = self.request_metrics
        number = 0 if request_metrics is None else self.log_request(request_metrics, header, size_bytes)
        context = RequestContext(header, self, arrived_ms, size_bytes, number)
        self.slots.append(context)
        self.pending_bytes += size_bytes
        return context

    def log_request(self, request_metrics: RequestMetrics, header: RequestHeader, size_bytes: int) -> int:
        """Note a request before it is handled. Its number."""
        client_id = header[3]
        if client_id == self._client_id:
            client = self._client
        else:
            client = client_bytes(client_id, self.peer_host)
            if client_id is None or len(client_id) <= MAX_CLIENT_ID_LENGTH:
                self._client_id, self._client = client_id, client
        return request_metrics.log.begin(header, client, self.id, size_bytes, self.received_s)

    def take_ready(self) -> list[Buffer | Region]:
        """Pop the completed replies at the head, in request order, as pieces to send.

        Whatever comes behind a request that ends the connection is not answered.
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
                    context.reply_bytes,
                    context.received_s,
                    context.from_follower,
                )
            if reply is not None:
                pieces.extend(reply)
                self.queued_bytes -= context.reply_bytes
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
        """The connection is gone: completions that come later are dropped."""
        self.closed = True
        self.repeated_request = None
        self._drop_slots()


def size_of(piece: Buffer | Region) -> int:
    """The bytes of a piece of a reply."""
    if isinstance(piece, (bytes, bytearray)):
        return len(piece)
    if isinstance(piece, memoryview):
        return piece.nbytes
    return piece.size_bytes


class RequestContext:
    """One request under way, and the only way to answer it."""

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
        "reply_bytes",
        "request",
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
        """By which it was logged: see `RequestLog`."""
        self.from_follower = False
        """Whether it is a follower that fetches."""
        self.state = _PENDING
        self.reply: list[Buffer | Region] | None = None
        self.reply_bytes = 0
        self.closes = False
        """Whether the connection ends with this request, and the answer to it where there is one."""
        self.request: object = None
        """Kept until it is request_metrics: a reply that cannot be written is an error to all that
        was asked."""
        self.fast_path: FastPath | None = None
        """Set by the handler of a request that may come in the same words, and was request_metrics
        at once."""

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def request_id(self) -> str:
        """By what the log names it."""
        return request_id(self.channel.id, self.header.correlation_id)

    @property
    def listener(self) -> str:
        """The name of the listener that it came in by."""
        return self.channel.listener

    @property
    def principal(self) -> Principal:
        """Who client."""
        return self.channel.principal

    @property
    def peer_host(self) -> str:
        """The address that the client has asked from."""
        return self.channel.peer_host

    @property
    def client_id(self) -> str:
        """The client's id, empty where the request had none."""
        return self.header.client_id or ""

    @property
    def completed(self) -> bool:
        return self.state == _READY

    def complete(self, response: Message) -> None:
        """Encode `response` and release it in its turn. To be called exactly once."""
        channel = self.channel
        if channel.closed or channel.closing:
            self.state = _READY
            self.request = None
            return
        header = self.header
        try:
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, response)
        except NotInVersion as error:
            self.channel.logger.info("%s to %s is refused: %s", header, self.channel.peer_host, error)
            self._complete_with_error(ErrorCode.UNSUPPORTED_VERSION)
            return
        except Exception:
            # A reply that its version has no room for: mostly a string beyond 32767 bytes, as clients can
            # have texts of errors made that long. Whoever waits for others must not wait for this one.
            self.channel.logger.exception(
                "a reply cannot be written: %s to %s",
                header,
                self.channel.peer_host,
                extra={"request": self.request_id},
            )
            self._complete_with_error(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self.complete_encoded(encoded)

    def refuse(self, error: ApiError) -> None:
        """Answer with an error of the whole request."""
        self.complete(self.error_response(error))

    def error_response(self, error: ApiError) -> Message:
        """The response that tells of an error of the whole request. WireError where there can be none."""
        return error_response(self.header.api_key, self.header.api_version, self.request, error)

    def _complete_with_error(self, code: ErrorCode) -> None:
        """Answer with this error, or close the connection where that cannot be told either."""
        header = self.header
        self.fast_path = None
        try:
            failed = self.error_response(ApiError(code))
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, failed)
        except Exception as error:
            self.channel.logger.warning("%s to %s is not answered: %s", header, self.channel.peer_host, error)
            self.close_connection()
            return
        self.complete_encoded(encoded)

    def complete_encoded(self, pieces: list[Buffer | Region]) -> None:
        """Release a reply that is encoded already: the whole frame, its size in front."""
        assert self.state == _PENDING, f"a second reply to {self.header}"
        self.state = _READY
        self.request = None
        channel = self.channel
        if channel.closed or channel.closing:
            return
        self.reply = pieces
        first = pieces[0]
        if len(pieces) == 1 and type(first) is bytearray:
            self.reply_bytes = len(first)
        else:
            self.reply_bytes = sum(map(size_of, pieces))
        channel.queued_bytes += self.reply_bytes
        if channel.slots[0] is self:
            channel.on_ready(channel)

    def complete_without_reply(self) -> None:
        """End the request with nothing on the wire (Produce with acks=0)."""
        assert self.state == _PENDING, f"a second reply to {self.header}"
        self.state = _READY
        self.request = None
        channel = self.channel
        if not channel.closed and not channel.closing and channel.slots[0] is self:
            channel.on_ready(channel)

    def complete_and_close(self, response: Message) -> None:
        """Answer, and end the connection with that."""
        self.closes = True
        self.channel.ending = True
        self.complete(response)

    def close_connection(self) -> None:
        """End the request, and the connection once what came before is request_metrics."""
        self.closes = True
        self.channel.ending = True
        self.complete_without_reply()
