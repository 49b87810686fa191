"""A replica that fetches from the leader of its partition.

A follower appends the leader's records, and truncates its log where the log diverges from the leader's log.
If the leader's log starts after the end of the follower's log, the follower deletes its records and restarts
its log at the leader's log start offset.

KIP-101, KIP-279: two logs are identical up to the last leader epoch that both logs have. A Fetch carries the
epoch of the follower's last record. The leader compares that epoch with the epochs of its own log. If the
logs diverge, the leader returns the end of the last epoch that both logs may have (KIP-595).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from kwire.broker.replication.fetch_session_handler import FetchPosition
from kwire.broker.replication.internal_failure import InternalFailure
from kwire.broker.replication.partition import Partition
from kwire.broker.storage.disk import ResourceShortage, StorageError
from kwire.host.host import Host
from kwire.wire.batch import HEADER_BYTES, NO_LEADER_EPOCH, read_header
from kwire.wire.errors import ApiError
from kwire.wire.messages.fetch import PartitionData
from kwire.wire.primitives import TopicIdPartition


class FetchState(Enum):
    """The state of a follower."""

    FETCHING = auto()
    """The follower waits for the leader's records."""
    SYNCING = auto()
    """The follower waits for a sync of its log, after a truncation or because of flush.messages."""
    LISTING_OFFSETS = auto()
    """The follower waits for the leader's log start offset and log end offset."""
    BACKING_OFF = auto()
    """The leader returned an error for this partition; the follower retries after a pause."""
    FAILED = auto()
    """Fetching failed; the follower waits until the metadata has another leader or a later leader epoch."""
    ENDED = auto()
    """The follower no longer fetches from this leader in this epoch."""


class FetchEvent(Enum):
    """An event that changes the state of a follower."""

    MUST_SYNC = auto()
    SYNCED = auto()
    OUT_OF_RANGE = auto()
    OFFSETS_LISTED = auto()
    LEADER_ERROR = auto()
    BACKOFF_OVER = auto()
    FAILED = auto()
    ENDED = auto()


TRANSITIONS: Final = MappingProxyType(
    {
        FetchState.FETCHING: {
            FetchEvent.MUST_SYNC: FetchState.SYNCING,
            FetchEvent.OUT_OF_RANGE: FetchState.LISTING_OFFSETS,
            FetchEvent.LEADER_ERROR: FetchState.BACKING_OFF,
            FetchEvent.FAILED: FetchState.FAILED,
            FetchEvent.ENDED: FetchState.ENDED,
        },
        FetchState.SYNCING: {
            FetchEvent.SYNCED: FetchState.FETCHING,
            FetchEvent.FAILED: FetchState.FAILED,
            FetchEvent.ENDED: FetchState.ENDED,
        },
        FetchState.LISTING_OFFSETS: {
            FetchEvent.OFFSETS_LISTED: FetchState.FETCHING,
            FetchEvent.LEADER_ERROR: FetchState.BACKING_OFF,
            FetchEvent.FAILED: FetchState.FAILED,
            FetchEvent.ENDED: FetchState.ENDED,
        },
        FetchState.BACKING_OFF: {
            FetchEvent.BACKOFF_OVER: FetchState.FETCHING,
            FetchEvent.FAILED: FetchState.FAILED,
            FetchEvent.ENDED: FetchState.ENDED,
        },
        FetchState.FAILED: {FetchEvent.ENDED: FetchState.ENDED},
        FetchState.ENDED: {},
    }
)
"""Every legal transition. Any other transition is a bug of kwire."""


class Follower:
    """One partition's fetch state and log, while this broker follows a leader in one leader epoch."""

    __slots__ = (
        "_held_data",
        "_high_watermark",
        "_host",
        "_log_start_offset",
        "_on_truncated",
        "has_staged",
        "is_caught_up",
        "key",
        "leader_epoch",
        "partition",
        "state",
        "transient_errors",
    )

    def __init__(
        self, partition: Partition, leader_epoch: int, host: Host, on_truncated: Callable[[Partition], None]
    ) -> None:
        """`on_truncated` is called after the log was truncated or restarted at another offset."""
        self.partition = partition
        self.key: TopicIdPartition = (partition.topic_id, partition.index)
        self.leader_epoch = leader_epoch
        self.state = FetchState.FETCHING
        self.has_staged = True
        """Whether `commit` has work to do: staged records, leader offsets or, after the start, the sync
        check."""
        self.is_caught_up = False
        """Whether the log reached the leader's high watermark after the last response."""
        self.transient_errors = 0
        """The number of consecutive errors that show different metadata of the leader and this broker."""
        self._held_data: PartitionData | None = None
        """A response that waits for the sync of the restarted log. It has the batch at which the log
        restarts."""
        self._host = host
        self._on_truncated = on_truncated
        self._high_watermark = self._log_start_offset = -1

    def __repr__(self) -> str:
        return f"{self.partition.log.name} ({self.state.name}, leader epoch {self.leader_epoch})"

    def transition(self, event: FetchEvent) -> None:
        """Change the state. Raises AssertionError if the event is not legal in the current state."""
        next_state = TRANSITIONS[self.state].get(event)
        assert next_state is not None, f"event {event.name} for {self!r}"
        self.state = next_state

    @property
    def fetch_position(self) -> FetchPosition:
        """The position for the next Fetch."""
        log = self.partition.log
        epoch = log.latest_epoch
        return FetchPosition(
            log.log_end_offset,
            self.leader_epoch,
            NO_LEADER_EPOCH if epoch is None else epoch,
            log.log_start_offset,
        )

    def start(self) -> None:
        """Prepare the log for fetching. Raises StorageError.

        A log without leader epochs is truncated to its high watermark, because no epoch shows where the log
        diverges from the leader's log.
        """
        log = self.partition.log
        if log.latest_epoch is None and log.high_watermark < log.log_end_offset:
            self.truncate_to(log.high_watermark)

    @property
    def lag(self) -> int:
        """The number of committed records that the log lacks, by the leader's last high watermark."""
        return max(0, self._high_watermark - self.partition.log.log_end_offset)

    # --- fetched records

    def stage_fetched(self, data: PartitionData) -> int:
        """Stage the fetched batches for `commit`; return the size of the batches in bytes.

        Returns 0 if the log was restarted, and the batches are staged later by `stage_held`. Raises
        StorageError, or ApiError: CORRUPT_MESSAGE (a retry may succeed), KAFKA_STORAGE_ERROR, or
        OFFSET_OUT_OF_RANGE if the batches do not continue the log.
        """
        log = self.partition.log
        assert isinstance(data.records, bytes | bytearray | memoryview) or data.records is None
        records = memoryview(data.records or b"")
        if records:
            if self._restart_at_batch(records):
                data.records = bytes(records)  # the receive buffer is reused for the next response
                self._held_data = data
                return 0
            self.partition.topic_metrics.replication_bytes_in += len(records)
            log.append_fetched(records, leader_epoch=self.leader_epoch, now_ms=self._host.now_ms())
        self._record_leader_offsets(data)
        self.is_caught_up = log.log_end_offset >= data.high_watermark
        return len(records)

    def stage_held(self) -> bool:
        """Stage the response, if there is one, that waited for the restart of the log. Returns True.

        Raises the same errors as `stage_fetched`.
        """
        held = self._held_data
        if held is not None and not self.partition.log.awaits_sync:
            self._held_data = None
            self.stage_fetched(held)
        return True

    def _record_leader_offsets(self, data: PartitionData) -> None:
        self._high_watermark = data.high_watermark
        self._log_start_offset = data.log_start_offset
        self.has_staged = True

    def _restart_at_batch(self, records: memoryview) -> bool:
        """Restart an empty log if the leader's log starts within a batch; return whether this was done.

        DeleteRecords can move the leader's log start into a batch. The follower's log then restarts at the
        base offset of that batch. The batch is appended after the restart is synced.
        """
        log = self.partition.log
        if log.local_log_start_offset < log.log_end_offset or len(records) < HEADER_BYTES:
            return False
        header = read_header(records)
        if not header.base_offset < log.log_end_offset <= header.last_offset:
            return False
        self._restart_at(header.base_offset)
        return True

    def commit(self) -> bool:
        """Write the staged batches and apply the leader's offsets.

        Returns whether the log must be synced before the follower reports its new log end to the leader. If
        the write fails, the partition goes offline. Raises only ResourceShortage: the batches are still
        staged, so the follower must not fetch before the next call.
        """
        partition = self.partition
        log = partition.log
        try:
            log.commit()
            self._apply_leader_offsets()
            self.has_staged = False
            return log.needs_flush(self._host.monotonic_ms())
        except ResourceShortage:
            raise
        except (StorageError, ApiError) as error:
            if log.failure is None and isinstance(error, ApiError):
                raise ResourceShortage(str(error)) from error  # DeleteRecords found no free descriptor
            failure = log.failure or StorageError(str(error))
        except Exception as error:
            # This is a bug of kwire. The log may be inconsistent, so it is taken offline.
            self._host.logger("kwire.partition").exception(
                "Cannot write the log of %s because of an internal error: the replica goes offline", log.name
            )
            failure = InternalFailure(f"an unexpected failure: {error}")
            log.fail(failure)
        self.has_staged = False
        partition.fail(failure)
        return False

    def _apply_leader_offsets(self) -> None:
        """Apply the leader's high watermark and log start offset, as far as this log reaches."""
        log = self.partition.log
        # The high watermark never falls. A new leader may know a lower one than this replica for a while.
        committed = min(self._high_watermark, log.log_end_offset)
        has_risen = committed > log.high_watermark
        if has_risen:
            log.high_watermark = committed
        if log.log_start_offset < self._log_start_offset <= log.high_watermark:
            log.delete_records_before(self._log_start_offset)
        if has_risen and self.partition.delayed_fetches:
            self.partition.wake()

    # --- divergence from the leader

    def truncate_to_leader(self, data: PartitionData) -> bool:
        """Truncate the log to where it may match the leader's log; return False if nothing was truncated.

        The response has the leader's largest epoch that is not above the follower's last fetched epoch, and
        the end offset of that epoch. If this log does not have that epoch, the log is truncated to the end of
        its largest lower epoch, and the next Fetch repeats the comparison. Otherwise the logs match after the
        truncation, and `commit` applies the high watermark in the response, because the leader may not send
        it again. Raises StorageError.
        """
        before, diverging = self.fetch_position, data.diverging_epoch
        log = self.partition.log
        epoch, end_offset = log.end_offset_for_epoch(diverging.epoch)
        if epoch < 0:
            common = diverging.end_offset  # this log has only later epochs
        elif epoch == diverging.epoch:
            common = min(end_offset, diverging.end_offset)
            self._record_leader_offsets(data)
        else:
            common = end_offset
        self.truncate_to(min(common, log.log_end_offset))
        return self.fetch_position != before

    def truncate_to(self, offset: int) -> None:
        """Truncate the replica's log to `offset`, and log the truncation. Raises StorageError."""
        log = self.partition.log
        logger = self._host.logger("kwire.partition")
        if offset < log.high_watermark:
            logger.warning(
                "Truncating %s to offset %d, below its high watermark %d: committed records may be lost",
                log.name, offset, log.high_watermark,
            )  # fmt: skip
        elif offset < log.log_end_offset:
            logger.info(
                "Truncating %s to offset %d from log end offset %d, to match the leader of leader epoch %d",
                log.name, offset, log.log_end_offset, self.leader_epoch,
            )  # fmt: skip
        if log.truncate_to(offset):
            self._on_truncated(self.partition)

    def resolve_out_of_range(self, leader_start_offset: int, leader_end_offset: int) -> None:
        """Truncate or restart the log after OFFSET_OUT_OF_RANGE from the leader. Raises StorageError.

        After an unclean leader election the leader's log may end before this log: this log is truncated. If
        this replica was down for a long time, the leader's log may start after the end of this log: this log
        restarts at the leader's log start offset. If neither is true any more, the log is not changed.
        """
        log = self.partition.log
        end_offset = log.log_end_offset
        if leader_end_offset < end_offset:
            self.truncate_to(leader_end_offset)
        elif leader_start_offset > end_offset:
            self._host.logger("kwire.partition").warning(
                "Truncating %s fully and restarting it at offset %d, the leader's log start offset: the "
                "local log end offset %d is lower",
                log.name, leader_start_offset, end_offset,
            )  # fmt: skip
            self._restart_at(leader_start_offset)

    def _restart_at(self, offset: int) -> None:
        self.partition.log.truncate_fully_and_start_at(offset)
        self._on_truncated(self.partition)
