"""The detection of peers that use another protocol than the listener.

On a listener without TLS, TLS and HTTP start with bytes that are an invalid frame size. If
`socket.request.max.bytes` is so large that the size is valid, the listener waits for the frame, as in Apache
Kafka.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

TLS_HANDSHAKE: Final = b"\x16\x03"
"""The content type of a TLS record with a handshake message, and the major version."""
HTTP_METHODS: Final = frozenset(
    (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")
)
"""The first four bytes of an HTTP request. `PRI` starts the preface of HTTP/2."""


class UnexpectedProtocol(Enum):
    TLS = "TLS"
    HTTP = "HTTP"
    KAFKA = "Kafka"


def unexpected_protocol(frame_size: int) -> UnexpectedProtocol | None:
    """Return the protocol of a peer that starts with this invalid frame size; None if it is another one."""
    start = frame_size.to_bytes(4, "big", signed=True)
    if start.startswith(TLS_HANDSHAKE):
        return UnexpectedProtocol.TLS
    return UnexpectedProtocol.HTTP if start in HTTP_METHODS else None


def protocol_without_tls(start: bytes) -> UnexpectedProtocol | None:
    """Return the protocol of a peer that starts with these bytes on a listener with TLS; None if unknown."""
    # The first request of a Kafka client is smaller than 64 KiB.
    if start.startswith(b"\0\0"):
        return UnexpectedProtocol.KAFKA
    return UnexpectedProtocol.HTTP if start[:4] in HTTP_METHODS else None
