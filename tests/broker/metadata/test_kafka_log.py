"""A metadata log of Apache Kafka 4.3.1: first start, changes of every kind, clean and unclean shutdowns.

Kafka's own snapshots of this log are the reference: kwire's image at each offset must equal them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.metadata.batches import MetadataBatch, TransactionFilter, decode_batches
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC, MetadataImage
from kwire.broker.metadata.snapshot import snapshot_records
from kwire.wire.batch import batches, records
from kwire.wire.records.metadata import ConfigRecord
from kwire.wire.registry import decode_metadata_record, encode_record

DATA = Path(__file__).parent / "data"
LOG = (DATA / "kafka-4.3.1-metadata.log").read_bytes()


def replay(decoded: list[MetadataBatch], up_to_offset: int | None = None) -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    transactions = TransactionFilter()
    last = MetadataBatch(-1, -1, -1, [])
    for batch in decoded:
        if up_to_offset is not None and batch.base_offset >= up_to_offset:
            break
        delta.replay_all(transactions.feed(batch.records))
        last = batch
    assert not transactions.is_open
    return delta.apply(last.last_offset, last.epoch)


def content(image: MetadataImage) -> dict[str, Any]:
    """Return the fields of an image, except its position in the log."""
    return {slot: getattr(image, slot) for slot in MetadataImage.__slots__ if slot not in ("offset", "epoch")}


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("0*.checkpoint")))
def test_the_log_replayed_to_a_snapshot_equals_the_snapshot(name: str) -> None:
    offset = int(name.split("-")[0])
    from_log = content(replay(list(decode_batches(LOG)), offset))
    from_snapshot = content(replay(list(decode_batches((DATA / name).read_bytes()))))
    assert set(from_log) == set(from_snapshot)
    for part, value in from_snapshot.items():
        if part == "configs":
            # After a restart, Kafka's snapshots keep the configuration of a topic that was deleted before.
            value = {
                (kind, name): values
                for (kind, name), values in value.items()
                if kind != RESOURCE_TOPIC or name in from_snapshot["topics"]
            }
        # Colliding names are in the order of creation, and a snapshot does not preserve that order.
        if part == "colliding_names":
            assert {key: set(names) for key, names in from_log[part].items()} == {
                key: set(names) for key, names in value.items()
            }
        else:
            assert from_log[part] == value, part


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("0*.checkpoint")))
def test_snapshot_records_equal_those_of_kafkas_snapshot(name: str) -> None:
    data = (DATA / name).read_bytes()
    theirs = Counter(
        bytes(record.value or b"")
        for position, header in batches(data)
        if not header.is_control
        for record in records(data, position, header)
    )
    image = replay(list(decode_batches(data)))
    written = list(snapshot_records(image))
    assert len(written) > 20
    ours = Counter(encode_record(record, version) for record, version in written)
    extra = [decode_metadata_record(value) for value in (ours - theirs)]
    missing = [decode_metadata_record(value) for value in (theirs - ours)]
    # After a restart, Kafka's snapshots keep the configuration of a topic that was deleted before.
    missing = [
        record
        for record in missing
        if not (isinstance(record, ConfigRecord) and record.resource_name not in image.topics)
    ]
    assert (extra, missing) == ([], [])


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("0*.checkpoint")))
def test_replaying_the_records_of_an_image_restores_it(name: str) -> None:
    image = replay(list(decode_batches(LOG)), int(name.split("-")[0]))
    delta = MetadataDelta(MetadataImage())
    for record, version in snapshot_records(image):
        delta.replay(decode_metadata_record(encode_record(record, version)))
    assert content(delta.apply(image.offset, image.epoch)) == content(image)


def test_every_record_is_encoded_byte_for_byte() -> None:
    kinds: Counter[str] = Counter()
    for position, header in batches(LOG):
        if header.is_control:
            continue
        for record in records(LOG, position, header):
            assert record.value is not None
            decoded = decode_metadata_record(record.value)
            kinds[type(decoded).__name__] += 1
            version = record.value[2]  # frame version, type and version are one byte each
            assert encode_record(decoded, version) == record.value
    assert len(kinds) == 17
    assert kinds["PartitionRecord"] == 73


def test_the_image_contains_every_change_in_the_log() -> None:
    image = replay(list(decode_batches(LOG)))
    assert sorted(image.topics) == [
        "__consumer_offsets",
        "a.b",
        "autoc",
        "big0",
        "big1",
        "conf",
        "plain",
    ]
    assert len(image.topics["plain"].partitions) == 5
    assert image.topics_by_id[image.topics["plain"].topic_id] is image.topics["plain"]
    assert image.colliding_names["a_b"] == ("a.b",)
    assert image.config(RESOURCE_TOPIC, "conf") == {"cleanup.policy": "compact", "retention.ms": "60000"}
    assert image.config(RESOURCE_TOPIC, "gone") == {}
    assert image.config(RESOURCE_BROKER, "") == {"log.retention.ms": "7000000", "min.insync.replicas": "1"}
    assert image.config(RESOURCE_GROUP, "g") == {"consumer.session.timeout.ms": "46000"}
    assert image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert image.next_producer_id == 1000
    assert image.quotas == {
        (("client-id", None), ("user", "bob")): {"producer_byte_rate": 777.0, "consumer_byte_rate": 99.0}
    }
    assert [acl.resource_name for acl in image.acls.values()] == ["plain"]
    assert [name for _, name in image.scram_credentials] == ["alice"]
    assert image.brokers[1].endpoints["PLAINTEXT"].port == 26192
    assert image.brokers[1].fenced, "the log ends with a clean shutdown"
    plain = image.topics["plain"].partitions[0]
    assert (plain.leader, plain.isr, plain.elr, plain.last_known_elr) == (-1, (), (1,), (1,))
