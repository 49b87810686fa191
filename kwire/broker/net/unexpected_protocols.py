"""Peers that use TLS or HTTP on a listener: their detection, and the suppression of repeated log lines.

Such a peer starts with bytes that are an invalid frame size. If `socket.request.max.bytes` is so large that
the size is valid, the listener waits for the frame, as in Apache Kafka.
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
MAX_PEERS: Final = 1_000
"""The number of peers whose last log line is remembered. A further peer replaces the oldest one."""
LOG_INTERVAL_MS: Final = 60_000
"""The shortest interval between two log lines about the same peer, listener and protocol."""


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


class UnexpectedProtocolLog:
    """The times of the last log lines about peers with an unexpected protocol."""

    def __init__(self) -> None:
        # By IP address, listener and protocol, in the order of the times.
        self._logged_ms: dict[tuple[str, str, UnexpectedProtocol], int] = {}

    def __len__(self) -> int:
        return len(self._logged_ms)

    def should_log(self, ip: str, listener: str, protocol: UnexpectedProtocol, now_ms: int) -> bool:
        """Return whether to log a connection of this peer. If so, record the connection as logged."""
        key = ip, listener, protocol
        last_ms = self._logged_ms.get(key)
        if last_ms is not None and now_ms - last_ms < LOG_INTERVAL_MS:
            return False
        if last_ms is not None:
            del self._logged_ms[key]
        elif len(self._logged_ms) >= MAX_PEERS:
            del self._logged_ms[next(iter(self._logged_ms))]
        self._logged_ms[key] = now_ms
        return True
