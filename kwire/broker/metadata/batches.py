"""Decoding of metadata batches, and of metadata transactions (KIP-868).

Control batches belong to KRaft itself. Records between BeginTransaction and EndTransaction are delayed until
the end of the transaction, so that an unfinished transaction has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from kwire.broker.metadata.delta import MetadataDelta
from kwire.wire.batch import HEADER_BYTES, CorruptBatch, batches, crc_is_valid, read_header, records
from kwire.wire.codegen import decode
from kwire.wire.errors import WireError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer
from kwire.wire.records.metadata import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord
from kwire.wire.records.raft import KRaftVersionRecord, SnapshotHeaderRecord, VotersRecord
from kwire.wire.registry import decode_metadata_record
from kwire.wire.schema import Message

_CONTROL_KEY: Final = Struct(">hh")

MAX_BATCH_BYTES: Final = 64 * 1024 * 1024


CONTROL_RECORDS: Final[dict[int, type[Message]]] = {
    3: SnapshotHeaderRecord,
    5: KRaftVersionRecord,
    6: VotersRecord,
}
"""The control records that affect the quorum, by type."""


def control_key(kind: int) -> bytes:
    """Return the key of a control record: version 0 and the type."""
    return _CONTROL_KEY.pack(0, kind)


def control_type(key: bytes | None) -> int:
    """Return the type of a control record, or -1 if the key has no type."""
    if key is None or len(key) < _CONTROL_KEY.size:
        return -1
    kind: int = _CONTROL_KEY.unpack_from(key)[1]
    return kind


class CorruptMetadata(Exception):
    """Metadata that is invalid, or that this release does not support. The node cannot run with it."""


class NoBootstrapMetadata(CorruptMetadata):
    """A controller without the first records of a new cluster. It can only take part in a running cluster."""


class MetadataBatch(NamedTuple):
    """The metadata records of one batch. A control batch has no metadata records."""

    base_offset: int
    last_offset: int
    epoch: int
    records: list[Message]
    controls: Sequence[Message] = ()
    """The records of a control batch: kraft.version, voters, snapshot header (KIP-853)."""
    timestamp_ms: int = -1
    size_bytes: int = 0
    delta: MetadataDelta | None = None
    """The change that the records make, or None if this node did not append them as the active controller."""


def size_of_complete_batches(buffer: Buffer) -> int:
    """Return the size of the complete batches at the start of `buffer`, in bytes."""
    end, position = len(buffer), 0
    while end - position >= HEADER_BYTES:
        following = position + read_header(buffer, position).size_bytes
        if not position < following <= end:
            break
        position = following
    return position


def decode_batches(buffer: Buffer) -> Iterator[MetadataBatch]:
    """Yield the batches of `buffer`. Raises CorruptMetadata if a batch is incomplete or invalid."""
    offset = -1
    try:
        for position, header in batches(buffer):
            offset = header.base_offset
            if not crc_is_valid(buffer, position, header):
                raise CorruptMetadata(f"metadata batch at offset {offset}: wrong CRC")
            found: list[Message] = []
            controls: list[Message] = []
            for record in records(buffer, position, header, max_bytes=MAX_BATCH_BYTES):
                offset = record.offset
                if record.value is None:
                    raise CorruptMetadata(f"metadata record at offset {offset}: no value")
                if not header.is_control:
                    found.append(decode_metadata_record(record.value))
                elif (kind := control_type(record.key)) in CONTROL_RECORDS:
                    control, _ = decode(CONTROL_RECORDS[kind], 0, record.value)
                    controls.append(control)
            yield MetadataBatch(
                header.base_offset,
                header.last_offset,
                header.leader_epoch,
                found,
                controls,
                header.max_timestamp,
                header.size_bytes,
            )
    except (CorruptBatch, WireError) as error:
        raise CorruptMetadata(f"metadata at offset {offset}: {error}") from error


class TransactionFilter:
    """A filter that delays the records of a metadata transaction until its end."""

    def __init__(self) -> None:
        self._held: list[Message] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and is neither ended nor aborted."""
        return self._held is not None

    def feed(self, incoming: list[Message]) -> list[Message]:
        """Return the records that take effect now.

        Raises CorruptMetadata if begin and end records do not match.
        """
        out: list[Message] = []
        for record in incoming:
            if isinstance(record, BeginTransactionRecord):
                if self._held is not None:
                    raise CorruptMetadata("BeginTransactionRecord in an open metadata transaction")
                self._held = []
            elif isinstance(record, EndTransactionRecord):
                if self._held is None:
                    raise CorruptMetadata("EndTransactionRecord without an open metadata transaction")
                out.extend(self._held)
                self._held = None
            elif isinstance(record, AbortTransactionRecord):
                if self._held is None:
                    raise CorruptMetadata("AbortTransactionRecord without an open metadata transaction")
                self._held = None
            elif self._held is not None:
                self._held.append(record)
            else:
                out.append(record)
        return out
