"""Suppression of repeated log lines when this node fails to authenticate with another node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kwire.host.host import InternodeTime, PeerAddress

MAX_NODES: Final = 1_000
"""The number of nodes whose last failure is kept. A further node replaces the oldest entry."""
LOG_INTERVAL_MS: Final = 60_000
"""The shortest interval between two log lines about the same node when the reason keeps changing."""


class AuthenticationFailures:
    """The last logged failure per node, until this node has authenticated with that node."""

    def __init__(self) -> None:
        self._logged: dict[PeerAddress, tuple[str, InternodeTime]] = {}

    def __len__(self) -> int:
        return len(self._logged)

    def should_log(self, peer: PeerAddress, reason: str, now_ms: InternodeTime) -> bool:
        """Return whether to log that authentication with `peer` failed. If so, record the failure as logged.

        The result is False if the last logged failure has the same reason, or is less than `LOG_INTERVAL_MS`
        old.
        """
        logged = self._logged.get(peer)
        if logged is not None and (logged[0] == reason or now_ms - logged[1] < LOG_INTERVAL_MS):
            return False
        if logged is None and len(self._logged) >= MAX_NODES:
            del self._logged[next(iter(self._logged))]
        self._logged[peer] = reason, now_ms
        return True

    def clear(self, peer: PeerAddress) -> None:
        """Forget the logged failure, because authentication with `peer` has succeeded."""
        self._logged.pop(peer, None)
