"""The snapshots beside a metadata log, `<offset>-<epoch>.checkpoint`: each stands for all before that offset.

A snapshot is written into a `.part` file, synced, and only then gets its name; one that is not needed any
more is renamed to `.deleted` and removed later. Names and content are Apache Kafka's (KIP-630): a header that
tells the time of the last record and, where the quorum is dynamic, its voters (KIP-853); the records; a
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
"""More than the first batch of a snapshot ever has, with however many voters."""


class Snapshot(NamedTuple):
    """A snapshot file: the metadata as it was before `end_offset`, which was written in `epoch`."""

    end_offset: int
    epoch: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


def quorum_records(voters: VotersRecord | None) -> list[Message]:
    """The control records that say who votes; none where that stands in the configuration."""
    if voters is None:
        return []
    return [KRaftVersionRecord(version=0, k_raft_version=1), voters]


def control_batch(
    controls: Iterable[tuple[int, Message]], now_ms: int, *, base_offset: int, epoch: int
) -> bytearray:
    """A batch of control records, given by their types, each in version 0."""
    encoded: list[NewRecord] = [
        (now_ms, control_key(kind), encode(message, 0), []) for kind, message in controls
    ]
    return build(encoded, base_offset=base_offset, leader_epoch=epoch, control=True)


class SnapshotWriter:
    """Makes the content of a snapshot, a batch at a time."""

    def __init__(
        self, epoch: int, *, now_ms: int, last_timestamp_ms: int, voters: VotersRecord | None = None
    ) -> None:
        """`last_timestamp_ms` is when the last record that the snapshot stands for was written."""
        self._epoch = epoch
        self._now_ms = now_ms
        header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_timestamp_ms)
        kinds = (HEADER_TYPE, KRAFT_VERSION_TYPE, VOTERS_TYPE)
        self._controls = list(zip(kinds, [header, *quorum_records(voters)], strict=False))
        self._offset = 0

    def header(self) -> bytes:
        """How the file begins."""
        self._offset = len(self._controls)
        return bytes(control_batch(self._controls, self._now_ms, base_offset=0, epoch=self._epoch))

    def batch(self, records: Sequence[StoredRecord]) -> bytes:
        """The next records, of which there must be some."""
        made = build(
            [(self._now_ms, None, encode_record(record, version), []) for record, version in records],
            base_offset=self._offset,
            leader_epoch=self._epoch,
        )
        self._offset += len(records)
        return bytes(made)

    def footer(self) -> bytes:
        """How the file ends."""
        footer = (FOOTER_TYPE, SnapshotFooterRecord(version=0))
        return bytes(control_batch([footer], self._now_ms, base_offset=self._offset, epoch=self._epoch))


class SnapshotFile:
    """A snapshot that is being written. StorageError from every method."""

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
        """Add to the file."""
        self._file.write_at(self._size, [data])
        self._size += len(data)

    def sync(self) -> None:
        """Make the content durable. May run in any thread."""
        self._file.sync()

    def publish(self) -> Callable[[], None]:
        """Give the file its name; what this returns, called in any thread, makes that durable."""
        self._disk.rename(self._part, self._path)
        self._disk.make_read_only(self._path)  # as Kafka leaves a snapshot that is complete
        return lambda: self._disk.sync_directory(self._directory)

    def check(self) -> None:
        """See that it is a whole snapshot. CorruptMetadata. May run in any thread.

        Its records are not decoded: whoever reads the snapshot does that.
        """
        data, kinds = self._disk.read(self._part), [-1]
        try:
            for position, header in batches(data):
                if not crc_is_valid(data, position, header):
                    raise CorruptMetadata(f"{self.snapshot.name}: a batch has a wrong CRC")
                if header.is_control:
                    kinds += [control_type(record.key) for record in records(data, position, header)]
                else:
                    kinds.append(-1)
        except CorruptBatch as error:
            raise CorruptMetadata(f"{self.snapshot.name}: {error}") from error
        if kinds[1:2] != [HEADER_TYPE] or kinds[-1] != FOOTER_TYPE:
            raise CorruptMetadata(f"{self.snapshot.name} does not begin and end as a snapshot does")

    def abandon(self) -> None:
        """Remove what was written. Never raises: the next start removes what is left."""
        with suppress(StorageError):
            self._disk.remove(self._part)


class Snapshots:
    """Which snapshots there are in the directory of a metadata log."""

    def __init__(self, disk: Disk, directory: str, logger: NodeLogger) -> None:
        self._disk = disk
        self._logger = logger
        self._directory = directory
        self._known: list[Snapshot] = []
        self._timestamps_ms: dict[Snapshot, int] = {}

    def recover(self, log_start_offset: int) -> None:
        """See what there is, and remove what nobody needs. CorruptMetadata, StorageError.

        A log that does not begin at its beginning needs a snapshot that says what came before.
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
                f"{self._directory} begins at offset {log_start_offset}, and has no snapshot (*{SUFFIX}) of "
                f"what came before: restore the missing file, or the whole directory, from a copy"
            )
        for name in useless:
            self._logger.info("metadata: removing %s, which is not needed any more", name)
            disk.remove(join(self._directory, name))
        self._known = known

    def forget_all_but_latest(self) -> None:
        """The log begins with the latest one. StorageError."""
        for snapshot in self._known[:-1]:
            self._disk.remove(join(self._directory, snapshot.name))
        self._known = self._known[-1:]

    @property
    def known(self) -> Sequence[Snapshot]:
        """The snapshots, the oldest first."""
        return self._known

    @property
    def latest(self) -> Snapshot | None:
        """The last snapshot, None without any."""
        return self._known[-1] if self._known else None

    def read(self, snapshot: Snapshot) -> bytes:
        """The content. StorageError."""
        return self._disk.read(join(self._directory, snapshot.name))

    def piece(self, snapshot: Snapshot, position: int, max_bytes: int) -> bytes:
        """Some of the content, for another node. StorageError."""
        return self._disk.read_part(join(self._directory, snapshot.name), position, max_bytes)

    def size(self, snapshot: Snapshot) -> int:
        """The size in bytes. StorageError."""
        return self._disk.size(join(self._directory, snapshot.name))

    def last_timestamp_ms(self, snapshot: Snapshot) -> int:
        """When the last record that it stands for was written. CorruptMetadata, StorageError."""
        if snapshot not in self._timestamps_ms:
            # Read, not opened: Kafka leaves its snapshots read-only.
            for batch in decode_batches(self.read(snapshot)[:_HEADER_BYTES]):
                for control in batch.controls:
                    if isinstance(control, SnapshotHeaderRecord):
                        self._timestamps_ms[snapshot] = control.last_contained_log_timestamp
                break
        if snapshot in self._timestamps_ms:
            return self._timestamps_ms[snapshot]
        raise CorruptMetadata(f"{join(self._directory, snapshot.name)} does not begin as a snapshot does")

    def create(self, snapshot: Snapshot) -> SnapshotFile:
        """Begin to write a snapshot; `add` it when it has its name. StorageError."""
        return SnapshotFile(self._disk, self._directory, snapshot)

    def add(self, snapshot: Snapshot) -> None:
        """Note a snapshot that now exists."""
        self._known = sorted({*self._known, snapshot})

    def set_aside_before(self, snapshot: Snapshot) -> list[str]:
        """Rename those before `snapshot`; the paths, to be removed in a while. StorageError."""
        paths = []
        for old in [old for old in self._known if old < snapshot]:
            path = join(self._directory, old.name)
            self._disk.rename(path, path + DELETED_SUFFIX)
            self._known.remove(old)
            self._timestamps_ms.pop(old, None)
            paths.append(path + DELETED_SUFFIX)
        return paths

    def remove_file(self, path: str) -> None:
        """Remove one that was set aside. A failure is logged: the next start finds what is left."""
        try:
            self._disk.remove(path)
        except StorageError as error:
            self._logger.error("%s cannot be removed: %s", path, error)
