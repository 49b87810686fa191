"""The metadata log, `__cluster_metadata-0`, on one node: leader, follower or observer.

Its files are those of Apache Kafka (KIP-595, KIP-630): segments, and snapshots. A snapshot replaces all
records before its end offset. Records are read up to the high watermark. The leader appends its own records
with a `Lead`; other nodes append the records that they fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.batches import (
    CorruptMetadata,
    MetadataBatch,
    decode_batches,
    size_of_complete_batches,
)
from kwire.broker.raft.positions import EndOfEpoch
from kwire.broker.raft.quorum_state import FILE_NAME, QuorumState, decode_quorum_state
from kwire.broker.raft.snapshots import Snapshot, Snapshots
from kwire.broker.raft.voters import VoterHistory, VoterSet
from kwire.broker.storage.disk import Disk, join
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.host.loggers import NodeLogger
from kwire.wire.batch import CorruptBatch, batches
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Buffer, Uuid
from kwire.wire.schema import Message

READ_BYTES: Final = 1024 * 1024
MAX_RECORD_BATCH_BYTES: Final = 8 * 1024 * 1024


def metadata_log_config(config: BrokerConfig) -> LogConfig:
    """Return the configuration of the metadata log. Snapshots, not retention, decide what is deleted."""
    small = cast("int | None", config.value("internal.metadata.log.segment.bytes"))
    return LogConfig(
        segment_bytes=small or config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        max_message_bytes=MAX_RECORD_BATCH_BYTES,
        retention_ms=-1,
        retention_bytes=-1,
    )


class MetadataLog:
    """The metadata log with its snapshots, and the position up to which it was read."""

    def __init__(
        self,
        log: Log,
        disk: Disk,
        logger: NodeLogger,
        *,
        node_id: int,
        directory_id: Uuid,
        static_voters: VoterSet = VoterSet(),  # noqa: B008  it never changes
    ) -> None:
        """Wrap a log.

        `static_voters` are the configured voters, which apply until the log has other voters.
        """
        self.log = log
        self.node_id = node_id
        self.directory_id = directory_id
        self.snapshots = Snapshots(disk, log.directory, logger)
        self.unsnapshotted_bytes = 0
        """The size of the records that were read or appended since the last snapshot."""
        self.last_timestamp_ms = -1
        """The timestamp of the last record that was read or appended; -1 without one."""
        self.history = VoterHistory(static_voters)
        """The voters by offset, from all records of the log, committed or not."""
        self.has_bootstrap = True
        """Whether the controller on this node has the first records of a new cluster."""
        self._first_record_offset: int | None = None
        """The offset of the first batch of metadata records after the snapshot, committed or not."""
        self._read_offset = 0
        self.disk = disk
        self._logger = logger

    # --- offsets and epochs: `positions.Positions`

    @property
    def start_offset(self) -> int:
        """The offset of the first record. If it is not 0, a snapshot has the earlier records."""
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """The end of the records that are known to be committed."""
        return self.log.high_watermark

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record or, in an empty log, of the snapshot before it; 0 without either."""
        latest = self.log.latest_epoch
        if latest is None:
            snapshot = self.snapshots.latest
            latest = 0 if snapshot is None else snapshot.epoch
        return latest

    @property
    def earliest_snapshot(self) -> Snapshot | None:
        """The snapshot with the lowest end offset."""
        known = self.snapshots.known
        return known[0] if known else None

    @property
    def latest_snapshot(self) -> Snapshot | None:
        """The snapshot with the highest end offset."""
        return self.snapshots.latest

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        """Return the end of this epoch, or of the last epoch before it that the log has."""
        found, end_offset = self.log.end_offset_for_epoch(epoch)
        if end_offset < 0:
            return EndOfEpoch(self.last_epoch, self.end_offset)
        earliest = self.earliest_snapshot
        if earliest is not None and found == epoch and end_offset == earliest.end_offset:
            # The snapshot has the end of this epoch, which may be earlier.
            return EndOfEpoch(earliest.epoch, earliest.end_offset)
        return EndOfEpoch(found, end_offset)

    # --- voters: `terms.QuorumLog`

    @property
    def voters(self) -> VoterSet:
        """The latest voters."""
        return self.history.voters

    @property
    def former_voters(self) -> VoterSet:
        """The voters before the latest ones."""
        return self.history.former_voters

    @property
    def voters_offset(self) -> int:
        """The offset of the record with the latest voters."""
        return self.history.voters_offset

    @property
    def kraft_version(self) -> int:
        """The kraft.version: 1 if the log contains the voters (KIP-853), and 0 otherwise."""
        return self.history.kraft_version

    @property
    def has_records(self) -> bool:
        """Whether the log has metadata records, committed or not. Control records do not count."""
        snapshot = self.snapshots.latest
        return self._first_record_offset is not None or (snapshot is not None and not snapshot.is_bootstrap)

    @property
    def may_lead(self) -> bool:
        """Whether the controller on this node could become active after an election."""
        return self.has_bootstrap or self.has_records

    def _note(self, offset: int, controls: Sequence[Message]) -> None:
        for control in controls:
            self.history.note(offset, control)

    def _note_batches(self, data: memoryview) -> int:
        """Note the voters, and the first metadata record, of consecutive batches. Return the next offset.

        Raises CorruptMetadata.
        """
        following = -1
        for position, header in batches(data):
            following = header.next_offset
            if header.is_control:
                for batch in decode_batches(data[position : position + header.size_bytes]):
                    self._note(batch.last_offset, batch.controls)
            elif self._first_record_offset is None:
                self._first_record_offset = header.base_offset
        return following

    # --- reading

    def recover(self) -> None:
        """List the snapshots at the start of the node. Raises CorruptMetadata or StorageError."""
        self.snapshots.recover(self.start_offset)

    def read(self) -> Iterator[MetadataBatch]:
        """Yield the batches of the latest snapshot, then those of the log, committed or not.

        Raises CorruptMetadata or StorageError.
        """
        self.recover()
        yield from self.read_snapshot()
        yield from self.read_up_to(self.end_offset)

    def read_snapshot(self) -> Iterator[MetadataBatch]:
        """Yield the batches of the latest snapshot. They are known to be committed even after a restart.

        Snapshot 0-0 is an exception: formatting has written it, so its records are left out, and only its
        voters count (KIP-853, KIP-1170).

        If the log ends before the snapshot's end, the log is restarted there. Raises CorruptMetadata or
        StorageError.
        """
        snapshot = self.snapshots.latest
        self._restart_behind(snapshot)
        self._read_offset = self.start_offset
        self.history.clear()
        self._first_record_offset = None
        if snapshot is not None:
            self._logger.info("Loading metadata snapshot %s", snapshot.name)
            self._read_offset = snapshot.end_offset
            self.log.high_watermark = max(self.high_watermark, snapshot.end_offset)
            self.unsnapshotted_bytes = 0
            for batch in decode_batches(self.snapshots.read(snapshot)):
                # The batches of a snapshot have their own offsets. They describe the state at its last
                # offset.
                last = snapshot.end_offset - 1
                self._note(last, batch.controls)
                records = [] if snapshot.is_bootstrap else batch.records
                yield batch._replace(
                    base_offset=last, last_offset=last, epoch=snapshot.epoch, records=records
                )
            self.last_timestamp_ms = self.snapshots.last_timestamp_ms(snapshot)
        self._note_tail()

    def _note_tail(self) -> None:
        """Note the batches of the log after the snapshot, including uncommitted ones."""
        offset = self._read_offset
        while offset < self.end_offset:
            data = self.log.read(offset, max_bytes=READ_BYTES, up_to_offset=self.end_offset).read()
            whole_bytes = size_of_complete_batches(data)
            if not whole_bytes:
                raise CorruptMetadata(f"metadata at offset {offset} cannot be read")
            offset = self._note_batches(memoryview(data)[:whole_bytes])

    def is_behind(self, offset: int) -> bool:
        """Return whether there are records before `offset` that were not read yet."""
        return self._read_offset < offset

    def read_up_to(self, end_offset: int) -> Iterator[MetadataBatch]:
        """Yield the batches from the read position on. Raises CorruptMetadata or StorageError."""
        while self._read_offset < end_offset:
            offset = self._read_offset
            data = self.log.read(offset, max_bytes=READ_BYTES, up_to_offset=end_offset).read()
            if not data and end_offset < self.end_offset:
                return  # the end offset is within a batch
            # The first batch is complete; the last batch may not be.
            whole_bytes = size_of_complete_batches(data)
            if not whole_bytes:
                raise CorruptMetadata(f"metadata at offset {offset} cannot be read")
            for batch in decode_batches(memoryview(data)[:whole_bytes]):
                if batch.last_offset >= self._read_offset:
                    self.unsnapshotted_bytes += batch.size_bytes
                    self.last_timestamp_ms = batch.timestamp_ms
                    self._read_offset = batch.last_offset + 1
                    yield batch

    def _restart_behind(self, snapshot: Snapshot | None) -> None:
        """Restart the log after a snapshot that ends beyond it; a flush must follow. Raises StorageError.

        A snapshot is synced, so after a crash it may reach further than the log. A fetched snapshot is
        durable before the log is restarted.
        """
        if snapshot is None:
            return
        here = (self.last_epoch, self.end_offset)
        if (snapshot.epoch, snapshot.end_offset) > here:
            has_records = self.start_offset < self.end_offset
            log_at_level = self._logger.warning if has_records else self._logger.info
            log_at_level(
                "The metadata log ends at offset %d in leader epoch %d: restarting it after snapshot %s",
                here[1],
                here[0],
                snapshot.name,
            )
            self.log.truncate_fully_and_start_at(snapshot.end_offset)
            self.snapshots.forget_all_but_latest()

    # --- quorum-state

    def election(self) -> QuorumState:
        """Return the content of `quorum-state`, or a default without the file.

        Raises CorruptMetadata or StorageError.
        """
        path = join(self.log.directory, FILE_NAME)
        if not self.disk.exists(path):
            return QuorumState()
        try:
            return decode_quorum_state(self.disk.read(path))
        except ValueError as error:
            # This node must not guess its epoch and vote.
            raise CorruptMetadata(
                f"{self.log.directory}/{error}: restore the file from a backup; remove it only if this node "
                f"is the sole voter"
            ) from error

    def remember(self, state: QuorumState) -> None:
        """Write `quorum-state` before returning. Raises StorageError."""
        self.disk.replace(join(self.log.directory, FILE_NAME), state.encode(), sync=True)

    # --- appending

    def append_decided(self, batch: bytearray) -> None:
        """Stage a batch of records that this node created as the leader."""
        self.log.append_stored(memoryview(batch))

    def append_controls(self, batch: bytearray) -> None:
        """Stage a batch of control records."""
        self.log.append_stored(memoryview(batch))
        self._note_batches(memoryview(batch))

    def was_decided(self, batch: MetadataBatch) -> None:
        """Skip a committed batch that this node appended itself, because the batch is already in memory."""
        assert batch.base_offset == self._read_offset, (
            f"batch at {batch.base_offset}, not {self._read_offset}"
        )
        self._read_offset = batch.last_offset + 1
        self.unsnapshotted_bytes += batch.size_bytes
        self.last_timestamp_ms = batch.timestamp_ms

    def append_fetched(self, records: Buffer, *, epoch: int) -> int:
        """Write records of the leader of `epoch`, and return their number. An incomplete batch is ignored.

        Batches are stored unchanged. Raises ValueError, without writing any batch, if the batches do not
        follow this log. Raises StorageError if they cannot be written.
        """
        whole = memoryview(records)[: size_of_complete_batches(records)]
        if not whole:
            raise ValueError("the first batch is incomplete")
        try:
            first_offset = offset = self.end_offset
            last_epoch = self.last_epoch
            for _, header in batches(whole):
                if header.base_offset != offset or not last_epoch <= header.leader_epoch <= epoch:
                    raise ValueError(
                        f"a batch at offset {header.base_offset} of leader epoch {header.leader_epoch} "
                        f"cannot follow offset {offset} and leader epoch {last_epoch}"
                    )
                offset, last_epoch = header.next_offset, header.leader_epoch
            self.log.append_stored(whole)
            self._note_batches(whole)
        except (CorruptBatch, ApiError) as error:
            if self.log.failure is not None:
                raise self.log.failure from error
            raise ValueError(str(error)) from error
        self.log.commit()
        return offset - first_offset

    def truncate_to(self, offset: int) -> None:
        """Truncate records that diverge from the leader's log and were never read as committed.

        The caller must flush the log afterwards (`awaits_sync`). Raises StorageError.
        """
        assert offset >= self.high_watermark, f"truncation to {offset}, below {self.high_watermark}"
        self.history.truncate_to(offset)
        if self._first_record_offset is not None and self._first_record_offset >= offset:
            self._first_record_offset = None
        self.log.truncate_to(offset)

    def advance_to(self, high_watermark: int) -> None:
        """Raise the high watermark, but not above the log end offset."""
        self.log.high_watermark = max(self.high_watermark, min(high_watermark, self.end_offset))

    def commit(self) -> None:
        """Write the staged batches. Raises StorageError."""
        self.log.commit()

    @property
    def written_end_offset(self) -> int:
        """The end of the written part of the log. Only this part may be sent to other nodes."""
        return self.log.written_end_offset

    @property
    def synced_end_offset(self) -> int:
        """The end of the durable part of the log."""
        return self.log.recovery_point

    @property
    def awaits_sync(self) -> bool:
        """Whether a flush must precede the next append, because the log was truncated or restarted."""
        return self.log.awaits_sync

    def flush(self) -> None:
        """Sync all written batches now. Raises StorageError."""
        self.log.flush()

    def begin_flush(self) -> tuple[Callable[[], object], Callable[[], None]]:
        """Return a function that syncs in a worker thread, and a function for the event loop afterwards."""
        ticket = self.log.begin_flush()
        return ticket.work, ticket.finish
