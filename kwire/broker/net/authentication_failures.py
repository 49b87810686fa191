"""The last logged authentication failure of each other node, so that the same failure is logged once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kwire.host.host import PeerAddress

MAX_NODES: Final = 1_000
"""The number of nodes whose last failure is kept. A further node replaces the oldest entry."""
LOG_INTERVAL_MS: Final = 60_000
"""The shortest interval between two log lines about the same node when the reason keeps changing."""


class AuthenticationFailures:
    """The last logged failure of each node, until authentication with that node succeeds."""

    def __init__(self) -> None:
        self._logged: dict[PeerAddress, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._logged)

    def should_log(self, peer: PeerAddress, reason: str, now_ms: int) -> bool:
        """Return whether to log this failure, and if so, remember it as logged."""
        logged = self._logged.get(peer)
        if logged is not None and (logged[0] == reason or now_ms - logged[1] < LOG_INTERVAL_MS):
            return False
        if logged is None and len(self._logged) >= MAX_NODES:
            del self._logged[next(iter(self._logged))]
        self._logged[peer] = reason, now_ms
        return True

    def clear(self, peer: PeerAddress) -> None:
        """Forget the failures of a node after authentication has succeeded."""
        self._logged.pop(peer, None)
