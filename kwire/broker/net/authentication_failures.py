"""Which nodes do not let this one in: told when it begins, not at each attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kwire.host.host import PeerAddress

MAX_NODES: Final = 1_000
"""So many nodes are remembered; of one more, the one that has refused first is forgotten."""
LOG_INTERVAL_MS: Final = 60_000
"""How often another reason of the same node is told at most: its text may be another each time."""


class AuthenticationFailures:
    """The last refusal that was told of each node, until that one lets this node in."""

    def __init__(self) -> None:
        self._logged: dict[PeerAddress, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._logged)

    def should_log(self, peer: PeerAddress, reason: str, now_ms: int) -> bool:
        """Whether a refusal is to be told; then it was."""
        logged = self._logged.get(peer)
        if logged is not None and (logged[0] == reason or now_ms - logged[1] < LOG_INTERVAL_MS):
            return False
        if logged is None and len(self._logged) >= MAX_NODES:
            del self._logged[next(iter(self._logged))]
        self._logged[peer] = reason, now_ms
        return True

    def clear(self, peer: PeerAddress) -> None:
        """What it has refused before counts no more."""
        self._logged.pop(peer, None)
