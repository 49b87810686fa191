"""`__cluster_metadata-0` on one node, whether it leads the log or follows it.

Everything on disk is what Apache Kafka writes in the same place (KIP-595, KIP-630): the log, with its
snapshots, which stand for all that came before their offset. It is read as far as it is known to be
committed; who leads appends to it through a `Lead`, who follows appends what it has fetched.
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
    """How the metadata log rolls. Nothing is deleted from it but what a snapshot has replaced."""
    small = cast("int | None", config.value("internal.metadata.log.segment.bytes"))
    return LogConfig(
        segment_bytes=small or config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        max_message_bytes=MAX_RECORD_BATCH_BYTES,
        retention_ms=-1,
        retention_bytes=-1,
    )


class MetadataLog:
    """The log and its snapshots; and how far it was read."""

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
        """`static_voters` are those of the configuration, which hold until the log names others."""
        self.log = log
        self.node_id = node_id
        self.directory_id = directory_id
        self.snapshots = Snapshots(disk, log.directory, logger)
        self.unsnapshotted_bytes = 0
        """How much of what was read, or decided, no snapshot stands for."""
        self.last_timestamp_ms = -1
        """When the last record of that was written."""
        self.history = VoterHistory(static_voters)
        """Who votes, and since when, by all that is in the log, be it committed or not."""
        self._read_offset = 0
        self.disk = disk
        self._logger = logger

    # --- where it begins and ends: `positions.Positions`

    @property
    def start_offset(self) -> int:
        """The offset of the first record, which follows a snapshot where it is not 0."""
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Where what is known to be committed ends."""
        return self.log.high_watermark

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, be it in the snapshot that the log begins with; 0 without any."""
        latest = self.log.latest_epoch
        if latest is None:
            snapshot = self.snapshots.latest
            latest = 0 if snapshot is None else snapshot.epoch
        return latest

    @property
    def earliest_snapshot(self) -> Snapshot | None:
        """The snapshot that the log begins with, where it does not begin at its beginning."""
        known = self.snapshots.known
        return known[0] if known else None

    @property
    def latest_snapshot(self) -> Snapshot | None:
        """The snapshot that stands for the most."""
        return self.snapshots.latest

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        """Where an epoch ends, or the last one before it that there is."""
        found, end_offset = self.log.end_offset_for_epoch(epoch)
        if end_offset < 0:
            return EndOfEpoch(self.last_epoch, self.end_offset)
        earliest = self.earliest_snapshot
        if earliest is not None and found == epoch and end_offset == earliest.end_offset:
            # It may have ended before: what is left of it is in the snapshot.
            return EndOfEpoch(earliest.epoch, earliest.end_offset)
        return EndOfEpoch(found, end_offset)

    # --- who votes: `terms.QuorumLog`

    @property
    def voters(self) -> VoterSet:
        """The latest voters."""
        return self.history.voters

    @property
    def former_voters(self) -> VoterSet:
        """Those before them."""
        return self.history.former_voters

    @property
    def voters_offset(self) -> int:
        """Where the record stands that says them."""
        return self.history.voters_offset

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol: 1 where its voters stand in the log (KIP-853)."""
        return self.history.kraft_version

    def _note(self, offset: int, controls: Sequence[Message]) -> None:
        for control in controls:
            self.history.note(offset, control)

    def _note_batches(self, data: memoryview) -> int:
        """See what a run of batches says of voters; the offset after it. CorruptMetadata."""
        following = -1
        for position, header in batches(data):
            following = header.next_offset
            if header.is_control:
                for batch in decode_batches(data[position : position + header.size_bytes]):
                    self._note(batch.last_offset, batch.controls)
        return following

    # --- reading

    def recover(self) -> None:
        """See which snapshots there are, at the start. CorruptMetadata, StorageError."""
        self.snapshots.recover(self.start_offset)

    def read(self) -> Iterator[MetadataBatch]:
        """The latest snapshot's batches, then the log's to its end. CorruptMetadata, StorageError."""
        self.recover()
        yield from self.read_snapshot()
        yield from self.read_up_to(self.end_offset)

    def read_snapshot(self) -> Iterator[MetadataBatch]:
        """The latest snapshot's batches: what the log knows to be committed by itself, after a start.

        A log that knows less begins anew behind it. CorruptMetadata, StorageError.
        """
        snapshot = self.snapshots.latest
        self._restart_behind(snapshot)
        self._read_offset = self.start_offset
        self.history.clear()
        if snapshot is not None:
            self._logger.info("metadata: starting from snapshot %s", snapshot.name)
            self._read_offset = snapshot.end_offset
            self.log.high_watermark = max(self.high_watermark, snapshot.end_offset)
            self.unsnapshotted_bytes = 0
            for batch in decode_batches(self.snapshots.read(snapshot)):
                # Offsets within a snapshot are its own; what it says holds up to its end offset.
                last = snapshot.end_offset - 1
                self._note(last, batch.controls)
                yield batch._replace(base_offset=last, last_offset=last, epoch=snapshot.epoch)
            self.last_timestamp_ms = self.snapshots.last_timestamp_ms(snapshot)
        self._note_tail()

    def _note_tail(self) -> None:
        """See what the log says of voters behind the snapshot, committed or not."""
        offset = self._read_offset
        while offset < self.end_offset:
            data = self.log.read(offset, max_bytes=READ_BYTES, up_to_offset=self.end_offset).read()
            whole_bytes = size_of_complete_batches(data)
            if not whole_bytes:
                raise CorruptMetadata(f"metadata at offset {offset} cannot be read")
            offset = self._note_batches(memoryview(data)[:whole_bytes])

    def is_behind(self, offset: int) -> bool:
        """Whether there is something before `offset` that was not read."""
        return self._read_offset < offset

    def read_up_to(self, end_offset: int) -> Iterator[MetadataBatch]:
        """The log's batches from where it was read to. CorruptMetadata, StorageError."""
        while self._read_offset < end_offset:
            offset = self._read_offset
            data = self.log.read(offset, max_bytes=READ_BYTES, up_to_offset=end_offset).read()
            if not data and end_offset < self.end_offset:
                return  # a batch begins here of which only some is asked for
            # The first batch of what is read is whole, the last may be cut short.
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
        """Begin the log at a snapshot that knows more than it, after a flush. StorageError.

        A snapshot is synced as a whole, so that it may outlive the end of the log; and one that was fetched
        from a leader is durable before the log is cut.
        """
        if snapshot is None:
            return
        here = (self.last_epoch, self.end_offset)
        if (snapshot.epoch, snapshot.end_offset) > here:
            has_records = self.start_offset < self.end_offset
            tell = self._logger.warning if has_records else self._logger.info
            tell(
                "metadata: the log ends at offset %d of epoch %d; it starts anew at the snapshot %s",
                here[1],
                here[0],
                snapshot.name,
            )
            self.log.truncate_fully_and_start_at(snapshot.end_offset)
            self.snapshots.forget_all_but_latest()

    # --- what this node remembers of elections

    def election(self) -> QuorumState:
        """What `quorum-state` says. CorruptMetadata where that makes no sense, StorageError."""
        path = join(self.log.directory, FILE_NAME)
        if not self.disk.exists(path):
            return QuorumState()
        try:
            return decode_quorum_state(self.disk.read(path))
        except ValueError as error:
            # Whom a voter has voted for, and in which epoch, must not be guessed.
            raise CorruptMetadata(
                f"{self.log.directory}/{error}: restore the file, or remove it, which a quorum of one "
                f"voter survives"
            ) from error

    def remember(self, state: QuorumState) -> None:
        """Write it into `quorum-state`, now. StorageError."""
        self.disk.replace(join(self.log.directory, FILE_NAME), state.encode(), sync=True)

    # --- appending

    def append_decided(self, batch: bytearray) -> None:
        """Stage a batch that this node has decided as the leader."""
        self.log.append_stored(memoryview(batch))

    def append_controls(self, batch: bytearray) -> None:
        """Stage one that says something of the quorum itself."""
        self.log.append_stored(memoryview(batch))
        self._note_batches(memoryview(batch))

    def was_decided(self, batch: MetadataBatch) -> None:
        """A batch of this node's own is committed, and need not be read to be known."""
        assert batch.base_offset == self._read_offset, f"{batch.base_offset} comes after {self._read_offset}"
        self._read_offset = batch.last_offset + 1
        self.unsnapshotted_bytes += batch.size_bytes
        self.last_timestamp_ms = batch.timestamp_ms

    def append_fetched(self, records: Buffer, *, epoch: int) -> None:
        """Write what the leader of `epoch` has sent: whole batches, of which the last may be cut short.

        They are stored as they came. ValueError: they are not what follows here, and none is written.
        StorageError.
        """
        whole = memoryview(records)[: size_of_complete_batches(records)]
        if not whole:
            raise ValueError("the first batch is cut short")
        try:
            offset, last_epoch = self.end_offset, self.last_epoch
            for _, header in batches(whole):
                if header.base_offset != offset or not last_epoch <= header.leader_epoch <= epoch:
                    raise ValueError(
                        f"a batch at offset {header.base_offset} of epoch {header.leader_epoch} cannot "
                        f"follow offset {offset} and epoch {last_epoch}"
                    )
                offset, last_epoch = header.next_offset, header.leader_epoch
            self.log.append_stored(whole)
            self._note_batches(whole)
        except (CorruptBatch, ApiError) as error:
            if self.log.failure is not None:
                raise self.log.failure from error
            raise ValueError(str(error)) from error
        self.log.commit()

    def truncate_to(self, offset: int) -> None:
        """Forget what is not the leader's, which was never read here as committed. StorageError.

        A flush comes next (`awaits_sync`).
        """
        assert offset >= self.high_watermark, f"a cut at {offset}, below {self.high_watermark}"
        self.history.cut(offset)
        self.log.truncate_to(offset)

    def advance_to(self, high_watermark: int) -> None:
        """What is committed ends at least there, as far as it is here."""
        self.log.high_watermark = max(self.high_watermark, min(high_watermark, self.end_offset))

    def commit(self) -> None:
        """Write what is staged. StorageError."""
        self.log.commit()

    @property
    def written_end_offset(self) -> int:
        """Where what others may be sent ends."""
        return self.log.written_end_offset

    @property
    def synced_end_offset(self) -> int:
        """Where what is durable ends."""
        return self.log.recovery_point

    @property
    def awaits_sync(self) -> bool:
        """Whether it was cut, or begun anew: a flush has to be done before anything is appended."""
        return self.log.awaits_sync

    def flush(self) -> None:
        """Make everything written durable, now. StorageError."""
        self.log.flush()

    def begin_flush(self) -> tuple[Callable[[], object], Callable[[], None]]:
        """(what a worker is to run, what is to be called then)."""
        ticket = self.log.begin_flush()
        return ticket.work, ticket.finish
