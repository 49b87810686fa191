"""What a follower does to its log: it appends what the leader has, cuts what the leader has not, and starts
anew where the leader's log has gone on without it.

KIP-101, KIP-279: two logs are the same up to where they agree on the leader epochs. The leader compares what
the follower's Fetch says of its end (KIP-595), and tells where to look for the common end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from kwire.broker.replication.fetch_session_handler import FetchPosition, TopicIdPartition
from kwire.broker.replication.partition import InternalFailure, Partition
from kwire.broker.storage.disk import StorageError
from kwire.host.host import Host
from kwire.wire.batch import HEADER_BYTES, NO_LEADER_EPOCH, read_header
from kwire.wire.errors import ApiError
from kwire.wire.messages.fetch import PartitionData


class FetchState(Enum):
    """What a follower waits for."""

    FETCHING = auto()
    """The leader's records."""
    SYNCING = auto()
    """Its own disk: it was cut, or flush.messages asks for it."""
    LISTING_OFFSETS = auto()
    """The leader's word of where its log begins and ends."""
    BACKING_OFF = auto()
    """The leader could not answer for this partition: it is asked again a little later."""
    FAILED = auto()
    """The metadata: this leader has nothing for it."""
    ENDED = auto()
    """Nothing: it follows this leader in this epoch no more."""


class FetchEvent(Enum):
    """What changes that."""

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
"""Every legal move; any other is this program's own fault."""


class Follower:
    """One partition that follows a leader, in one epoch."""

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
    )

    def __init__(
        self, partition: Partition, leader_epoch: int, host: Host, on_truncated: Callable[[Partition], None]
    ) -> None:
        """`on_cut` is called when its log was cut, or has started anew."""
        self.partition = partition
        self.key: TopicIdPartition = (partition.topic_id, partition.index)
        self.leader_epoch = leader_epoch
        self.state = FetchState.FETCHING
        self.has_staged = True
        """Whether `commit` has something to write, or to take over; at first, whether it finds it synced."""
        self.is_caught_up = False
        """Whether it had, at its last answer, all that is replicated."""
        self._held_data: PartitionData | None = None
        """An answer whose first batch the log is to begin with."""
        self._host = host
        self._on_truncated = on_truncated
        self._high_watermark = self._log_start_offset = -1

    def __repr__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index} ({self.state.name} in {self.leader_epoch})"

    def transition(self, event: FetchEvent) -> None:
        """Something has happened to it. AssertionError where that cannot be."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event.name} comes to {self!r}"
        self.state = following

    @property
    def fetch_position(self) -> FetchPosition:
        """What to ask the leader for."""
        log = self.partition.log
        epoch = log.latest_epoch
        return FetchPosition(
            log.log_end_offset,
            self.leader_epoch,
            NO_LEADER_EPOCH if epoch is None else epoch,
            log.log_start_offset,
        )

    def start(self) -> bool:
        """Start to follow. StorageError.

        Where no epoch tells what the log has in common with the leader's, that is what was committed.
        """
        log = self.partition.log
        if log.latest_epoch is None and log.high_watermark < log.log_end_offset:
            self.truncate_to(log.high_watermark)
        return True

    @property
    def lag(self) -> int:
        """How many records it lacks of those that are committed, as far as it has heard."""
        return max(0, self._high_watermark - self.partition.log.log_end_offset)

    # --- what the leader says

    def stage_fetched(self, data: PartitionData) -> int:
        """Stage the batches of an answer, which `commit` writes; how many bytes they are.

        ApiError: CORRUPT_MESSAGE, which may be another time; KAFKA_STORAGE_ERROR; OFFSET_OUT_OF_RANGE for
        batches that do not follow its end. StorageError.
        """
        log = self.partition.log
        assert isinstance(data.records, bytes | bytearray | memoryview) or data.records is None
        records = memoryview(data.records or b"")
        if records:
            if self._begins_in_batch(records):
                data.records = bytes(records)  # the answer's buffer is the next one's, too
                self._held_data = data
                return 0
            self.partition.topic_metrics.replication_bytes_in += len(records)
            log.append_fetched(records, leader_epoch=self.leader_epoch, now_ms=self._host.now_ms())
        self._record_leader_offsets(data)
        self.is_caught_up = log.log_end_offset >= data.high_watermark
        return len(records)

    def stage_held(self) -> bool:
        """Stage what came before the log could begin anew, if it can. ApiError, StorageError as of `take`."""
        held = self._held_data
        if held is not None and not self.partition.log.awaits_sync:
            self._held_data = None
            self.stage_fetched(held)
        return True

    def _record_leader_offsets(self, data: PartitionData) -> None:
        self._high_watermark = data.high_watermark
        self._log_start_offset = data.log_start_offset
        self.has_staged = True

    def _begins_in_batch(self, records: memoryview) -> bool:
        """Whether the leader's log begins within a batch, after DeleteRecords: an empty one has it whole.

        It begins anew there, and takes the batch once that is on the disk.
        """
        log = self.partition.log
        if log.log_start_offset < log.log_end_offset or len(records) < HEADER_BYTES:
            return False
        header = read_header(records)
        if not header.base_offset < log.log_end_offset <= header.last_offset:
            return False
        self._restart_at(header.base_offset)
        return True

    def commit(self) -> bool:
        """Write what is staged, and take over what the leader has told. Never raises.

        Whether the disk is to be waited for before the leader is told that the log is so long.
        """
        self.has_staged = False
        partition = self.partition
        log = partition.log
        try:
            log.commit()
            self._apply_leader_offsets()
            return log.needs_flush(self._host.monotonic_ms())
        except (StorageError, ApiError) as error:
            failure = log.failure or StorageError(str(error))
        except Exception as error:
            # Ours: what the log holds now is in doubt, so it is of no use any more.
            self._host.logger("kwire.partition").exception("%r cannot be written", self)
            failure = InternalFailure(f"an unexpected failure: {error}")
            log.fail(failure)
        partition.fail(failure)
        return False

    def _apply_leader_offsets(self) -> None:
        """The leader's high watermark and log start, as far as this log reaches."""
        log = self.partition.log
        # What was committed stays so: a new leader hears of the high watermark later than others may have.
        committed = min(self._high_watermark, log.log_end_offset)
        has_risen = committed > log.high_watermark
        if has_risen:
            log.high_watermark = committed
        if log.log_start_offset < self._log_start_offset <= log.high_watermark:
            log.delete_records_before(self._log_start_offset)
        if has_risen and self.partition.delayed_fetches:
            self.partition.wake()

    # --- where the leader's log differs

    def truncate_to_leader(self, data: PartitionData) -> bool:
        """Cut the log to where it may be the same as the leader's. False where that leaves it as it was.

        The diverging epoch is the leader's last one up to that of the follower's end, with where that ended.
        Where the follower does not know it, its own last one before is asked about next. Else the logs are
        the same from here on, and what the answer tells beside it can be taken over: the leader may not tell
        it again. StorageError.
        """
        before, diverging = self.fetch_position, data.diverging_epoch
        log = self.partition.log
        epoch, end_offset = log.end_offset_for_epoch(diverging.epoch)
        if epoch < 0:
            common = diverging.end_offset  # all epochs of this log are later than any that both have
        elif epoch == diverging.epoch:
            common = min(end_offset, diverging.end_offset)
            self._record_leader_offsets(data)
        else:
            common = end_offset
        self.truncate_to(min(common, log.log_end_offset))
        return self.fetch_position != before

    def truncate_to(self, offset: int) -> None:
        """Forget what the leader does not have. StorageError."""
        log = self.partition.log
        logger = self._host.logger("kwire.partition")
        if offset < log.high_watermark:
            logger.warning("%r is cut to %d, below its high watermark %d", self, offset, log.high_watermark)
        elif offset < log.log_end_offset:
            logger.info("%r is cut from %d to %d", self, log.log_end_offset, offset)
        if log.truncate_to(offset):
            self._on_truncated(self.partition)

    def resolve_out_of_range(self, leader_start_offset: int, leader_end_offset: int) -> None:
        """Go to where the leader's log is, whose epochs say nothing about this one. StorageError.

        It ends before this one does, after an unclean election; or it begins after this one ends, for a
        replica that was away for long. Where neither is so any more, the log goes on as it is.
        """
        log = self.partition.log
        end_offset = log.log_end_offset
        if leader_end_offset < end_offset:
            self.truncate_to(leader_end_offset)
        elif leader_start_offset > end_offset:
            self._host.logger("kwire.partition").warning(
                "%r ends at %d and starts anew at %d, where its leader begins",
                self, end_offset, leader_start_offset,
            )  # fmt: skip
            self._restart_at(leader_start_offset)

    def _restart_at(self, offset: int) -> None:
        self.partition.log.truncate_fully_and_start_at(offset)
        self._on_truncated(self.partition)
