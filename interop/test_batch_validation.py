"""Validation of produced batches, compared with Apache Kafka's LogValidator on valid and damaged batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from interop.batch_mutations import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    TopicConfig,
    random_batch,
    random_topic,
    unusual_streams,
)
from interop.batches import BASE_TIMESTAMP
from interop.java_outputs import java_outputs
from kwire.broker.storage.log.log_config import CLIENT, LogConfig
from kwire.broker.storage.log.validator import RecordErrors, check_produced, leading_header, validate
from kwire.wire.batch import read_header, records
from kwire.wire.errors import ApiError

BATCHES = int(os.environ.get("INTEROP_BATCHES", "10000"))
"""The number of batches per codec."""
MAX_STRICTER = 0.001
"""The share of batches that kwire alone may reject, of those that a Java consumer can read."""
MAX_OTHER_ERRORS = 0.06
"""The share of compressed batches that kwire may reject with another error than Apache Kafka."""
NOW_MS = BASE_TIMESTAMP + 1000
CODECS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


@dataclass
class Verdict:
    """The result of a broker's validation of a batch."""

    accepted: bool
    error: str = ""
    message: str = ""
    record_errors: list[str] | None = None
    stored: bytes = b""
    is_readable: bool = True


def verdicts_of_kafka(batches: list[tuple[TopicConfig, bytes]]) -> Iterator[Verdict]:
    lines = (
        f"{'none' if topic.compression == 'uncompressed' else topic.compression} {topic.timestamp_type} "
        f"{topic.before_max_ms} {topic.after_max_ms} {str(topic.compact).lower()} {NOW_MS} {batch.hex()}"
        for topic, batch in batches
    )
    for line in java_outputs("BatchValidation", lines):
        outcome, *rest = line.split("\t")
        if outcome == "accepted":
            yield Verdict(True, stored=bytes.fromhex(rest[1]), is_readable=rest[0] == "readable")
        else:
            yield Verdict(False, rest[0], rest[1], rest[2:])


def verdict_of_kwire(topic: TopicConfig, batch: bytes) -> Verdict:
    config = LogConfig(
        compression_type=topic.compression,
        message_timestamp_type=topic.timestamp_type,
        message_timestamp_before_max_ms=topic.before_max_ms,
        message_timestamp_after_max_ms=topic.after_max_ms,
        cleanup_policy=frozenset({"compact"} if topic.compact else {"delete"}),
    )
    try:
        produced = memoryview(bytearray(batch))
        data = check_produced(produced, leading_header(produced), 9)
        stored = validate(data, config, now_ms=NOW_MS, origin=CLIENT, partition="t-0").data
    except RecordErrors as error:
        return Verdict(
            False, error.code.name, error.message or "", [f"{index} {text}" for index, text in error.records]
        )
    except ApiError as error:
        return Verdict(False, error.code.name, error.message or "", [])
    return Verdict(True, stored=bytes(stored))


@pytest.mark.parametrize("codec", CODECS)
def test_kwire_accepts_what_apache_kafka_accepts(codec: str) -> None:
    """Compare verdicts, errors, messages of record errors, and the headers and records of stored batches."""
    random = Random(f"{codec} batches")
    batches = [(random_topic(random), random_batch(random, CODECS[codec])) for _ in range(BATCHES)]
    stricter = accepted = other_errors = 0
    for (topic, batch), kafka in zip(batches, verdicts_of_kafka(batches), strict=True):
        kwire = verdict_of_kwire(topic, batch)
        accepted += kafka.accepted
        context = f"{topic} {batch.hex()}\nApache Kafka: {kafka}\nkwire: {kwire}"
        if kwire.accepted:
            assert kafka.accepted, f"only kwire accepts a batch: {context}"
            assert kafka.is_readable, f"kwire accepts a batch that no Java consumer can read: {context}"
            assert content(kwire.stored) == content(kafka.stored), context
        elif kafka.accepted:
            stricter += kafka.is_readable
        else:
            # Kafka decompresses while it validates records, so its error is that of the first fault.
            other_errors += kwire.error != kafka.error
            if codec == "uncompressed":
                assert kwire.error == kafka.error, context
                # Kafka's message about the timestamp type contains the Java class of the record.
                if kafka.record_errors and not any("timestamp type" in text for text in kafka.record_errors):
                    assert (kwire.message, kwire.record_errors) == (kafka.message, kafka.record_errors), (
                        context
                    )
    assert accepted > BATCHES / 5
    assert other_errors <= MAX_OTHER_ERRORS * BATCHES, f"{other_errors} of {BATCHES} errors differ"
    assert stricter <= MAX_STRICTER * BATCHES, f"kwire alone rejects {stricter} of {BATCHES} batches"


def test_kwire_accepts_no_unusual_stream_that_apache_kafka_rejects() -> None:
    """Streams with empty or false headers, members and blocks, for which Java's readers have own rules."""
    names, batches = zip(*unusual_streams(Random("unusual streams")), strict=True)
    verdicts = verdicts_of_kafka([(TopicConfig(), batch) for batch in batches])
    agreed = 0
    for name, batch, kafka in zip(names, batches, verdicts, strict=True):
        kwire = verdict_of_kwire(TopicConfig(), batch)
        assert not kwire.accepted or (kafka.accepted and kafka.is_readable), f"{name}: {kafka} {kwire}"
        agreed += kwire.accepted == kafka.accepted
    assert agreed > len(batches) / 2


def content(batch: bytes) -> tuple[object, ...]:
    """Return a batch's header and records, without what depends on the compressor: the CRC and the length."""
    header = read_header(batch)
    found = list(records(batch, 0, header._replace(base_offset=0)))
    return (*header._replace(base_offset=0, leader_epoch=0, crc=0, batch_length=0), found)
