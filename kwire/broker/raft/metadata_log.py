"""`__cluster_metadata-0` as a quorum of one voter keeps it.

A voter that is alone wins every election at once: it raises the epoch, remembers that in `quorum-state`, and
writes a LeaderChange control record as the first of its epoch. What it appends is committed once it is
synced. Everything on disk is what Apache Kafka writes in the same place (KIP-595, KIP-630), read back here
with its snapshots, which stand for all that came before their offset.

Who votes stands in the configuration, or, where the quorum is dynamic (KIP-853), in the log: then the leader
repeats it in its own epoch if it stood in the snapshot of a fresh directory only, or says where it is reached
now if that has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.host.loggers import NodeLogger
from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch, decode_batches, size_of_whole
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.quorum_state import FILE_NAME, QuorumState, decode_quorum_state
from kwire.broker.raft.snapshots import (
    KRAFT_VERSION_TYPE,
    VOTERS_TYPE,
    Snapshot,
    Snapshots,
    control_batch,
    quorum_records,
)
from kwire.broker.storage.disk import Disk
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.wire.batch import NewRecord, build
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID, Uuid, uuid_to_text
from kwire.wire.registry import encode_stored
from kwire.wire.schema import Message
from kwire.wire.stored.raft import (
    Endpoint,
    KRaftVersionFeature,
    LeaderChangeMessage,
    Voter,
    VotersRecord,
    VotersVoter,
)

LEADER_CHANGE_TYPE: Final = 2

MAX_BATCH_RECORDS: Final = 1_000
"""How many records share a batch where they need not be atomic: a batch stays far below Kafka's 8 MiB."""

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
    """Reads the log at start, then leads it."""

    def __init__(self, log: Log, disk: Disk, logger: NodeLogger, *, node_id: int, directory_id: Uuid) -> None:
        self.log = log
        self.epoch = 0
        """The epoch that this node leads; 0 before `lead`."""
        self.snapshots = Snapshots(disk, log.directory, logger)
        self.unsnapshotted_bytes = 0
        """How much of the log no snapshot stands for."""
        self.last_timestamp_ms = -1
        """When the last record was written."""
        self.voters: VotersRecord | None = None
        """Who votes, where the log says it."""
        self._voters_in_log = False
        self._disk = disk
        self._logger = logger
        self._node_id = node_id
        self._directory_id = directory_id

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.log_end_offset

    # --- reading

    def read(self) -> Iterator[MetadataBatch]:
        """The latest snapshot's batches, then the log's. CorruptMetadata, StorageError."""
        self.snapshots.recover(self.log.log_start_offset)
        snapshot = self.snapshots.latest
        self._restart_behind(snapshot)
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        if snapshot is not None:
            self._logger.info("metadata: starting from snapshot %s", snapshot.name)
            for batch in decode_batches(self.snapshots.read(snapshot)):
                self._note(batch.controls, in_log=snapshot.end_offset > 0)
                # Offsets within a snapshot are its own; what it says holds up to its end offset.
                last = snapshot.end_offset - 1
                yield batch._replace(base_offset=last, last_offset=last, epoch=snapshot.epoch)
            self.last_timestamp_ms = self.snapshots.last_timestamp_ms(snapshot)
            offset = snapshot.end_offset
        while offset < end:
            data = self.log.read(offset, max_bytes=READ_BYTES, up_to_offset=end).read()
            # The first batch of what is read is whole, the last may be cut short.
            whole_bytes = size_of_whole(data)
            if not whole_bytes:
                raise CorruptMetadata(f"metadata at offset {offset} cannot be read")
            for batch in decode_batches(memoryview(data)[:whole_bytes]):
                if batch.last_offset >= offset:
                    self._note(batch.controls, in_log=True)
                    self.unsnapshotted_bytes += batch.size_bytes
                    self.last_timestamp_ms = batch.timestamp_ms
                    yield batch
                    offset = batch.last_offset + 1

    def _restart_behind(self, snapshot: Snapshot | None) -> None:
        """Begin the log at a snapshot that knows more than it. StorageError.

        A snapshot is synced as a whole, so that it may outlive the end of the log; and one that was fetched
        from a leader is there before the log is cut.
        """
        if snapshot is None:
            return
        here = (self.log.latest_epoch or 0, self.log.log_end_offset)
        if (snapshot.epoch, snapshot.end_offset) > here:
            self._logger.warning(
                "metadata: the log ends at offset %d of epoch %d; it starts anew at the snapshot %s",
                here[1],
                here[0],
                snapshot.name,
            )
            self.log.restart_at(snapshot.end_offset)
            self.log.flush()
            self.snapshots.forget_all_but_latest()

    def _note(self, controls: Sequence[Message], *, in_log: bool) -> None:
        for control in controls:
            if isinstance(control, VotersRecord):
                self.voters, self._voters_in_log = control, in_log

    # --- leading

    def lead(self, now_ms: int, endpoints: Sequence[EndpointImage]) -> None:
        """Win the election of a new epoch, and say so in the log, once all of it was read.

        `endpoints` tells where this voter is reached. CorruptMetadata, StorageError.
        """
        path = f"{self.log.directory}/{FILE_NAME}"
        state = QuorumState()
        if self._disk.exists(path):
            try:
                state = decode_quorum_state(self._disk.read(path))
            except ValueError as error:
                # Whom this voter has voted for, and in which epoch, must not be guessed.
                raise CorruptMetadata(
                    f"{self.log.directory}/{error}: restore the file, or remove it, which a quorum of one "
                    f"voter survives"
                ) from error
        # A lost quorum-state must not make an epoch of the log come twice.
        snapshot = self.snapshots.latest
        known = (state.leader_epoch, self.log.latest_epoch or 0, snapshot.epoch if snapshot else 0)
        self.epoch = max(known) + 1
        # The version of the file goes with that of the quorum's protocol, as Kafka has it.
        version = 0 if self.voters is None else 1
        state = QuorumState(
            leader_id=self._node_id,
            leader_epoch=self.epoch,
            voter_ids=(self._node_id,),
            data_version=version,
        )
        self._disk.replace(path, state.encode(), sync=True)
        controls: list[tuple[int, Message]] = [(LEADER_CHANGE_TYPE, self._leader_change())]
        if self.voters is not None:
            current = self._voters_now(self.voters, endpoints)
            if current != self.voters or not self._voters_in_log:
                self.voters = current
                kinds = (KRAFT_VERSION_TYPE, VOTERS_TYPE)
                controls += zip(kinds, quorum_records(current), strict=True)
        self._append_batch(
            control_batch(controls, now_ms, base_offset=self.end_offset, epoch=self.epoch), now_ms
        )

    def _voters_now(self, voters: VotersRecord, endpoints: Sequence[EndpointImage]) -> VotersRecord:
        """The voters, with where this one is reached now. CorruptMetadata where it is not the only one."""
        told = [(voter.voter_id, voter.voter_directory_id) for voter in voters.voters]
        if told != [(self._node_id, self._directory_id)]:
            others = ", ".join(f"{node_id} ({uuid_to_text(directory)})" for node_id, directory in told)
            raise CorruptMetadata(
                f"the metadata quorum of {self.log.directory} has the voters {others}, and this is "
                f"{self._node_id} ({uuid_to_text(self._directory_id)}), which can only serve alone: "
                f"remove the other voters with kafka-metadata-quorum first"
            )
        known = {endpoint.name: endpoint for endpoint in voters.voters[0].endpoints}
        voter = VotersVoter(
            voter_id=self._node_id,
            voter_directory_id=self._directory_id,
            endpoints=[
                Endpoint(name=endpoint.name, host=endpoint.host, port=endpoint.port)
                # A listener on every address does not say which of them others should use.
                if endpoint.host or endpoint.name not in known
                else known[endpoint.name]
                for endpoint in endpoints
            ],
            k_raft_version_feature=voters.voters[0].k_raft_version_feature,
        )
        return VotersRecord(version=voters.version, voters=[voter])

    def _leader_change(self) -> LeaderChangeMessage:
        """In version 0, which Kafka writes whoever votes, and which is all that its tools read."""
        voter = Voter(voter_id=self._node_id, voter_directory_id=ZERO_UUID)
        return LeaderChangeMessage(
            version=0, leader_id=self._node_id, voters=[voter], granting_voters=[voter]
        )

    def become_dynamic(self, now_ms: int, endpoints: Sequence[EndpointImage]) -> None:
        """Stage what makes the quorum dynamic (kraft.version 1): its voters stand in the log from here on."""
        voter = VotersVoter(
            voter_id=self._node_id,
            voter_directory_id=self._directory_id,
            endpoints=[
                Endpoint(name=endpoint.name, host=endpoint.host or "localhost", port=endpoint.port)
                for endpoint in endpoints
            ],
            k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        )
        self.voters, self._voters_in_log = VotersRecord(version=0, voters=[voter]), True
        controls = zip((KRAFT_VERSION_TYPE, VOTERS_TYPE), quorum_records(self.voters), strict=True)
        self._append_batch(
            control_batch(controls, now_ms, base_offset=self.end_offset, epoch=self.epoch), now_ms
        )

    def append(self, records: Sequence[StoredRecord], *, now_ms: int, atomic: bool) -> int:
        """Stage records; the offset of the last. `commit` writes them, a flush makes them durable.

        ApiError: UNKNOWN_SERVER_ERROR, with nothing staged, where atomic ones are too long for Kafka's batch.
        """
        size = len(records) if atomic else MAX_BATCH_RECORDS
        for start in range(0, len(records), size):
            encoded: list[NewRecord] = [
                (now_ms, None, encode_stored(record, version), [])
                for record, version in records[start : start + size]
            ]
            batch = build(encoded, base_offset=self.end_offset, leader_epoch=self.epoch)
            if atomic and len(batch) > MAX_RECORD_BATCH_BYTES:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._append_batch(batch, now_ms)
        return self.end_offset - 1

    def _append_batch(self, batch: bytearray, now_ms: int) -> None:
        self.log.append_stored(memoryview(batch))
        self.unsnapshotted_bytes += len(batch)
        self.last_timestamp_ms = now_ms

    def commit(self) -> None:
        """Write what is staged. StorageError."""
        self.log.commit()

    def flush(self) -> None:
        """Make everything written durable, now. StorageError."""
        self.log.flush()
        self.log.high_watermark = self.log.log_end_offset

    def begin_flush(self) -> tuple[Callable[[], object], Callable[[], None]]:
        """(what a worker is to run, what is to be called when it has)."""
        ticket = self.log.begin_flush()

        def finish() -> None:
            ticket.finish()
            self.log.high_watermark = max(self.log.high_watermark, ticket.end_offset)

        return ticket.work, finish
