"""From batches of the metadata log to the records that count.

Control batches (a leader's change, a snapshot's header) are the quorum's own. Between BeginTransaction and
EndTransaction records are held back, so that a transaction that was cut short by a crash leaves no trace
(KIP-868).
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
"""The control records that count here, by their type."""


def control_key(kind: int) -> bytes:
    """The key of a control record: its version, which is 0, and its type."""
    return _CONTROL_KEY.pack(0, kind)


def control_type(key: bytes | None) -> int:
    """The type in the key of a control record; -1 where there is none."""
    if key is None or len(key) < _CONTROL_KEY.size:
        return -1
    kind: int = _CONTROL_KEY.unpack_from(key)[1]
    return kind


class CorruptMetadata(Exception):
    """The metadata log does not hold what it must. The broker cannot start on it."""


class MetadataBatch(NamedTuple):
    """Metadata records that were written at once, in their order; none for a control batch."""

    base_offset: int
    last_offset: int
    epoch: int
    records: list[Message]
    controls: Sequence[Message] = ()
    """What a control batch says of the quorum itself: the version of its protocol, its voters (KIP-853)."""
    timestamp_ms: int = -1
    size_bytes: int = 0
    delta: MetadataDelta | None = None
    """What they change, on a node that has decided them itself."""


def size_of_complete_batches(buffer: Buffer) -> int:
    """How many bytes the whole batches at the beginning of `buffer` have."""
    end, position = len(buffer), 0
    while end - position >= HEADER_BYTES:
        following = position + read_header(buffer, position).size_bytes
        if not position < following <= end:
            break
        position = following
    return position


def decode_batches(buffer: Buffer) -> Iterator[MetadataBatch]:
    """The batches of `buffer`. CorruptMetadata where one is cut short or cannot be trusted."""
    offset = -1
    try:
        for position, header in batches(buffer):
            offset = header.base_offset
            if not crc_is_valid(buffer, position, header):
                raise CorruptMetadata(f"the batch at offset {offset} has a wrong CRC")
            found: list[Message] = []
            controls: list[Message] = []
            for record in records(buffer, position, header, max_bytes=MAX_BATCH_BYTES):
                offset = record.offset
                if record.value is None:
                    raise CorruptMetadata(f"the record at offset {offset} is empty")
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
    """Lets records through as transactions allow."""

    def __init__(self) -> None:
        self._held: list[Message] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun and neither ended nor aborted."""
        return self._held is not None

    def feed(self, incoming: list[Message]) -> list[Message]:
        """The records that take effect now. CorruptMetadata where begin and end do not match."""
        out: list[Message] = []
        for record in incoming:
            if isinstance(record, BeginTransactionRecord):
                if self._held is not None:
                    raise CorruptMetadata("a metadata transaction begins within another")
                self._held = []
            elif isinstance(record, EndTransactionRecord):
                if self._held is None:
                    raise CorruptMetadata("a metadata transaction ends that never began")
                out.extend(self._held)
                self._held = None
            elif isinstance(record, AbortTransactionRecord):
                if self._held is None:
                    raise CorruptMetadata("a metadata transaction is aborted that never began")
                self._held = None
            elif self._held is not None:
                self._held.append(record)
            else:
                out.append(record)
        return out
