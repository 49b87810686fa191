"""From batches of the metadata log to the records that count.

Control batches (a leader's change, a snapshot's header) are the quorum's own. Between BeginTransaction and
EndTransaction records are held back, so that a transaction that was cut short by a crash leaves no trace
(KIP-868).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kwire.batch import CorruptBatch, batches, crc_is_valid, records
from kwire.errors import WireError
from kwire.primitives import Buffer
from kwire.registry import decode_stored_metadata
from kwire.schema import Message
from kwire.stored.metadata import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord

MAX_BATCH_BYTES: Final = 64 * 1024 * 1024


class CorruptMetadata(Exception):
    """The metadata log does not hold what it must. The broker cannot start on it."""


class DecodedBatch(NamedTuple):
    """One batch of metadata records, in their order; none for a control batch."""

    base_offset: int
    last_offset: int
    epoch: int
    records: list[Message]


def decode_batches(buffer: Buffer) -> Iterator[DecodedBatch]:
    """Every whole batch of `buffer`. CorruptMetadata where one cannot be trusted."""
    offset = -1
    try:
        for position, header in batches(buffer):
            offset = header.base_offset
            if not crc_is_valid(buffer, position, header):
                raise CorruptMetadata(f"the batch at offset {offset} has a wrong CRC")
            found: list[Message] = []
            if not header.is_control:
                for record in records(buffer, position, header, max_bytes=MAX_BATCH_BYTES):
                    offset = record.offset
                    if record.value is None:
                        raise CorruptMetadata(f"the record at offset {offset} is empty")
                    found.append(decode_stored_metadata(record.value))
            yield DecodedBatch(header.base_offset, header.last_offset, header.leader_epoch, found)
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
