"""Who fetches the metadata log from its leader, and how far each of them has come. KIP-836, KIP-853."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kwire.wire.primitives import Uuid

FORGOTTEN_AFTER_MS: Final = 300_000
"""Who was not heard for so long is not told of any more."""
MOST: Final = 10_000
"""How many are remembered: an id is only what somebody says."""


class ReplicaKey(NamedTuple):
    """A node, and the directory in which it keeps the log."""

    replica_id: int
    directory_id: Uuid


class FollowerState(NamedTuple):
    """How far a follower has come; the times are wall-clock time, -1 for never."""

    key: ReplicaKey
    end_offset: int
    leader_end_offset: int
    """Where the leader's log ended when it last fetched."""
    last_fetch_ms: int
    last_caught_up_ms: int


class Followers:
    """Those who fetch from this leader."""

    def __init__(self) -> None:
        self._states: dict[ReplicaKey, FollowerState] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def fetches(self, key: ReplicaKey, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """One of them has everything before `offset`."""
        known = self._states.pop(key, None)
        caught_up_ms = -1 if known is None else known.last_caught_up_ms
        if offset >= leader_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif known is not None and 0 < known.leader_end_offset <= offset:
            # It has come to where the log ended when it fetched before.
            caught_up_ms = max(caught_up_ms, known.last_fetch_ms)
        if len(self._states) >= MOST:
            del self._states[next(iter(self._states))]
        # Who has fetched last stands last.
        self._states[key] = FollowerState(key, offset, leader_end_offset, now_ms, caught_up_ms)

    def heard_since(self, now_ms: int) -> Sequence[FollowerState]:
        """Those that are still heard, in the order of their ids; the others are forgotten."""
        for key, state in list(self._states.items()):
            if now_ms - state.last_fetch_ms < FORGOTTEN_AFTER_MS:
                break
            del self._states[key]
        return sorted(self._states.values(), key=lambda state: state.key)
