"""Pages with the messages of a partition, by offset, time or key, and with one message."""

from __future__ import annotations

from typing import Any, Final

from kwire.cli.files.internal_records import KIND_BY_TOPIC, decode_control_record, decode_record
from kwire.cli.records.formats import as_json
from kwire.cli.records.positions import resolve_position
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import FormatMismatch
from kwire.console.backwards import messages_before
from kwire.console.display import LIST_BYTES, PAGE_BYTES, display_bytes, visible
from kwire.console.fetching import (
    BatchStatus,
    FetchedMessages,
    LogOffsets,
    Message,
    fetch_messages,
    find_bounds,
)
from kwire.console.idle_priority import run_at_idle_priority
from kwire.console.key_search import SEARCHED_BYTES, Deadline, KeySearch, parse_key
from kwire.console.page import MAX_NUMBER, Page, PageRequest, PageResult
from kwire.wire.errors import ApiError, ErrorCode

PAGE_SIZE: Final = 50
"""Messages per page."""
MAX_HEADERS: Final = 100


def messages_page(request: PageRequest) -> PageResult:
    """Return the page of messages from a position on, or before an offset, by default the newest messages.

    A search for a key starts at the log start by default.
    """
    topic, partition = request.topic, request.partition
    key_text, form = request.text("key"), request.text("form") or "text"
    key = parse_key(key_text, form)
    before = request.number("before")
    note = ""
    if key is None and not request.text("from"):
        bounds = find_bounds(request.cluster, topic, partition)
        if before is not None and bounds.log_start < bounds.high_watermark and before <= bounds.log_start:
            at, note = _nearest_offset(max(0, before - 1), bounds)
            found, next_offset, bounds, _ = _read(request, at, key)
        else:
            next_offset = bounds.high_watermark if before is None else min(before, bounds.high_watermark)
            found, at = messages_before(request.cluster, topic, partition, next_offset, bounds, PAGE_SIZE)
    else:
        at, note, (found, next_offset, bounds, _) = _read_forwards(request, key)
    return Page(
        "messages.html",
        {
            "topic": topic,
            "partition": partition,
            "bounds": bounds,
            "rows": [row_of(topic, message) for message in found],
            "at": at,
            "from": request.text("from"),
            "next": next_offset if next_offset < bounds.high_watermark else None,
            "has_previous": at > bounds.log_start,
            "key": key_text,
            "form": form,
            "is_search": key is not None,
            "searched_to": next_offset,
            "note": note,
            "BatchStatus": BatchStatus,
        },
    )


def message_page(request: PageRequest) -> PageResult:
    """Return the page of one message. Raises CommandError if there is no message at the offset."""
    topic, partition, offset = request.topic, request.partition, int(request.path["offset"])
    try:
        found, _, bounds, _ = fetch_messages(request.cluster, topic, partition, min(offset, MAX_NUMBER), 1)
    except ApiError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        found = []
    if not found or found[0].record.offset != offset:
        raise CommandError(
            f"{topic}-{partition} has no message at offset {offset}: "
            f"{_missing_reason(offset, find_bounds(request.cluster, topic, partition))}"
        )
    message = found[0]
    header = message.batch.header
    return Page(
        "message.html",
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "is_last": offset + 1 >= bounds.high_watermark,
            "row": row_of(topic, message, PAGE_BYTES, dump=True),
            "headers": [
                (visible(name[:LIST_BYTES]), display_bytes(value))
                for name, value in message.record.headers[:MAX_HEADERS]
            ],
            "headers_left": max(0, len(message.record.headers) - MAX_HEADERS),
            "batch": header,
            "codec": header.codec.name.lower(),
            "status": message.batch.status,
            "is_written": bool(request.text("written")),
        },
    )


def row_of(
    topic: str, message: Message, max_bytes: int = LIST_BYTES, *, dump: bool = False
) -> dict[str, Any]:
    """Return the template values of a message. See `display_bytes` for `max_bytes` and `dump`."""
    record, batch = message
    row: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": display_bytes(record.key, max_bytes, dump=dump),
        "value": display_bytes(record.value, max_bytes, dump=dump),
        "headers": len(record.headers),
        "status": batch.status,
        "decoded": None,
    }
    kind = KIND_BY_TOPIC.get(topic)
    try:
        if batch.status is BatchStatus.CONTROL:
            decoded = decode_control_record(record)
        elif kind is not None:
            decoded = decode_record(kind, record)
        else:
            return row
    except FormatMismatch:
        return row
    row["decoded"] = display_bytes(as_json(decoded).encode(), max_bytes)
    return row


def _read_forwards(request: PageRequest, key: bytes | None) -> tuple[int, str, FetchedMessages]:
    """Return the offset at which the page starts, a note if this is not the given one, and the messages."""
    at = _start_offset(request)
    try:
        read = _read(request, at, key)
        is_there = at <= read.bounds.high_watermark  # records above it are not replicated yet
    except ApiError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        is_there = False
    if is_there:
        return at, "", read
    bounds = find_bounds(request.cluster, request.topic, request.partition)
    at, note = _nearest_offset(at, bounds)
    return at, note if request.text("from") else "", _read(request, at, key)


def _read(request: PageRequest, at: int, key: bytes | None) -> FetchedMessages:
    topic, partition = request.topic, request.partition
    if key is None:
        return fetch_messages(request.cluster, topic, partition, at, PAGE_SIZE)
    search = KeySearch(request.cluster, request.settings, topic, key, Deadline())
    return run_at_idle_priority(lambda: search.find(partition, at, PAGE_SIZE, SEARCHED_BYTES))


def _start_offset(request: PageRequest) -> int:
    """Return the offset of the field `from`, which may be out of range; 0 if it is empty.

    Raises UsageError.
    """
    one = request.topic, request.partition
    if given := request.text("from"):
        return resolve_position(request.cluster, given, [one], request.now_ms, "from")[one]
    return 0


def _nearest_offset(at: int, bounds: LogOffsets) -> tuple[int, str]:
    """Return the nearest valid offset, and a note if that offset is not `at`; otherwise an empty note."""
    if at < bounds.log_start:
        return (
            bounds.log_start,
            f"Offset {at} was deleted: showing messages from the log start offset {bounds.log_start}.",
        )
    if at > bounds.high_watermark:
        return (
            bounds.high_watermark,
            f"Offset {at} does not exist yet: the next offset is {bounds.high_watermark}.",
        )
    return at, ""


def _missing_reason(offset: int, bounds: LogOffsets) -> str:
    """Return a possible reason why there is no message at an offset."""
    if offset >= bounds.high_watermark or bounds.log_start == bounds.high_watermark:
        return f"the next offset is {bounds.high_watermark}"
    if offset < bounds.log_start:
        return f"the log starts at offset {bounds.log_start}"
    return "compaction may have removed it, or it is the offset of a transaction marker"
