"""The state of one follower, as the leader knows it from the follower's fetches.

A Fetch from an offset acknowledges every record before that offset. A follower is caught up if it fetches
from the leader's log end offset. If appends arrive faster than fetches, it is sufficient that the follower
fetches from the log end offset that the leader had at the follower's previous Fetch.

While a follower is at the log end, its incremental Fetch requests do not list the partition, and the leader
does no work for the partition. Each Fetch of the session still shows that the follower is caught up. So when
the log grows, the leader takes the time of the session's last Fetch as the follower's last caught-up time.
"""

from __future__ import annotations

from typing import Final, Protocol

from kwire.host.host import InternodeTime
from kwire.wire.batch import NO_OFFSET

NEVER_MS: Final = InternodeTime(-(1 << 62))


class FetchSessionPartition(Protocol):
    """A partition in a follower's fetch session."""

    @property
    def fetched_ms(self) -> InternodeTime:
        """The monotonic time of the session's last Fetch, in ms."""

    def changed(self, *, wake: bool) -> None:
        """Mark the partition as changed. With `wake`, a waiting Fetch of the session is checked at once."""


class FollowerState:
    """The progress of one follower of a partition that this broker leads. Times are monotonic, in ms."""

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
        """Create the state of a follower that has not fetched yet."""
        self.broker_id = broker_id
        self.is_in_sync = False
        """Whether the leader waits for this follower: it is in the ISR, or a pending change adds it."""
        self.session_partition: FetchSessionPartition | None = None
        self.broker_epoch: int | None = None
        """The broker epoch in the follower's last Fetch, or None before the first Fetch."""
        self.end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self._leader_end_offset = NO_OFFSET
        self._fetched_ms = NEVER_MS
        self._caught_up_ms = NEVER_MS
        self._is_at_end = False

    def reset_for_epoch(self, leader_end_offset: int, now_ms: InternodeTime, *, in_isr: bool) -> None:
        """Start a new leader epoch. A follower in the ISR counts as caught up now, any other as never."""
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
        now_ms: InternodeTime,
        session_partition: FetchSessionPartition | None,
    ) -> None:
        """Record a Fetch from `end_offset`, received when the leader's log ended at `leader_end_offset`."""
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
        """Record that the leader's log has grown."""
        self._update_times()
        self._is_at_end = False

    def _update_times(self) -> None:
        if self._is_at_end and self.session_partition is not None:
            self._fetched_ms = self._caught_up_ms = max(self._caught_up_ms, self.session_partition.fetched_ms)

    def caught_up_ms(self) -> InternodeTime:
        """Return the last time at which the follower was known to be caught up, in ms."""
        self._update_times()
        return self._caught_up_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: InternodeTime, max_lag_ms: int) -> bool:
        """Whether the follower is at the log end, or was caught up within the last `max_lag_ms`."""
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms() <= max_lag_ms
