"""The state of each producer, and the format of the `.snapshot` files that store it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from kwire.wire.batch import (
    MAX_SEQUENCE,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
)
from kwire.wire.crc import crc32c
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

BATCHES_KEPT: Final = 5
NO_COORDINATOR_EPOCH: Final = -1
SNAPSHOT_SUFFIX: Final = ".snapshot"
SNAPSHOT_VERSION: Final = 1

_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_CRC_END: Final = 6


class CorruptSnapshot(Exception):
    """A snapshot file with invalid content. The state is then rebuilt without this snapshot."""


class BatchMetadata(NamedTuple):
    """The sequences, offsets and timestamp of one batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @classmethod
    def of(cls, header: BatchHeader) -> BatchMetadata:
        return cls(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState:
    """The state of one producer in one log."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "txn_first_offset")

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        """The last batches of this epoch, oldest first."""
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        self.txn_first_offset: int | None = None
        """The first offset of the open transaction, or None."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. A new epoch starts without remembered batches."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


def encode_snapshot(producers: Mapping[int, ProducerState]) -> bytes:
    """Return the content of a `.snapshot` file with the producers, by producer id."""
    entries = b"".join(
        _SNAPSHOT_ENTRY.pack(
            producer_id,
            state.epoch,
            state.last_sequence,
            state.batches[-1].last_offset if state.batches else NO_OFFSET,
            state.batches[-1].offset_delta if state.batches else 0,
            state.last_timestamp,
            state.coordinator_epoch,
            NO_OFFSET if state.txn_first_offset is None else state.txn_first_offset,
        )
        for producer_id, state in producers.items()
    )
    content = bytearray(_SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, 0, len(producers)) + entries)
    content[2:_CRC_END] = crc32c(memoryview(content)[_CRC_END:]).to_bytes(4, "big")
    return bytes(content)


def read_snapshot(content: bytes) -> Iterable[tuple[int, ProducerState]]:
    """Yield the producers of a `.snapshot` file with their ids. Raises CorruptSnapshot."""
    if len(content) < _SNAPSHOT_HEAD.size:
        raise CorruptSnapshot(f"too short for a snapshot: {plural(len(content), 'byte')}")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(content, 0)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"unsupported version {version}")
    if crc32c(memoryview(content)[_CRC_END:]) != crc:
        raise CorruptSnapshot("wrong CRC")
    if len(content) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshot(f"{plural(count, 'entry')} in {plural(len(content), 'byte')}")
    for fields in _SNAPSHOT_ENTRY.iter_unpack(content[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, last_offset, delta, timestamp, coordinator_epoch, txn_offset = fields
        state = ProducerState()
        state.epoch = epoch
        state.last_timestamp = timestamp
        state.coordinator_epoch = coordinator_epoch
        state.txn_first_offset = None if txn_offset == NO_OFFSET else txn_offset
        if last_offset >= 0:
            state.batches.append(BatchMetadata(sequence, last_offset, delta, timestamp))
        yield producer_id, state
