"""A message that a form has given, written into a topic."""

from __future__ import annotations

import random
from typing import Final

from kwire.cli.records.formats import WRITTEN, encode
from kwire.cli.records.partitioner import partition_of
from kwire.cli.shared.failure import Failure, Misfit, UsageError
from kwire.client.sending import Sending
from kwire.console.asked import PageAnswer, PageRequest, Redirect

MAX_HEADERS: Final = 100


def produce(asked: PageRequest) -> PageAnswer:
    """Write it, with acks of all replicas, and go to where it is. UsageError, Failure, ApiError."""
    (topic,) = asked.cluster.topics([asked.topic])
    if topic.is_internal:
        raise Failure(f"{asked.topic} is kept by brokers, and not written to from here")
    there = sorted(one.partition_index for one in topic.partitions)
    key = None if not asked.form.get("key") else _bytes(asked, "key")
    value = None if asked.form.get("null") else _bytes(asked, "value")
    partition = asked.number("partition")
    if partition is None:
        partition = random.choice(there) if key is None else partition_of(key, len(there))
    elif partition not in there:
        raise UsageError(f"topic {asked.topic} has partitions 0 to {there[-1]}, and not {partition}")
    sending = Sending(asked.cluster, asked.topic)
    sending.send({partition: [(asked.now_ms, key, value, _headers(asked.form.get("headers", "")))]})
    return Redirect(f"topics/{asked.topic}/{partition}/{sending.first_offset(partition)}?written=1")


def _bytes(asked: PageRequest, name: str) -> bytes:
    form = asked.form.get(f"{name}_form", WRITTEN[0])
    if form not in WRITTEN:
        raise UsageError(f"{name}_form is {form[:20]!r}: expected {', '.join(WRITTEN)}")
    # A browser ends the lines of a form with CR LF, whatever was typed.
    text = asked.form.get(name, "").replace("\r\n", "\n")
    try:
        return encode(text, form)
    except Misfit as misfit:
        raise UsageError(f"the {name} is {misfit}") from misfit


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """A line each, NAME=TEXT. UsageError."""
    found: list[tuple[str, bytes | None]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"a header is {line[:40]!r}: expected NAME=TEXT, a line each")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > MAX_HEADERS:
        raise UsageError(f"{len(found)} headers are more than the {MAX_HEADERS} that this form takes")
    return found
