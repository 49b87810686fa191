"""The form that produces a message."""

from __future__ import annotations

import random
from typing import Final

from kwire.cli.records.formats import SCHEMALESS_FORMATS, encode
from kwire.cli.records.partitioner import partition_for_key
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import FormatMismatch
from kwire.client.producer import TopicProducer
from kwire.console.page import PageRequest, PageResult, Redirect

MAX_HEADERS: Final = 100


def produce(request: PageRequest) -> PageResult:
    """Produce a message with acks=all, and redirect to the page of the message."""
    (topic,) = request.cluster.topics([request.topic])
    if topic.is_internal:
        raise CommandError(f"{request.topic} is an internal topic: the console does not write to it")
    partitions = sorted(one.partition_index for one in topic.partitions)
    key = None if not request.form.get("key") else _bytes(request, "key")
    value = None if request.form.get("null") else _bytes(request, "value")
    partition = request.number("partition")
    if partition is None:
        partition = random.choice(partitions) if key is None else partition_for_key(key, len(partitions))
    elif partition not in partitions:
        raise UsageError(f"topic {request.topic} has partitions 0 to {partitions[-1]}, not {partition}")
    sending = TopicProducer(request.cluster, request.topic)
    sending.send({partition: [(request.now_ms, key, value, _headers(request.form.get("headers", "")))]})
    return Redirect(f"topics/{request.topic}/{partition}/{sending.first_offset(partition)}?written=1")


def _bytes(request: PageRequest, name: str) -> bytes:
    form = request.form.get(f"{name}_form", SCHEMALESS_FORMATS[0])
    if form not in SCHEMALESS_FORMATS:
        raise UsageError(f"{name}_form is {form[:20]!r}: expected {', '.join(SCHEMALESS_FORMATS)}")
    # Browsers send the lines of a form with CR LF.
    text = request.form.get(name, "").replace("\r\n", "\n")
    try:
        return encode(text, form)
    except FormatMismatch as mismatch:
        raise UsageError(f"the {name} is {mismatch}") from mismatch


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """Parse headers, one NAME=TEXT per line. Raises UsageError."""
    found: list[tuple[str, bytes | None]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"the header {line[:40]!r} is invalid: expected NAME=TEXT, one per line")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > MAX_HEADERS:
        raise UsageError(f"there are {len(found)} headers: this form accepts at most {MAX_HEADERS}")
    return found
