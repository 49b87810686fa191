"""The messages of a partition, by offset, time and key; and one message with all that it has."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

from kwire.cli.files.internal_records import KINDS, control, said_by
from kwire.cli.records.formats import as_json, encode
from kwire.cli.records.partitioner import partition_of
from kwire.cli.records.positions import offsets_of
from kwire.cli.shared.failure import Failure, Misfit, UsageError
from kwire.client.offsets import find_offsets
from kwire.console.asked import MAX_NUMBER, Page, PageAnswer, PageRequest, Redirect
from kwire.console.leisure import at_leisure
from kwire.console.passing import OwnLog, own_directory
from kwire.console.reading import Bounds, Fate, Fetched, Message, bounds_of, messages
from kwire.console.shown import LIST_BYTES, PAGE_BYTES, shown, visible
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.list_offsets import LATEST

AT_ONCE: Final = 50
"""Messages of a page."""
SEARCHED_BYTES: Final = 8 * 1024 * 1024
SEARCH_SECONDS: Final = 3.0
"""How much a search for a key reads, and how long it takes, before it asks whether to go on."""
MAX_HEADERS: Final = 100
FORMS: Final = ("text", "hex")


def messages_page(asked: PageRequest) -> PageAnswer:
    """Where to begin is an offset, a place in words, or nothing: then at the newest."""
    topic, partition = asked.topic, asked.partition
    key_text, form = asked.text("key"), asked.text("form") or "text"
    key = _key(key_text, form)
    at, note = _offset(asked, forwards=key is not None), ""
    try:
        found, next_offset, bounds = _read(asked, at, key)
        is_there = at <= bounds.high_watermark  # and not of what replicas do not have yet
    except ApiError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        bounds = bounds_of(asked.cluster, topic, partition)
        is_there = False
    if not is_there:
        at, note = _nearest(at, bounds)
        found, next_offset, bounds = _read(asked, at, key)
    return Page(
        "messages.html",
        {
            "topic": topic,
            "partition": partition,
            "bounds": bounds,
            "rows": [row_of(topic, message) for message in found],
            "at": at,
            "from": asked.text("from"),
            "next": next_offset if next_offset < bounds.high_watermark else None,
            "previous": max(bounds.log_start, at - AT_ONCE) if at > bounds.log_start else None,
            "key": key_text,
            "form": form,
            "is_search": key is not None,
            "searched_to": next_offset,
            "note": note if asked.text("from") else "",
            "fate": Fate,
        },
    )


def find_key(asked: PageRequest) -> PageAnswer:
    """From a topic's page to the partition that a key goes to, as Java's producer has it."""
    key_text, form = asked.text("key"), asked.text("form") or "text"
    key = _key(key_text, form)
    if key is None:
        raise UsageError("which key? Type one that messages may have")
    partition = partition_of(key, _count(asked))
    return Redirect(
        f"topics/{asked.topic}/{partition}?from=beginning&form={form}&key={quote(key_text, safe='')}"
    )


def message_page(asked: PageRequest) -> PageAnswer:
    """One message. Failure where the offset has none."""
    topic, partition, offset = asked.topic, asked.partition, int(asked.path["offset"])
    try:
        found, _, bounds = messages(asked.cluster, topic, partition, min(offset, MAX_NUMBER), 1)
    except ApiError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        found = []
    if not found or found[0].record.offset != offset:
        raise Failure(
            f"{topic}-{partition} has no message at offset {offset}: "
            f"{_why_not(offset, bounds_of(asked.cluster, topic, partition))}"
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
                (visible(name[:LIST_BYTES]), shown(value))
                for name, value in message.record.headers[:MAX_HEADERS]
            ],
            "headers_left": max(0, len(message.record.headers) - MAX_HEADERS),
            "batch": header,
            "codec": header.codec.name.lower(),
            "fate": message.batch.fate,
            "is_written": bool(asked.text("written")),
        },
    )


def row_of(
    topic: str, message: Message, most_bytes: int = LIST_BYTES, *, dump: bool = False
) -> dict[str, Any]:
    """What a list, or a page, shows of a message."""
    record, batch = message
    row: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": shown(record.key, most_bytes, dump=dump),
        "value": shown(record.value, most_bytes, dump=dump),
        "headers": len(record.headers),
        "fate": batch.fate,
        "said": None,
    }
    kind = KINDS.get(topic)
    try:
        if batch.fate is Fate.CONTROL:
            told = control(record)
        elif kind is not None:
            told = said_by(kind, record)
        else:
            return row
    except Misfit:
        return row
    row["said"] = shown(as_json(told).encode(), most_bytes)
    return row


def _read(asked: PageRequest, at: int, key: bytes | None) -> tuple[list[Message], int, Bounds]:
    def wanted(message: Message) -> bool:
        return message.record.key == key and message.batch.fate is not Fate.CONTROL

    topic, partition = asked.topic, asked.partition
    if key is None:
        return messages(asked.cluster, topic, partition, at, AT_ONCE)
    deadline = time.monotonic() + SEARCH_SECONDS

    def is_time_over() -> bool:
        return time.monotonic() > deadline

    topic_id = asked.cluster.topics([topic])[0].topic_id
    directory = own_directory(asked.place.log_dirs, topic, partition, topic_id)
    own = None if directory is None else OwnLog(directory, key, is_time_over)

    def pass_over(fetched: Fetched, offset: int, most_bytes: int) -> tuple[int, int]:
        # Only a leader's files are what the cluster agrees on, up to the high watermark that it tells.
        if own is None or fetched.leader != asked.place.node_id:
            return offset, 0
        return own.pass_over(offset, fetched.bounds.high_watermark, most_bytes)

    return at_leisure(
        lambda: messages(
            asked.cluster,
            topic,
            partition,
            at,
            AT_ONCE,
            wanted=wanted,
            most_bytes=SEARCHED_BYTES,
            is_time_over=is_time_over,
            pass_over=pass_over,
        )
    )


def _offset(asked: PageRequest, *, forwards: bool) -> int:
    """Where to begin, which may be where nothing is. UsageError."""
    one = asked.topic, asked.partition
    if given := asked.text("from"):
        return offsets_of(asked.cluster, given, [one], asked.now_ms, "from")[one]
    return 0 if forwards else max(0, find_offsets(asked.cluster, {one: LATEST})[one] - AT_ONCE)


def _nearest(at: int, bounds: Bounds) -> tuple[int, str]:
    """The nearest offset that there is, and what to say where that is another one."""
    if at < bounds.log_start:
        return (
            bounds.log_start,
            f"Offset {at} is gone: this begins at {bounds.log_start}, the first there is.",
        )
    if at > bounds.high_watermark:
        return (
            bounds.high_watermark,
            f"Offset {at} is not there yet: the next one is {bounds.high_watermark}.",
        )
    return at, ""


def _why_not(offset: int, bounds: Bounds) -> str:
    """Why an offset has no message, as far as that can be told."""
    if offset >= bounds.high_watermark or bounds.log_start == bounds.high_watermark:
        return f"the next one will be {bounds.high_watermark}"
    if offset < bounds.log_start:
        return f"the first that is left is {bounds.log_start}"
    return "it may have been compacted away, or be a transaction's marker"


def _key(text: str, form: str) -> bytes | None:
    """The bytes of a key that was typed. UsageError."""
    if form not in FORMS:
        raise UsageError(f"form is {form[:20]!r}: expected {' or '.join(FORMS)}")
    if not text:
        return None
    try:
        return encode(text, form)
    except Misfit as misfit:
        raise UsageError(f"the key is {misfit}") from misfit


def _count(asked: PageRequest) -> int:
    return len(asked.cluster.topics([asked.topic])[0].partitions)
