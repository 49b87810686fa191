"""Batches and messages before an offset, for pages that show the newest ones.

Fetch only reads forwards. Offsets do not show where the last messages are: a message can have any size, a
batch any number of records, and compaction leaves gaps. So this module fetches a range of offsets that ends
at the wanted offset. It narrows the range if it has too many bytes, and widens it after a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kwire.cli.shared.command_client import CommandClient
from kwire.console.fetching import (
    FETCH_BYTES,
    MAX_HELD_BYTES,
    PAGE_BYTES,
    Batch,
    LogOffsets,
    Message,
    UnreadableBatch,
    fetch,
    find_bounds,
    held_bytes,
    size_of,
)
from kwire.wire.errors import ApiError, ErrorCode

FIRST_SPAN: Final = 64
"""Number of offsets in the first fetched range."""
SPAN_GROWTH: Final = 8
"""Maximum factor by which the next range is longer."""
MAX_RANGE_FETCHES: Final = 8
"""Maximum number of fetches of a range. Fetch returns batches of one segment, even if they are small."""
MAX_FETCHES: Final = 100
"""Maximum number of fetches of a page. A page without results then continues at a lower offset."""


class _Part(NamedTuple):
    """The batches of one range of offsets, without those before the range."""

    batches: Sequence[Batch]
    start: int
    """The offset before which to continue."""


class MessagesBefore(NamedTuple):
    """Messages before an offset, in the order of their offsets."""

    messages: list[Message]
    start: int
    """The offset before which to continue."""


def batches_before(
    cluster: CommandClient,
    topic: str,
    partition: int,
    before: int,
    bounds: LogOffsets,
    max_batches: int,
    *,
    max_bytes: int = PAGE_BYTES,
) -> list[Batch]:
    """Return the last batches with a base offset below `before`, in the order of their offsets.

    Returns up to `max_batches` with up to `max_bytes`, but at least one if there is one. Raises CommandError
    for corrupt data, or ApiError.
    """
    found: deque[Batch] = deque()
    left_bytes = max_bytes
    for part in _parts(cluster, topic, partition, before, bounds, max_bytes):
        for batch in reversed(part.batches):
            left_bytes -= batch.header.size_bytes
            if found and (len(found) == max_batches or left_bytes < 0):
                return list(found)
            found.appendleft(batch)
    return list(found)


def messages_before(
    cluster: CommandClient,
    topic: str,
    partition: int,
    before: int,
    bounds: LogOffsets,
    max_messages: int,
    *,
    max_bytes: int = PAGE_BYTES,
) -> MessagesBefore:
    """Return the last messages before an offset.

    Returns up to `max_messages`. The page is full if the fetches return `max_bytes` or the messages have
    MAX_HELD_BYTES, but it has at least one message if there is one. It also ends at a batch that cannot be
    read. Raises UnreadableBatch if this is the last batch, CommandError for other corrupt data, or ApiError.
    """
    found: deque[Message] = deque()
    held = 0
    start = before
    for part in _parts(cluster, topic, partition, before, bounds, max_bytes):
        for batch in reversed(part.batches):
            try:
                last = _last_messages(
                    batch, (bounds.log_start, start), max_messages - len(found), MAX_HELD_BYTES - held
                )
            except UnreadableBatch:
                if not found:
                    raise
                return MessagesBefore(list(found), start)
            found.extendleft(reversed(last))
            held += sum(held_bytes(message.record) for message in last)
            if len(found) == max_messages or held >= MAX_HELD_BYTES:
                return MessagesBefore(list(found), found[0].record.offset)
            start = min(start, batch.header.base_offset)
        start = min(start, part.start)
    return MessagesBefore(list(found), start)


def _last_messages(batch: Batch, offsets: tuple[int, int], max_messages: int, max_held: int) -> list[Message]:
    """Return the last messages of a batch in a range of offsets. The first may exceed `max_held` bytes."""
    last: deque[Message] = deque()
    held = 0
    start, end = offsets
    for record in batch.records(start):
        if record.offset >= end:
            break
        last.append(Message(record, batch))
        held += held_bytes(record)
        while len(last) > max_messages or held - held_bytes(last[0].record) >= max_held:
            held -= held_bytes(last.popleft().record)
    return list(last)


def _parts(
    cluster: CommandClient, topic: str, partition: int, before: int, bounds: LogOffsets, max_bytes: int
) -> Iterator[_Part]:
    """Yield ranges of batches, from `before` towards the log start.

    Ends at the log start, or after reading `max_bytes` and at least one batch.
    """
    end = min(before, bounds.high_watermark)
    span = FIRST_SPAN
    left_fetches = MAX_FETCHES
    read_bytes = 0
    is_empty = True
    while end > bounds.log_start and left_fetches > 0 and (read_bytes < max_bytes or is_empty):
        start = max(bounds.log_start, end - span)
        try:
            batches, reached, fetches = _range(cluster, topic, partition, start, end)
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            left_fetches -= 1
            bounds = find_bounds(cluster, topic, partition)
            if bounds.log_start <= start:
                raise
            continue  # retention has deleted the start of the range
        left_fetches -= fetches
        read_bytes += size_of(batches)
        if reached < end:
            fits = (reached - start) * FETCH_BYTES // size_of(batches)
            span = max(1, min((end - start) // 2, fits))
            continue
        part = [batch for batch in batches if batch.header.base_offset < end]
        is_empty = is_empty and not part
        end = min(start, part[0].header.base_offset) if part else start
        yield _Part(part, end)
        # The last fetch may also have returned batches behind the range, for example behind a gap.
        span = max(1, min(span * SPAN_GROWTH, span * FETCH_BYTES // max(1, size_of(part))))


def _range(
    cluster: CommandClient, topic: str, partition: int, start: int, end: int
) -> tuple[list[Batch], int, int]:
    """Fetch the batches from `start` to `end`, up to FETCH_BYTES and MAX_RANGE_FETCHES.

    Returns the batches, the offset that was reached, and the number of fetches. One fetch is
    enough for a range of one offset.
    """
    found: list[Batch] = []
    reached = start
    fetches = 0
    while reached < end and size_of(found) < FETCH_BYTES and fetches < MAX_RANGE_FETCHES:
        batches = fetch(cluster, topic, partition, reached).batches
        found += batches
        reached = batches[-1].header.next_offset if batches else end
        fetches += 1
    return found, reached, fetches
