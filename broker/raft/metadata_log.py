"""`__cluster_metadata-0` as a quorum of one voter keeps it.

A voter that is alone wins every election at once: it raises the epoch, remembers that in `quorum-state`, and
writes a LeaderChange control record as the first of its epoch. What it appends is committed once it is
synced. Everything on disk is what Apache Kafka writes in the same place (KIP-595, KIP-630), read back here
with its snapshots (`<offset>-<epoch>.checkpoint`), which stand for all that came before their offset.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.config import BrokerConfig
from broker.controller.commands import StoredRecord
from broker.raft.quorum_state import FILE_NAME, QuorumState, decode_quorum_state
from broker.raft.replay import DecodedBatch, decode_batches
from broker.storage.disk import Disk
from broker.storage.log import Log
from broker.storage.log_config import LogConfig
from kwire.batch import build
from kwire.codegen import encoder
from kwire.primitives import ZERO_UUID, Uuid
from kwire.registry import encode_stored
from kwire.stored.raft import LeaderChangeMessage, Voter

logger = logging.getLogger("kwire.raft")

LEADER_CHANGE_KEY: Final = b"\x00\x00\x00\x02"
"""A control record's key: version 0, type 2."""

MAX_BATCH_RECORDS: Final = 1_000
"""How many records share a batch where they need not be atomic: a batch stays far below Kafka's 8 MiB."""

READ_BYTES: Final = 1024 * 1024
SNAPSHOT_NAME: Final = re.compile(r"^(\d{20})-(\d{10})\.checkpoint$")


MAX_RECORD_BATCH_BYTES: Final = 8 * 1024 * 1024


def metadata_log_config(config: BrokerConfig) -> LogConfig:
    """How the metadata log rolls. Nothing is deleted from it but what a snapshot has replaced."""
    return LogConfig(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        max_message_bytes=MAX_RECORD_BATCH_BYTES,
        retention_ms=-1,
        retention_bytes=-1,
    )


class Snapshot(NamedTuple):
    """A checkpoint file: the metadata as it was before `end_offset`."""

    name: str
    end_offset: int
    epoch: int


class MetadataLog:
    """Reads the log at start, then leads it."""

    def __init__(self, log: Log, disk: Disk, *, node_id: int, directory_id: Uuid) -> None:
        self.log = log
        self.epoch = 0
        """The epoch that this node leads; 0 before `lead`."""
        self._disk = disk
        self._node_id = node_id
        self._directory_id = directory_id

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.log_end_offset

    # --- reading

    def read(self) -> Iterator[DecodedBatch]:
        """The latest snapshot's batches, then the log's. CorruptMetadata, StorageError."""
        offset = self.log.log_start_offset
        snapshot = self._latest_snapshot()
        if snapshot is not None and snapshot.end_offset > offset:
            logger.info("metadata: starting from snapshot %s", snapshot.name)
            content = self._disk.read(f"{self.log.directory}/{snapshot.name}")
            for batch in decode_batches(content):
                # Offsets within a snapshot are its own; what it says holds up to its end offset.
                last = snapshot.end_offset - 1
                yield batch._replace(base_offset=last, last_offset=last, epoch=snapshot.epoch)
            offset = snapshot.end_offset
        end = self.log.log_end_offset
        while offset < end:
            region = self.log.read(offset, max_bytes=READ_BYTES, up_to_offset=end)
            for batch in decode_batches(region.read()):
                if batch.last_offset >= offset:
                    yield batch
                    offset = batch.last_offset + 1

    def _latest_snapshot(self) -> Snapshot | None:
        found = [
            Snapshot(name, int(match[1]), int(match[2]))
            for name in self._disk.names(self.log.directory)
            if (match := SNAPSHOT_NAME.match(name))
        ]
        return max(found, key=lambda snapshot: (snapshot.end_offset, snapshot.epoch), default=None)

    # --- leading

    def lead(self, now_ms: int) -> None:
        """Win the election of a new epoch, and say so in the log. StorageError, ValueError."""
        path = f"{self.log.directory}/{FILE_NAME}"
        state = QuorumState()
        if self._disk.exists(path):
            state = decode_quorum_state(self._disk.read(path))
        # A lost quorum-state must not make an epoch of the log come twice.
        self.epoch = max(state.leader_epoch, self.log.latest_epoch or 0) + 1
        state = QuorumState(
            leader_id=self._node_id,
            leader_epoch=self.epoch,
            voter_ids=(self._node_id,),
            data_version=state.data_version,
        )
        self._disk.replace(path, state.encode(), sync=True)
        self._append_batch(
            [(now_ms, LEADER_CHANGE_KEY, self._leader_change(state.data_version), [])], control=True
        )

    def _leader_change(self, version: int) -> bytes:
        directory_id = self._directory_id if version else ZERO_UUID
        message = LeaderChangeMessage(
            version=version,
            leader_id=self._node_id,
            voters=[Voter(voter_id=self._node_id, voter_directory_id=directory_id)],
            granting_voters=[Voter(voter_id=self._node_id, voter_directory_id=directory_id)],
        )
        out = bytearray()
        encoder(LeaderChangeMessage, version)(message, out, [])
        return bytes(out)

    def append(self, records: Sequence[StoredRecord], *, now_ms: int, atomic: bool) -> int:
        """Stage records; the offset of the last. `commit` writes them, a flush makes them durable."""
        size = len(records) if atomic else MAX_BATCH_RECORDS
        for start in range(0, len(records), size):
            self._append_batch(
                [
                    (now_ms, None, encode_stored(record, version), [])
                    for record, version in records[start : start + size]
                ]
            )
        return self.end_offset - 1

    def _append_batch(
        self,
        records: Sequence[tuple[int, bytes | None, bytes, list[tuple[str, bytes | None]]]],
        *,
        control: bool = False,
    ) -> None:
        batch = build(records, base_offset=self.end_offset, leader_epoch=self.epoch, control=control)
        self.log.append_stored(memoryview(batch))

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
