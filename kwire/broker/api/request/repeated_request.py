"""Requests that a connection repeats byte for byte, such as heartbeats, and their cached responses.

With ten thousand group members, most requests are heartbeats, which differ only in their correlation id. If a
handler can cheaply check that a repeated request has the same effect, the handler sets a `FastPath`. For a
repeated request, the broker then neither decodes the request nor encodes the response again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from kwire.wire.primitives import Buffer
from kwire.wire.registry import RequestHeader

if TYPE_CHECKING:
    from kwire.broker.api.request.gate import Gate

_CORRELATION_ID = 4
"""The byte position of the correlation id, after API key and version or after a response's size prefix."""
_AFTER_CORRELATION_ID = 8
_INT32 = Struct(">i")

MAX_REPEATED_BYTES = 1024
"""The size limit for cached requests. Each connection may cache one; tagged fields can have any length."""

FastPath = Callable[[], bool]
"""A function that performs the request again. It returns False if the request must be handled normally."""


class RepeatedRequest:
    """The last request of a connection, and the response to send if the connection repeats the request."""

    __slots__ = (
        *("_authorizer", "_before", "_behind", "_checks", "_fast_path", "_gate", "_header", "_response"),
        "size_bytes",
    )

    def __init__(
        self,
        header: RequestHeader,
        frame: Buffer,
        response: Buffer,
        fast_path: FastPath,
        gate: Gate,
        checks: int = 0,
    ) -> None:
        """`frame` is the request without its size prefix. `response` includes its size prefix.

        `checks` is the number of operations that were authorized for the request.
        """
        self._checks = checks
        self._gate = gate
        self._authorizer = gate.authorizer
        self._header = header
        self.size_bytes = len(frame)
        """The size of the request in bytes, without its size prefix."""
        self._before = bytes(frame[:_CORRELATION_ID])
        self._behind = bytes(frame[_AFTER_CORRELATION_ID:])
        self._response = bytes(response[:_CORRELATION_ID]), bytes(response[_AFTER_CORRELATION_ID:])
        self._fast_path = fast_path

    def header_of(self, frame: memoryview) -> RequestHeader:
        """Return the header of a frame that repeats the request with another correlation id."""
        correlation_id: int = _INT32.unpack_from(frame, _CORRELATION_ID)[0]
        return self._header._replace(correlation_id=correlation_id)

    def respond(self, frame: memoryview) -> bytes | None:
        """Perform the request again and return the response, including its size prefix.

        Return None if the frame is another request, and empty bytes if it must be handled normally.
        """
        request = frame.tobytes()
        if (
            len(request) != self.size_bytes
            or not request.endswith(self._behind)
            or not request.startswith(self._before)
        ):
            return None
        audit_log = self._gate.audit_log
        if self._gate.authorizer is not self._authorizer or (
            audit_log is not None and audit_log.logs_allowed
        ):
            return b""
        if not self._fast_path():
            return b""
        if audit_log is not None:
            audit_log.count_allowed(self._checks)
        before, behind = self._response
        return before + request[_CORRELATION_ID:_AFTER_CORRELATION_ID] + behind
