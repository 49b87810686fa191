"""A request that a connection sends over and over, and the respond that it gets: heartbeats.

Ten thousand members send little else, each the same bytes every time but for the correlation id. Where a
handler knows by a look at what it has that the same request would do the same fast_path, the broker need not
decode it, go through its layers and encode the respond anew.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from kwire.wire.primitives import Buffer
from kwire.wire.registry import RequestHeader

_CORRELATION_ID = 4
"""Where it is, in a request (behind API key and version) as in an respond (behind the size)."""
_BEHIND_IT = 8
_INT32 = Struct(">i")

MAX_REPEATED_BYTES = 1024
"""Longer ones are not remembered: each connection may have one, which tags can make as long as it likes."""

FastPath = Callable[[], bool]
"""Does what the request does. False: nothing was done, handle the request."""


class RepeatedRequest:
    """The last request of its kind on a connection."""

    __slots__ = ("_answer", "_before", "_behind", "_fast_path", "_header", "size_bytes")

    def __init__(self, header: RequestHeader, frame: Buffer, respond: Buffer, fast_path: FastPath) -> None:
        """`frame` is the request without its size, `respond` the response with it."""
        self._header = header
        self.size_bytes = len(frame)
        """Of the request, without its size."""
        self._before = bytes(frame[:_CORRELATION_ID])
        self._behind = bytes(frame[_BEHIND_IT:])
        self._answer = bytes(respond[:_CORRELATION_ID]), bytes(respond[_BEHIND_IT:])
        self._fast_path = fast_path

    def header_of(self, frame: memoryview) -> RequestHeader:
        """The header of this frame, which is another one's but for the correlation id."""
        correlation_id: int = _INT32.unpack_from(frame, _CORRELATION_ID)[0]
        return self._header._replace(correlation_id=correlation_id)

    def respond(self, frame: memoryview) -> bytes | None:
        """The respond to a frame. If nothing is done: None for another one, empty where something changed."""
        request = frame.tobytes()
        if (
            len(request) != self.size_bytes
            or not request.endswith(self._behind)
            or not request.startswith(self._before)
        ):
            return None
        if not self._fast_path():
            return b""
        before, behind = self._answer
        return before + request[_CORRELATION_ID:_BEHIND_IT] + behind
