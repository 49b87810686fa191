"""Snapshot files of the metadata log. `<offset>-<epoch>.checkpoint` replaces all records before the offset.

A snapshot is written to a `.part` file, which is synced and then renamed. An obsolete snapshot is renamed to
`.deleted` and removed later. Names and content are as in Apache Kafka (KIP-630). The content is a header with
the timestamp of the last record and, in a dynamic quorum, the voters (KIP-853); then the records; then a
footer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from kwire.broker.metadata.batches import CorruptMetadata, control_key, control_type, decode_batches
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.storage.disk import Disk, StorageError, join
from kwire.broker.storage.log.segment import DELETED_SUFFIX
from kwire.host.loggers import NodeLogger
from kwire.wire.batch import CorruptBatch, NewRecord, batches, build, crc_is_valid, records
from kwire.wire.codegen import encode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.records.raft import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kwire.wire.registry import encode_record
from kwire.wire.schema import Message

SUFFIX: Final = ".checkpoint"
PART_SUFFIX: Final = ".part"
_NAME: Final = re.compile(r"^(\d{20})-(\d{10})(?:-\d+)?\.checkpoint(\.part|\.deleted)?$")

HEADER_TYPE: Final = 3
FOOTER_TYPE: Final = 4
KRAFT_VERSION_TYPE: Final = 5
VOTERS_TYPE: Final = 6

_HEADER_BYTES: Final = 16 * 1024
"""An upper bound for the size of a snapshot's first batch, whatever the number of voters."""


class Snapshot(NamedTuple):
    """A snapshot of the records before `end_offset`. The last of them has the leader epoch `epoch`."""

    end_offset: int
    epoch: int

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"

    @property
    def is_bootstrap(self) -> bool:
        """Whether formatting has written this snapshot, before the log had any records."""
        return self.end_offset == 0


def quorum_records(voters: VotersRecord | None) -> list[Message]:
    """Return the control records with the voters; an empty list in a static quorum (None)."""
    if voters is None:
        return []
    return [KRaftVersionRecord(version=0, k_raft_version=1), voters]


def control_batch(
    controls: Iterable[tuple[int, Message]], now_ms: int, *, base_offset: int, epoch: int
) -> bytearray:
    """Build a batch of control records, given with their types, each in version 0."""
    encoded: list[NewRecord] = [
        (now_ms, control_key(kind), encode(message, 0), []) for kind, message in controls
    ]
    return build(encoded, base_offset=base_offset, leader_epoch=epoch, control=True)


class SnapshotWriter:
    """The encoder of a snapshot: first the header, then batches of records, then the footer."""

    def __init__(
        self, epoch: int, *, now_ms: int, last_timestamp_ms: int, voters: VotersRecord | None = None
    ) -> None:
        """Start a snapshot. `last_timestamp_ms` is the timestamp of the last record that it replaces."""
        self._epoch = epoch
        self._now_ms = now_ms
        header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_timestamp_ms)
        kinds = (HEADER_TYPE, KRAFT_VERSION_TYPE, VOTERS_TYPE)
        self._controls = list(zip(kinds, [header, *quorum_records(voters)], strict=False))
        self._offset = 0

    def header(self) -> bytes:
        """Return the first batch: the snapshot header and, in a dynamic quorum, the voters."""
        self._offset = len(self._controls)
        return bytes(control_batch(self._controls, self._now_ms, base_offset=0, epoch=self._epoch))

    def batch(self, records: Sequence[StoredRecord]) -> bytes:
        """Return a batch with the next records. There must be at least one record."""
        made = build(
            [(self._now_ms, None, encode_record(record, version), []) for record, version in records],
            base_offset=self._offset,
            leader_epoch=self._epoch,
        )
        self._offset += len(records)
        return bytes(made)

    def footer(self) -> bytes:
        """Return the last batch."""
        footer = (FOOTER_TYPE, SnapshotFooterRecord(version=0))
        return bytes(control_batch([footer], self._now_ms, base_offset=self._offset, epoch=self._epoch))


class SnapshotFile:
    """A snapshot file that is being written. Every method except `abandon` may raise StorageError."""

    def __init__(self, disk: Disk, directory: str, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._disk = disk
        self._directory = directory
        self._path = join(directory, snapshot.name)
        self._part = self._path + PART_SUFFIX
        self._file = disk.open(self._part, create=True)
        self._file.truncate(0)
        self._size = 0

    def append(self, data: bytes) -> None:
        self._file.write_at(self._size, [data])
        self._size += len(data)

    def sync(self) -> None:
        """Sync the content. May run in any thread."""
        self._file.sync()

    def publish(self) -> Callable[[], None]:
        """Rename the file; return a function that makes the name durable and may run in any thread."""
        self._disk.rename(self._part, self._path)
        self._disk.make_read_only(self._path)  # as Kafka does
        return lambda: self._disk.sync_directory(self._directory)

    def check(self) -> None:
        """Check that the snapshot is complete. Raises CorruptMetadata. May run in any thread.

        The records are decoded later, when the snapshot is loaded.
        """
        data, kinds = self._disk.read(self._part), [-1]
        try:
            for position, header in batches(data):
                if not crc_is_valid(data, position, header):
                    raise CorruptMetadata(f"{self.snapshot.name}: wrong CRC of the batch at byte {position}")
                if header.is_control:
                    kinds += [control_type(record.key) for record in records(data, position, header)]
                else:
                    kinds.append(-1)
        except CorruptBatch as error:
            raise CorruptMetadata(f"{self.snapshot.name}: {error}") from error
        if kinds[1:2] != [HEADER_TYPE] or kinds[-1] != FOOTER_TYPE:
            raise CorruptMetadata(f"{self.snapshot.name} is incomplete: it has no header or no footer")

    def abandon(self) -> None:
        """Remove the unfinished file. Never raises, because the next start removes leftover files."""
        with suppress(StorageError):
            self._disk.remove(self._part)


class Snapshots:
    """The snapshots in the directory of a metadata log."""

    def __init__(self, disk: Disk, directory: str, logger: NodeLogger) -> None:
        self._disk = disk
        self._logger = logger
        self._directory = directory
        self._known: list[Snapshot] = []
        self._timestamps_ms: dict[Snapshot, int] = {}

    def recover(self, log_start_offset: int) -> None:
        """List the snapshots, and remove obsolete files. Raises CorruptMetadata or StorageError.

        A log that does not start at offset 0 needs a snapshot of the records before it.
        """
        disk, known, useless = self._disk, [], []
        for name in disk.names(self._directory):
            match = _NAME.match(name)
            if match is None:
                continue
            snapshot = Snapshot(int(match[1]), int(match[2]))
            if match[3] or snapshot.end_offset < log_start_offset:
                useless.append(name)
            else:
                known.append(snapshot)
        known.sort()
        if log_start_offset > 0 and not known:
            raise CorruptMetadata(
                f"{self._directory} starts at offset {log_start_offset} and has no snapshot (*{SUFFIX}) of "
                f"the records before it: restore the missing file, or the complete directory, from a backup"
            )
        for name in useless:
            self._logger.info("Removing obsolete metadata snapshot %s", name)
            disk.remove(join(self._directory, name))
        self._known = known

    def forget_all_but_latest(self) -> None:
        """Remove all snapshots except the latest, at whose end the log now starts. Raises StorageError."""
        for snapshot in self._known[:-1]:
            self._disk.remove(join(self._directory, snapshot.name))
        self._known = self._known[-1:]

    @property
    def known(self) -> Sequence[Snapshot]:
        """The snapshots, oldest first."""
        return self._known

    @property
    def latest(self) -> Snapshot | None:
        """The latest snapshot, or None."""
        return self._known[-1] if self._known else None

    def read(self, snapshot: Snapshot) -> bytes:
        """Return the content of a snapshot. Raises StorageError."""
        return self._disk.read(join(self._directory, snapshot.name))

    def piece(self, snapshot: Snapshot, position: int, max_bytes: int) -> bytes:
        """Return up to `max_bytes` of a snapshot from `position`, for FetchSnapshot. Raises StorageError."""
        return self._disk.read_part(join(self._directory, snapshot.name), position, max_bytes)

    def size(self, snapshot: Snapshot) -> int:
        """Return the size of a snapshot in bytes. Raises StorageError."""
        return self._disk.size(join(self._directory, snapshot.name))

    def last_timestamp_ms(self, snapshot: Snapshot) -> int:
        """Return the timestamp of the last record that the snapshot replaces.

        Raises CorruptMetadata or StorageError.
        """
        if snapshot not in self._timestamps_ms:
            # The file is read without opening it for writing, because Kafka's snapshots are read-only.
            for batch in decode_batches(self.read(snapshot)[:_HEADER_BYTES]):
                for control in batch.controls:
                    if isinstance(control, SnapshotHeaderRecord):
                        self._timestamps_ms[snapshot] = control.last_contained_log_timestamp
                break
        if snapshot in self._timestamps_ms:
            return self._timestamps_ms[snapshot]
        raise CorruptMetadata(f"{join(self._directory, snapshot.name)} has no snapshot header")

    def create(self, snapshot: Snapshot) -> SnapshotFile:
        """Start to write a snapshot. Call `add` once the file is renamed. Raises StorageError."""
        return SnapshotFile(self._disk, self._directory, snapshot)

    def add(self, snapshot: Snapshot) -> None:
        """Add a complete snapshot to the list."""
        self._known = sorted({*self._known, snapshot})

    def set_aside_before(self, snapshot: Snapshot) -> list[str]:
        """Rename all snapshots before `snapshot` to `.deleted`; return the new paths. Raises StorageError."""
        paths = []
        for old in [old for old in self._known if old < snapshot]:
            path = join(self._directory, old.name)
            self._disk.rename(path, path + DELETED_SUFFIX)
            self._known.remove(old)
            self._timestamps_ms.pop(old, None)
            paths.append(path + DELETED_SUFFIX)
        return paths

    def remove_file(self, path: str) -> None:
        """Remove a renamed snapshot. A failure is only logged, because the next start removes the file."""
        try:
            self._disk.remove(path)
        except StorageError as error:
            self._logger.error(
                "Cannot remove deleted metadata snapshot %s, the next start of the node removes it: %s",
                *(path, error),
            )
