"""A request that a connection repeats byte for byte, and its cached response: heartbeats.

With ten thousand group members most requests are heartbeats, which differ only in their correlation id. A
handler sets a `FastPath` if it can cheaply check that the same request would have the same effect. The broker
then neither decodes the request nor encodes the response again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from kwire.wire.primitives import Buffer
from kwire.wire.registry import RequestHeader

_CORRELATION_ID = 4
"""Its position: in a request after API key and version, in a response after the size."""
_BEHIND_IT = 8
_INT32 = Struct(">i")

MAX_REPEATED_BYTES = 1024
"""Longer requests are not cached. Each connection may cache one, and tagged fields can be of any length."""

FastPath = Callable[[], bool]
"""Performs the request again. Returns False if it did nothing, and the request must be handled normally."""


class RepeatedRequest:
    """The last request of a connection that can be repeated."""

    __slots__ = ("_before", "_behind", "_fast_path", "_header", "_response", "size_bytes")

    def __init__(self, header: RequestHeader, frame: Buffer, response: Buffer, fast_path: FastPath) -> None:
        """`frame` is the request without its size, `respond` the response with its size."""
        self._header = header
        self.size_bytes = len(frame)
        """The size of the request, without the size field."""
        self._before = bytes(frame[:_CORRELATION_ID])
        self._behind = bytes(frame[_BEHIND_IT:])
        self._response = bytes(response[:_CORRELATION_ID]), bytes(response[_BEHIND_IT:])
        self._fast_path = fast_path

    def header_of(self, frame: memoryview) -> RequestHeader:
        """Return the header of this frame, which differs only in the correlation id."""
        correlation_id: int = _INT32.unpack_from(frame, _CORRELATION_ID)[0]
        return self._header._replace(correlation_id=correlation_id)

    def respond(self, frame: memoryview) -> bytes | None:
        """Perform the request again and return its response.

        Returns None for a different frame, and empty bytes if the request must be handled normally.
        """
        request = frame.tobytes()
        if (
            len(request) != self.size_bytes
            or not request.endswith(self._behind)
            or not request.startswith(self._before)
        ):
            return None
        if not self._fast_path():
            return b""
        before, behind = self._response
        return before + request[_CORRELATION_ID:_BEHIND_IT] + behind
