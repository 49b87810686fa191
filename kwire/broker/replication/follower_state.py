"""What a leader knows of one follower, which is what that has told with its fetches.

A fetch from an offset says that the follower has all before it. It is caught up when it fetches from where
the leader's log ends; or, where appends come faster than fetches, from where that ended at the fetch before.

A follower at the end of the log does not name the partition again in its fetch session while nothing is
appended, and nothing is done here then. Each fetch of that session says that it still is caught up: the time
of the last one is taken over when the log grows.
"""

from __future__ import annotations

from typing import Final, Protocol

from kwire.wire.batch import NO_OFFSET

NEVER_MS: Final = -(1 << 62)


class FetchSessionPartition(Protocol):
    """A follower's place in its fetch session."""

    @property
    def fetched_ms(self) -> int:
        """When the session was last used."""

    def changed(self, *, wake: bool) -> None:
        """There may be news of the partition; with `wake` a fetch that waits is to look now."""


class FollowerState:
    """How far one follower of a led partition is. Times are monotonic."""

    __slots__ = (
        "_caught_up_ms",
        "_fetched_ms",
        "_is_at_end",
        "_leader_end_offset",
        "broker_epoch",
        "broker_id",
        "end_offset",
        "is_in_sync",
        "log_start_offset",
        "session_partition",
    )

    def __init__(self, broker_id: int) -> None:
        """Of a follower of which nothing is known."""
        self.broker_id = broker_id
        self.is_in_sync = False
        """Whether the leader waits for it: it is in the ISR, or about to be."""
        self.session_partition: FetchSessionPartition | None = None
        self.broker_epoch: int | None = None
        """None before its first fetch."""
        self.end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self._leader_end_offset = NO_OFFSET
        self._fetched_ms = NEVER_MS
        self._caught_up_ms = NEVER_MS
        self._is_at_end = False

    def reset_for_epoch(self, leader_end_offset: int, now_ms: int, *, in_isr: bool) -> None:
        """The leader leads in a new epoch: who is in the ISR has time to fetch, who is not has to anew."""
        self._is_at_end = False
        self._leader_end_offset = leader_end_offset
        self._fetched_ms = self._caught_up_ms = now_ms if in_isr else NEVER_MS

    def record_fetch(
        self,
        end_offset: int,
        *,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
        session_partition: FetchSessionPartition | None,
    ) -> None:
        """It has fetched, when the leader's log ended at `leader_end_offset`."""
        self._update_times()
        if end_offset >= leader_end_offset:
            self._caught_up_ms = now_ms
        elif end_offset >= self._leader_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, self._fetched_ms)
        self._is_at_end = end_offset >= leader_end_offset
        self._leader_end_offset = max(leader_end_offset, self._leader_end_offset)
        self._fetched_ms = now_ms
        self.end_offset = end_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        if session_partition is not self.session_partition:
            old, self.session_partition = self.session_partition, session_partition
            if old is not None:
                old.changed(wake=False)

    def leader_grew(self) -> None:
        """The leader's log has more than before."""
        self._update_times()
        self._is_at_end = False

    def _update_times(self) -> None:
        if self._is_at_end and self.session_partition is not None:
            self._fetched_ms = self._caught_up_ms = max(self._caught_up_ms, self.session_partition.fetched_ms)

    def caught_up_ms(self) -> int:
        """When it was last known to be caught up."""
        self._update_times()
        return self._caught_up_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has all of the log, or had not long ago."""
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms() <= max_lag_ms
