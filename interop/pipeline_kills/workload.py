"""The records of the source topics, which describe flights. One topic has offset gaps from transactions."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from interop.pipeline_kills.reading import Record, Records

EVENTS: Final = "events"
"""The topic that the job `replay` writes."""
FLIGHTS: Final = "flights"
"""A topic without offset gaps. One of its partitions has most of the records."""
BOOKINGS: Final = "bookings"
"""A topic with offset gaps: it is written in transactions, and some of them are aborted."""
PARTITIONS: Final = {FLIGHTS: 4, BOOKINGS: 2}
SHARE_PERCENT: Final = 84
"""The percentage of the records that are in the first partition."""
BOOKED: Final = 2_500
TRANSACTION_RECORDS: Final = 120
DAY_MS: Final = 86_400_000


def fill(bootstrap: str, events: Records) -> None:
    """Write both source topics from the records that the job `replay` has written."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [
        NewTopic(topic, count, 1, config={"retention.ms": "-1", "segment.bytes": "1048576"})
        for topic, count in PARTITIONS.items()
    ]
    for future in admin.create_topics(new).values():
        future.result(30)
    ordered = sorted(
        (record for records in events.values() for record in records), key=lambda one: one.timestamp_ms
    )
    records = list(varied(ordered))
    _write_flights(bootstrap, records)
    _write_bookings(bootstrap, records[:BOOKED])


def varied(records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records. Some of them get a late timestamp, no key, no value, or unusual headers."""
    for number, record in enumerate(records):
        if number % 50 == 7:
            record = record._replace(timestamp_ms=record.timestamp_ms - 3 * DAY_MS - number)
        if number % 70 == 11:
            record = record._replace(key=None)
        if number % 90 == 13:
            record = record._replace(value=None)
        if number % 40 == 17:
            record = record._replace(headers=(("n", None), ("n", b""), *record.headers))
        if number % 60 == 19:
            record = record._replace(headers=(), value=b"")
        yield record


def _partition(record: Record, count: int) -> int:
    rng = zlib.crc32(record.key or b"") % 100
    return 0 if rng < SHARE_PERCENT else 1 + rng % (count - 1)


def _write_flights(bootstrap: str, records: Sequence[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.size": 20_000})
    for record in records:
        _produce(producer, FLIGHTS, record)
    assert producer.flush(60) == 0


def _write_bookings(bootstrap: str, records: Sequence[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": BOOKINGS})
    producer.init_transactions(30)
    for number, start in enumerate(range(0, len(records), TRANSACTION_RECORDS)):
        producer.begin_transaction()
        for record in records[start : start + TRANSACTION_RECORDS]:
            _produce(producer, BOOKINGS, record)
        producer.flush(30)
        if number % 4 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def _produce(producer: Producer, topic: str, record: Record) -> None:
    producer.produce(
        topic,
        partition=_partition(record, PARTITIONS[topic]),
        key=record.key,
        value=record.value,
        timestamp=record.timestamp_ms,
        headers=list(record.headers),
    )
    producer.poll(0)
