"""The batches that this node appends as the quorum leader, until their commit or the next leader.

Uncommitted batches of this leader stay in memory, so that this node need not read them back from the log.
Batches of other leaders are read from the log. After a commit, the committed batches are published to
subscribers, and then the controller is notified. The node becomes the active controller once every record
from before its leader epoch is published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch, NoBootstrapMetadata
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.lead import Lead
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.raft_metrics import KafkaRaftMetrics
from kwire.broker.storage.disk import ResourceShortage
from kwire.host.host import Host, InternodeTime, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.schema import Message

FOLLOWED_MS: Final = 300_000
"""For this long after a Fetch of another node, in ms, the log counts as followed."""

OnBatches = Callable[[Iterable[MetadataBatch]], None]


class Leadership(Protocol):
    """The controller, which is notified about the leadership of this node in the quorum."""

    def check_bootstrap(self) -> None:
        """Raise NoBootstrapMetadata if the controller could not become active on an empty log."""

    def became_leader(self, epoch: int) -> None:
        """Become the active controller in a new leader epoch. All earlier records have been published."""

    def resigned(self, reason: ApiError) -> None:
        """Stop being the active controller. Uncommitted records may be lost, or still be committed later."""

    def committed(self, offset: int) -> None:
        """Handle a commit up to `offset`, after its records are published."""

    def idle(self) -> None:
        """Append a NoOpRecord, because nothing was appended for a while and other nodes follow the log."""


class Decisions:
    """The uncommitted batches that one node has appended as the leader."""

    def __init__(
        self,
        host: Host,
        log: MetadataLog,
        leadership: Leadership | None,
        on_committed: OnBatches,
        metrics: KafkaRaftMetrics,
        *,
        idle_ms: int,
    ) -> None:
        """Start as a follower.

        `idle_ms` is metadata.max.idle.interval.ms. `leadership` is None on observers.
        """
        self._host = host
        self._log = log
        self._leadership = leadership
        self._on_committed = on_committed
        self._metrics = metrics
        self._lead: Lead | None = None
        self._is_active = False
        self._appended: deque[MetadataBatch] = deque()
        self._appended_ms: deque[InternodeTime] = deque()
        """The monotonic time of each append of `_appended`, in ms."""
        self._idle_ms = idle_ms
        self._idle_timer: Timer | None = None
        self._idle_since_offset = -1
        self._fetched_ms = InternodeTime(0)

    def check_bootstrap(self, *, is_sole_voter: bool) -> None:
        """Check whether this controller could become active, before the node takes part in the quorum.

        Raises CorruptMetadata if this release cannot use the bootstrap metadata of an empty log, or if the
        sole voter has none. Another voter without bootstrap metadata starts no election.
        """
        if self._leadership is None:
            return
        try:
            self._leadership.check_bootstrap()
        except CorruptMetadata as error:
            self._log.has_bootstrap = False
            if self._log.has_records:  # they may be truncated, because they may not be committed
                return
            if is_sole_voter or not isinstance(error, NoBootstrapMetadata):
                raise
            self._host.logger("kwire.raft").warning(
                "Not starting elections until the metadata is fetched from another controller: %s", error
            )

    @property
    def are_open(self) -> bool:
        """Whether a batch of this leader is not committed yet."""
        return bool(self._appended)

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        """Stage the records of a controller command; return the offset of the last record.

        `delta` is the change of the metadata image. Raises ApiError if atomic records exceed one batch, and
        KAFKA_STORAGE_ERROR, which clients retry, if the process has no free descriptor.
        """
        assert self._lead is not None, "only the leader appends decisions"
        try:
            with self._log.disk.reserved():
                batch = self._lead.append(records, delta, now_ms=self._host.now_ms(), atomic=atomic)
        except ResourceShortage as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._was_appended(batch)
        return batch.last_offset

    def append_controls(self, epoch: int, controls: Sequence[tuple[int, Message]]) -> int:
        """Stage control records, each a pair of type and record, and return the first offset.

        The first call with a new epoch begins this node's leadership in that epoch.
        """
        if self._lead is None or self._lead.epoch != epoch:
            self._lead = Lead(self._log, epoch)
        batch = self._lead.append_controls(controls, now_ms=self._host.now_ms())
        self._was_appended(batch)
        return batch.base_offset

    def _was_appended(self, batch: MetadataBatch) -> None:
        now_ms = self._host.internode_clock.monotonic_ms()
        self._appended.append(batch)
        self._appended_ms.append(now_ms)
        self._metrics.appended_records.record(batch.last_offset - batch.base_offset + 1, int(now_ms))

    def _was_committed(self, batch: MetadataBatch) -> None:
        now_ms = self._host.internode_clock.monotonic_ms()
        latency_ms = now_ms - self._appended_ms.popleft()
        self._metrics.commit_latency_ms.record(
            latency_ms / (batch.last_offset - batch.base_offset + 1), int(now_ms)
        )

    def end(self, reason: ApiError) -> None:
        """End the leadership. If uncommitted batches are committed later, they are read from the log."""
        self._appended.clear()
        self._appended_ms.clear()
        self._lead = None
        if self._is_active and self._leadership is not None:
            self._is_active = False
            self._leadership.resigned(reason)

    def advance_to(self, high_watermark: int) -> None:
        """Raise the high watermark, and publish committed batches. Raises CorruptMetadata or StorageError."""
        log, appended = self._log, self._appended
        log.advance_to(high_watermark)
        here = min(log.high_watermark, appended[0].base_offset if appended else log.end_offset)
        if log.is_behind(here):
            self._on_committed(log.read_up_to(here))
        while appended and appended[0].last_offset < log.high_watermark:
            batch = appended.popleft()
            log.was_decided(batch)
            self._was_committed(batch)
            if batch.delta is not None:
                self._on_committed([batch])
                if self._is_active and self._leadership is not None:
                    self._leadership.committed(batch.last_offset)
        lead = self._lead
        if lead is not None and not self._is_active and log.high_watermark > lead.begins_at:
            assert self._leadership is not None
            self._is_active = True
            self._leadership.became_leader(lead.epoch)

    # --- NoOpRecords

    def are_followed(self) -> None:
        """Record that another node has fetched, so that NoOpRecords are appended to an idle log."""
        self._fetched_ms = self._host.internode_clock.monotonic_ms()
        if self._idle_timer is None and self._idle_ms > 0 and self._lead is not None:
            self._wait_until_idle()

    def stop(self) -> None:
        """Append no more NoOpRecords."""
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
