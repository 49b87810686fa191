"""One log on any disk: open, append, crash and reopen."""

from __future__ import annotations

import random

from kwire.broker.storage.checkpoints import (
    TEMPORARY_PARTITION_METADATA,
    rename_partition_metadata,
    write_temporary_partition_metadata,
)
from kwire.broker.storage.disk import Disk, StorageError
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.log import Log, LogAppendInfo
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.recovery import open_log
from kwire.wire.batch import Record, batches, build, records
from kwire.wire.compression import Codec
from kwire.wire.primitives import Uuid

NOW_MS = 1_700_000_000_000
SEGMENT_SUFFIXES = (".log", ".index", ".timeindex")


def name(log: Log) -> None:
    """Write the topic id of a new log, as a worker does."""
    ticket = log.begin_partition_metadata_flush()
    if ticket is not None:
        ticket.work()
        ticket.finish()


def write_topic_id(disk: Disk, directory: str, topic_id: Uuid) -> None:
    """Write `partition.metadata`, as a log does at its first append."""
    write_temporary_partition_metadata(disk, directory, topic_id)
    disk.open(f"{directory}/{TEMPORARY_PARTITION_METADATA}").sync()
    rename_partition_metadata(disk, directory)


def batch(
    *values: bytes,
    timestamp: int = NOW_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    codec: Codec = Codec.NONE,
    transactional: bool = False,
) -> memoryview:
    """Build a produced batch with one record per value, without keys, one millisecond apart."""
    return memoryview(
        build(
            [(timestamp + number, None, value, []) for number, value in enumerate(values)],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
    )


def end_transaction(log: Log, producer_id: int, kind: int, *, now_ms: int = NOW_MS) -> None:
    """Append a marker and count it as replicated."""
    marker = build(
        [(now_ms, b"\0\0" + kind.to_bytes(2, "big"), bytes(6), [])],
        base_offset=log.log_end_offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    log.append_stored(memoryview(marker))
    log.commit()
    log.high_watermark = log.log_end_offset


def committed_records(log: Log) -> list[Record]:
    """Return the records that a read_committed consumer reads, filtered as in KIP-98."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        region = log.read(offset, max_bytes=1 << 20, up_to_offset=log.last_stable_offset)
        pending = sorted(log.aborted_transactions(offset, region), key=lambda one: one.first_offset)
        aborting: set[int] = set()
        data = region.read()
        for position, header in batches(data):
            while pending and pending[0].first_offset <= header.last_offset:
                aborting.add(pending.pop(0).producer_id)
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                found += [
                    record
                    for record in records(data, position, header)
                    if record.offset >= log.log_start_offset
                ]
            offset = header.next_offset
    return found


def values(log: Log) -> list[bytes | None]:
    """Return the value of every record, read from the log start."""
    return [value for _, value in offsets_and_values(log)]


def offsets_and_values(log: Log) -> list[tuple[int, bytes | None]]:
    """Return offset and value of every record."""
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset
    while True:
        region = log.read(offset, max_bytes=1 << 20, up_to_offset=log.log_end_offset)
        if not region.size_bytes:
            return found
        data = region.read()
        for position, header in batches(data):
            found += [
                (record.offset, record.value)
                for record in records(data, position, header)
                if record.offset >= log.log_start_offset
            ]
            offset = header.next_offset


class LogHarness:
    """A log directory and the time."""

    def __init__(self, disk: Disk, root: str = "", config: LogConfig | None = None) -> None:
        self.disk = disk
        self.directory = f"{root}/topic-0"
        disk.make_directory(self.directory)
        disk.sync_directory(root or "/")
        self.config = LogConfig(segment_index_bytes=1200) if config is None else config
        self.now_ms = NOW_MS
        self.delayed_deletion = DelayedDeletion(disk)
        self.failures: list[StorageError] = []

    def small_segments(self, value: bytes) -> None:
        """Configure segments that hold three batches of this value."""
        size_bytes = 3 * len(batch(value))
        self.config = self.config._replace(segment_bytes=size_bytes, index_interval_bytes=1)

    def open(
        self,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        topic_id: Uuid | None = None,
    ) -> Log:
        """Open the log, after a crash unless `clean`, or raise StorageError.

        A topic id that `partition.metadata` lacks makes it a new log, whose directory is not durable yet.
        """
        return open_log(
            self.disk,
            self.directory,
            "topic",
            0,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            topic_id=topic_id,
            delayed_deletion=self.delayed_deletion,
            rng=random.Random(0),
            now_ms=self.now_ms,
            on_failure=lambda log, error: self.failures.append(error),
        )

    def append(self, log: Log, *values: bytes, epoch: int = 0, timestamp: int | None = None) -> LogAppendInfo:
        """Append one batch, commit it and count it as replicated; may raise ApiError or StorageError."""
        sent = batch(*values, timestamp=self.now_ms if timestamp is None else timestamp)
        return self.send(log, sent, epoch=epoch)

    def send(self, log: Log, sent: memoryview, *, epoch: int = 0) -> LogAppendInfo:
        """Append a given batch, commit it and count it as replicated."""
        appended = log.append(sent, leader_epoch=epoch, now_ms=self.now_ms)
        log.commit()
        log.high_watermark = log.log_end_offset
        return appended

    def close(self, log: Log) -> None:
        """Flush and close, as a shutdown does, or raise StorageError."""
        log.flush()
        log.close()

    def path(self, base_offset: int, suffix: str) -> str:
        """Return the path of a segment file."""
        return f"{self.directory}/{base_offset:020d}{suffix}"
