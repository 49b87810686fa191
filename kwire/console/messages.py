"""Pages with the messages of a partition, by offset, time or key, and with one message."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

from kwire.cli.files.internal_records import KIND_BY_TOPIC, decode_control_record, decode_record
from kwire.cli.records.formats import as_json, encode
from kwire.cli.records.partitioner import partition_for_key
from kwire.cli.records.positions import resolve_position
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import FormatMismatch
from kwire.client.offsets import find_offsets
from kwire.console.display import LIST_BYTES, PAGE_BYTES, display_bytes, visible
from kwire.console.fetching import BatchStatus, FetchResult, LogOffsets, Message, fetch_messages, find_bounds
from kwire.console.idle_priority import run_at_idle_priority
from kwire.console.local_log import LocalLog, local_directory
from kwire.console.page import MAX_NUMBER, Page, PageRequest, PageResult, Redirect
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.list_offsets import LATEST

PAGE_SIZE: Final = 50
"""Messages per page."""
SEARCHED_BYTES: Final = 8 * 1024 * 1024
SEARCH_SECONDS: Final = 3.0
"""Limits of a key search, in bytes and seconds, after which the page offers to continue."""
MAX_HEADERS: Final = 100
FORMATS: Final = ("text", "hex")


def messages_page(request: PageRequest) -> PageResult:
    """Return the page of messages from a position on, by default the newest messages.

    A search for a key starts at the log start by default.
    """
    topic, partition = request.topic, request.partition
    key_text, form = request.text("key"), request.text("form") or "text"
    key = _parse_key(key_text, form)
    at, note = _start_offset(request, forwards=key is not None), ""
    try:
        found, next_offset, bounds = _read(request, at, key)
        is_there = at <= bounds.high_watermark  # records above the high watermark are not replicated yet
    except ApiError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        bounds = find_bounds(request.cluster, topic, partition)
        is_there = False
    if not is_there:
        at, note = _nearest_offset(at, bounds)
        found, next_offset, bounds = _read(request, at, key)
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
            "previous": max(bounds.log_start, at - PAGE_SIZE) if at > bounds.log_start else None,
            "key": key_text,
            "form": form,
            "is_search": key is not None,
            "searched_to": next_offset,
            "note": note if request.text("from") else "",
            "BatchStatus": BatchStatus,
        },
    )


def find_key(request: PageRequest) -> PageResult:
    """Redirect to a key search in the partition that Java's default partitioner chooses."""
    key_text, form = request.text("key"), request.text("form") or "text"
    key = _parse_key(key_text, form)
    if key is None:
        raise UsageError("the key is missing")
    partition = partition_for_key(key, _partition_count(request))
    return Redirect(
        f"topics/{request.topic}/{partition}?from=beginning&form={form}&key={quote(key_text, safe='')}"
    )


def message_page(request: PageRequest) -> PageResult:
    """Return the page of one message. Raises CommandError if there is no message at the offset."""
    topic, partition, offset = request.topic, request.partition, int(request.path["offset"])
    try:
        found, _, bounds = fetch_messages(request.cluster, topic, partition, min(offset, MAX_NUMBER), 1)
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


def _read(request: PageRequest, at: int, key: bytes | None) -> tuple[list[Message], int, LogOffsets]:
    def wanted(message: Message) -> bool:
        return message.record.key == key and message.batch.status is not BatchStatus.CONTROL

    topic, partition = request.topic, request.partition
    if key is None:
        return fetch_messages(request.cluster, topic, partition, at, PAGE_SIZE)
    deadline = time.monotonic() + SEARCH_SECONDS

    def is_out_of_time() -> bool:
        return time.monotonic() > deadline

    topic_id = request.cluster.topics([topic])[0].topic_id
    directory = local_directory(request.settings.log_dirs, topic, partition, topic_id)
    own = None if directory is None else LocalLog(directory, key, is_out_of_time)

    def skip(fetched: FetchResult, offset: int, max_bytes: int) -> tuple[int, int]:
        # Only the leader's files are authoritative, up to its high watermark.
        if own is None or fetched.leader != request.settings.node_id:
            return offset, 0
        return own.skip(offset, fetched.bounds.high_watermark, max_bytes)

    return run_at_idle_priority(
        lambda: fetch_messages(
            request.cluster,
            topic,
            partition,
            at,
            PAGE_SIZE,
            wanted=wanted,
            max_bytes=SEARCHED_BYTES,
            is_out_of_time=is_out_of_time,
            skip=skip,
        )
    )


def _start_offset(request: PageRequest, *, forwards: bool) -> int:
    """Return the offset to start at, which may be out of range. Raises UsageError.

    If the field `from` is empty, `forwards` selects offset 0 instead of the newest messages.
    """
    one = request.topic, request.partition
    if given := request.text("from"):
        return resolve_position(request.cluster, given, [one], request.now_ms, "from")[one]
    return 0 if forwards else max(0, find_offsets(request.cluster, {one: LATEST})[one] - PAGE_SIZE)


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


def _parse_key(text: str, form: str) -> bytes | None:
    """Return the bytes of a typed key; None if the text is empty. Raises UsageError."""
    if form not in FORMATS:
        raise UsageError(f"form is {form[:20]!r}: expected {' or '.join(FORMATS)}")
    if not text:
        return None
    try:
        return encode(text, form)
    except FormatMismatch as mismatch:
        raise UsageError(f"the key is {mismatch}") from mismatch


def _partition_count(request: PageRequest) -> int:
    return len(request.cluster.topics([request.topic])[0].partitions)
