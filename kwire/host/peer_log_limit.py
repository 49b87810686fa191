"""Suppression of repeated log lines about peers that connect again and again and fail each time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MAX_PEERS: Final = 1_000
"""The number of log lines whose times are kept. A further one replaces the oldest."""
LOG_INTERVAL_MS: Final = 60_000
"""The shortest interval between two log lines about the same peer, listener and kind of failure."""


class PeerLogLimit:
    """The times of the last log lines about peers."""

    def __init__(self) -> None:
        # By IP address, listener and kind of failure, in the order of the times.
        self._logged_ms: dict[tuple[str, str, Hashable], int] = {}

    def __len__(self) -> int:
        return len(self._logged_ms)

    def should_log(self, ip: str, listener: str, kind: Hashable, now_ms: int) -> bool:
        """Return whether to log a connection of this peer. If so, record the connection as logged."""
        key = ip, listener, kind
        last_ms = self._logged_ms.get(key)
        if last_ms is not None and now_ms - last_ms < LOG_INTERVAL_MS:
            return False
        if last_ms is not None:
            del self._logged_ms[key]
        elif len(self._logged_ms) >= MAX_PEERS:
            del self._logged_ms[next(iter(self._logged_ms))]
        self._logged_ms[key] = now_ms
        return True
