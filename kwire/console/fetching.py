"""Fetches of batches with their transaction status: committed, aborted, undecided or control.

Only read_committed fetches return the aborted transactions (KIP-98). Therefore a fetch first reads with
read_committed, and then with read_uncommitted above the last stable offset. The number of messages and the
sizes of fetches, messages and decompressed batches are limited. `kwire.console.backwards` reads towards the
start of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, cast

from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError
from kwire.client.consumer import AbortedTransactions
from kwire.client.errors import raise_for_code
from kwire.client.offsets import find_offsets
from kwire.wire.batch import BatchHeader, CorruptBatch, Record, batches, records
from kwire.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.primitives import Buffer

FETCH_BYTES: Final = 256 * 1024
PAGE_BYTES: Final = 8 * 1024 * 1024
"""Size of fetched batches at which a page is full. Fetch returns at least one batch, which may exceed it."""
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a decompressed batch."""
MAX_HEADERS: Final = 10_000
"""Maximum number of headers of a record; Kafka has no limit."""
MAX_HELD_BYTES: Final = 16 * 1024 * 1024
"""Size of a page's messages at which the page is full. The last message may exceed this size."""
HEADER_BYTES: Final = 150
"""Memory that a header takes besides its contents."""
RECORDS_AT_ONCE: Final = 1_000
"""Number of records between checks of the time."""


class BatchStatus(Enum):
    """Transaction status of a batch."""

    PLAIN = "not transactional"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "undecided"
    """At or above the last stable offset; the transaction may still be open."""
    CONTROL = "control"


class UnreadableBatch(CommandError):
    """A batch that the console cannot read, or that exceeds a limit of the console."""

    def __init__(self, header: BatchHeader, reason: CorruptBatch) -> None:
        super().__init__(
            f"the batch at offset {header.base_offset} cannot be read ({reason}): continue after it, "
            f"at {header.next_offset}"
        )
        self.next_offset = header.next_offset


class Batch(NamedTuple):
    """A batch with its transaction status."""

    header: BatchHeader
    status: BatchStatus
    data: Buffer
    position: int

    def records(self, from_offset: int = 0) -> Iterator[Record]:
        """Yield the records from an offset on. Raises UnreadableBatch."""
        try:
            yield from records(
                self.data,
                self.position,
                self.header,
                from_offset=from_offset,
                max_bytes=MAX_BATCH_BYTES,
                max_headers=MAX_HEADERS,
            )
        except CorruptBatch as error:
            raise UnreadableBatch(self.header, error) from error


class Message(NamedTuple):
    """A record and its batch."""

    record: Record
    batch: Batch


class LogOffsets(NamedTuple):
    """Log start offset, last stable offset and high watermark of a partition."""

    log_start: int
    last_stable: int
    high_watermark: int


class FetchResult(NamedTuple):
    """The batches of a fetch, and the offsets of the partition at that time."""

    leader: int
    """Broker id of the leader that responded."""
    bounds: LogOffsets
    batches: Sequence[Batch]


class FetchedMessages(NamedTuple):
    """Messages in the order of their offsets, and where to continue."""

    messages: list[Message]
    next_offset: int
    """The offset to continue at."""
    bounds: LogOffsets
    read_bytes: int
    """Size of the batches that were read."""


SkipBatches = Callable[[FetchResult, int, int], tuple[int, int]]
"""Skips batches without wanted messages.

The function takes the last fetch, an offset and a limit in bytes. It returns the offset to continue at and
the number of bytes read.
"""


def _skip_nothing(fetched: FetchResult, offset: int, max_bytes: int) -> tuple[int, int]:
    return offset, 0


def find_bounds(cluster: CommandClient, topic: str, partition: int) -> LogOffsets:
    """Return log start offset, last stable offset and high watermark. Raises CommandError, ApiError."""
    one = topic, partition
    return LogOffsets(
        find_offsets(cluster, {one: EARLIEST})[one],
        find_offsets(cluster, {one: LATEST}, committed=True)[one],
        find_offsets(cluster, {one: LATEST})[one],
    )


def fetch(
    cluster: CommandClient, topic: str, partition: int, offset: int, *, size_bytes: int = FETCH_BYTES
) -> FetchResult:
    """Fetch batches, starting with the batch that contains the offset.

    Returns at least one batch, if one exists. Raises CommandError for corrupt data, or ApiError, for example
    OFFSET_OUT_OF_RANGE.
    """

    def attempt() -> FetchResult:
        leader = cluster.leader(topic, partition)
        committed = _fetch_partition(cluster, leader, topic, partition, offset, size_bytes, isolation_level=1)
        bounds = LogOffsets(
            committed.log_start_offset, committed.last_stable_offset, committed.high_watermark
        )
        found = list(_batches(committed, offset))
        # Fetch returns at least one batch. So an empty response means that no batch from `offset` to the last
        # stable offset is left, for example after compaction.
        at = found[-1].header.next_offset if found else max(offset, bounds.last_stable)
        if bounds.last_stable <= at < bounds.high_watermark and size_of(found) < size_bytes:
            rest = _fetch_partition(cluster, leader, topic, partition, at, size_bytes, isolation_level=0)
            found += [_mark_undecided(batch, bounds.last_stable) for batch in _batches(rest, at)]
        return FetchResult(leader, bounds, found)

    return cluster.retry(attempt)


def fetch_messages(
    cluster: CommandClient,
    topic: str,
    partition: int,
    offset: int,
    max_messages: int,
    *,
    wanted: Callable[[Message], bool] = lambda message: True,
    end: int | None = None,
    max_bytes: int = PAGE_BYTES,
    is_out_of_time: Callable[[], bool] = lambda: False,
    skip: SkipBatches = _skip_nothing,
) -> FetchedMessages:
    """Return up to `max_messages` from an offset on.

    `wanted` selects messages. The search also ends at the offset `end`, after reading `max_bytes`, when the
    time is up, when the found messages have MAX_HELD_BYTES, or before a batch that cannot be read. Raises
    CommandError if the first batch cannot be read, or ApiError.
    """
    found: list[Message] = []
    start = offset
    held = seen = read_bytes = 0
    bounds: LogOffsets | None = None

    def is_full() -> bool:
        return len(found) == max_messages or held >= MAX_HELD_BYTES

    try:
        while True:
            fetched = fetch(cluster, topic, partition, offset)
            bounds = fetched.bounds
            for batch in fetched.batches:
                for record in batch.records(offset):
                    # Read at least one record, so that repeated searches make progress.
                    is_late = seen and seen % RECORDS_AT_ONCE == 0 and is_out_of_time()
                    if is_late or is_full():
                        return FetchedMessages(found, record.offset, bounds, read_bytes)
                    seen += 1
                    message = Message(record, batch)
                    if wanted(message):
                        found.append(message)
                        held += held_bytes(record)
                    offset = record.offset + 1
                offset = max(offset, batch.header.next_offset)
                read_bytes += batch.header.size_bytes
                if is_full() or is_out_of_time():  # before the next batch, which may be unreadable
                    return FetchedMessages(found, offset, bounds, read_bytes)
            if read_bytes < max_bytes and fetched.batches:
                offset, skipped_bytes = skip(fetched, offset, max_bytes - read_bytes)
                read_bytes += skipped_bytes
            if not fetched.batches or read_bytes >= max_bytes or (end is not None and offset >= end):
                return FetchedMessages(found, offset, bounds, read_bytes)
    except CommandError:
        # A search that continues at this offset raises the error, since it has nothing to return.
        if bounds is None or offset == start:
            raise
        return FetchedMessages(found, offset, bounds, read_bytes)


def held_bytes(record: Record) -> int:
    """Return approximately how much memory a record takes, in bytes."""
    held = len(record.key or b"") + len(record.value or b"")
    return held + sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)


def size_of(found: Sequence[Batch]) -> int:
    """Return the size of batches in bytes."""
    return sum(batch.header.size_bytes for batch in found)


def _mark_undecided(batch: Batch, last_stable: int) -> Batch:
    if batch.header.base_offset >= last_stable and batch.status is BatchStatus.COMMITTED:
        return batch._replace(status=BatchStatus.OPEN)
    return batch


def _fetch_partition(
    cluster: CommandClient,
    leader: int,
    topic: str,
    partition: int,
    offset: int,
    size_bytes: int,
    *,
    isolation_level: int,
) -> PartitionData:
    fetch_partition = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size_bytes)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=size_bytes,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=topic, partitions=[fetch_partition])],
        forgotten_topics_data=[],
    )
    response = cluster.send_to_node(leader, request, FetchResponse)
    raise_for_code(response.error_code, None, "a fetch")
    found = response.responses[0].partitions[0]
    raise_for_code(found.error_code, None, f"{topic}-{partition} at offset {offset}")
    return found


def _batches(found: PartitionData, offset: int) -> Iterator[Batch]:
    """Yield the batches of a response to a fetch from `offset`. Raises CommandError for corrupt data."""
    data = cast("Buffer", found.records or b"")  # a received response has no file regions
    aborted = AbortedTransactions(found.aborted_transactions or ())
    try:
        for position, header in batches(data, allow_partial=True):
            if header.next_offset <= offset:
                continue
            is_void = aborted.covers(header, data, position)
            if header.is_control:
                status = BatchStatus.CONTROL
            elif header.is_transactional:
                status = BatchStatus.ABORTED if is_void else BatchStatus.COMMITTED
            else:
                status = BatchStatus.PLAIN
            yield Batch(header, status, data, position)
    except CorruptBatch as error:
        raise CommandError(f"the data at offset {offset} cannot be read: {error}") from error
