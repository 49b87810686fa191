"""What a node decides while it leads the quorum, until that is committed or somebody else leads.

It is kept until it is committed, so that nothing is read again; what others have decided is read from the
log. Whoever replays what is committed hears of it first, and then the leader, up to where it goes. The leader
is active once everything before its epoch was replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from kwire.broker.metadata.batches import MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.lead import Lead
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError
from kwire.wire.schema import Message

FOLLOWED_MS: Final = 300_000
"""How long the log counts as followed after the last Fetch."""

OnBatches = Callable[[Iterable[MetadataBatch]], None]


class Leadership(Protocol):
    """What a node does while it leads the quorum."""

    def became_leader(self, epoch: int) -> None:
        """This node leads in a new epoch, and has replayed all that came before it."""

    def resigned(self, reason: ApiError) -> None:
        """It does not lead any more: what it appended and did not hear to be committed may never be."""

    def committed(self, offset: int) -> None:
        """Everything up to `offset` is committed, and was replayed."""

    def idle(self) -> None:
        """Nothing was appended for a while, and somebody follows the log: it should move."""


class Decisions:
    """Those of one node, one lead after the other."""

    def __init__(
        self,
        host: Host,
        log: MetadataLog,
        leadership: Leadership | None,
        on_committed: OnBatches,
        *,
        idle_ms: int,
    ) -> None:
        """`leadership` is of who may lead. For `idle_ms` see metadata.max.idle.interval.ms."""
        self._host = host
        self._log = log
        self._leadership = leadership
        self._on_committed = on_committed
        self._lead: Lead | None = None
        self._is_active = False
        self._appended: deque[MetadataBatch] = deque()
        self._idle_ms = idle_ms
        self._idle_timer: Timer | None = None
        self._idle_since_offset = -1
        self._fetched_ms = 0

    @property
    def are_open(self) -> bool:
        """Whether something was decided that is not committed."""
        return bool(self._appended)

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        """Stage what the leader decided, which makes `delta`; the offset of the last record. ApiError."""
        assert self._lead is not None, "nobody decides who does not lead"
        batch = self._lead.append(records, delta, now_ms=self._host.now_ms(), atomic=atomic)
        self._appended.append(batch)
        return batch.last_offset

    def append_controls(self, epoch: int, controls: Sequence[tuple[int, Message]]) -> int:
        """Stage control records of an epoch, which begins with the first; where these begin."""
        if self._lead is None or self._lead.epoch != epoch:
            self._lead = Lead(self._log, epoch)
        batch = self._lead.append_controls(controls, now_ms=self._host.now_ms())
        self._appended.append(batch)
        return batch.base_offset

    def end(self, reason: ApiError) -> None:
        """The lead is over. What of this is committed all the same will be read from the log."""
        self._appended.clear()
        self._lead = None
        if self._is_active and self._leadership is not None:
            self._is_active = False
            self._leadership.resigned(reason)

    def advance_to(self, high_watermark: int) -> None:
        """All is committed up to there. CorruptMetadata, StorageError."""
        log, appended = self._log, self._appended
        log.advance_to(high_watermark)
        here = min(log.high_watermark, appended[0].base_offset if appended else log.end_offset)
        if log.is_behind(here):
            self._on_committed(log.read_up_to(here))
        while appended and appended[0].last_offset < log.high_watermark:
            batch = appended.popleft()
            log.was_decided(batch)
            if batch.delta is not None:
                self._on_committed([batch])
                if self._is_active and self._leadership is not None:
                    self._leadership.committed(batch.last_offset)
        lead = self._lead
        if lead is not None and not self._is_active and log.high_watermark > lead.begins_at:
            assert self._leadership is not None
            self._is_active = True
            self._leadership.became_leader(lead.epoch)

    # --- a quiet log

    def are_followed(self) -> None:
        """Another node has fetched the log from this one, which leads."""
        self._fetched_ms = self._host.internode_clock.monotonic_ms()
        if self._idle_timer is None and self._idle_ms > 0 and self._lead is not None:
            self._wait_until_idle()

    def stop(self) -> None:
        """Write nothing more of ourselves."""
        self._idle_ms = 0
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _wait_until_idle(self) -> None:
        self._idle_since_offset = self._log.end_offset
        self._idle_timer = self._host.internode_clock.schedule(self._idle_ms, self._look_if_idle)

    def _look_if_idle(self) -> None:
        self._idle_timer = None
        is_followed = self._host.internode_clock.monotonic_ms() - self._fetched_ms < FOLLOWED_MS
        if self._lead is None or not is_followed:
            return
        if self._log.end_offset == self._idle_since_offset and self._is_active:
            assert self._leadership is not None
            self._leadership.idle()
        self._wait_until_idle()
