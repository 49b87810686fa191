"""Appends of the leader to the metadata log, in its leader epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.broker.metadata.batches import MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.metadata_log import MAX_RECORD_BATCH_BYTES, MetadataLog
from kwire.broker.raft.snapshots import control_batch
from kwire.wire.batch import NewRecord, build
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.registry import encode_record
from kwire.wire.schema import Message

MAX_BATCH_RECORDS: Final = 1_000
"""The maximum number of records per batch that is not atomic. Such a batch stays below Kafka's 8 MiB."""


class Lead:
    """The leader's appends in one epoch. A batch is staged, and the next commit of the log writes it."""

    def __init__(self, log: MetadataLog, epoch: int) -> None:
        self.epoch = epoch
        self.begins_at = log.end_offset
        """The offset of the record that begins the epoch."""
        self._log = log

    def append(
        self, records: Sequence[StoredRecord], delta: MetadataDelta, *, now_ms: int, atomic: bool
    ) -> MetadataBatch:
        """Stage records and return them as one batch. The caller publishes the batch after its commit.

        Raises ApiError UNKNOWN_SERVER_ERROR if atomic records exceed Kafka's batch limit.
        """
        log, base_offset, size_bytes = self._log, self._log.end_offset, 0
        size = len(records) if atomic else MAX_BATCH_RECORDS
        for start in range(0, len(records), size):
            encoded: list[NewRecord] = [
                (now_ms, None, encode_record(record, version), [])
                for record, version in records[start : start + size]
            ]
            batch = build(encoded, base_offset=log.end_offset, leader_epoch=self.epoch)
            if atomic and len(batch) > MAX_RECORD_BATCH_BYTES:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            log.append_decided(batch)
            size_bytes += len(batch)
        found = [record for record, _ in records]
        return MetadataBatch(
            base_offset, log.end_offset - 1, self.epoch, found, (), now_ms, size_bytes, delta=delta
        )

    def append_controls(self, controls: Sequence[tuple[int, Message]], *, now_ms: int) -> MetadataBatch:
        """Stage control records, given with their types, and return their batch."""
        base_offset = self._log.end_offset
        batch = control_batch(controls, now_ms, base_offset=base_offset, epoch=self.epoch)
        self._log.append_controls(batch)
        messages = [message for _, message in controls]
        last_offset = self._log.end_offset - 1
        return MetadataBatch(base_offset, last_offset, self.epoch, [], messages, now_ms, len(batch))
