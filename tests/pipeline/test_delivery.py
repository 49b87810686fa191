"""Delivery into a broker: each record once, by its own offset or a map, however often it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline import delivery
from pipeline.archive.manifest import DataFile
from pipeline.archive.reading import Wanted, by_partition
from pipeline.delivery import (
    MAP_SUFFIX,
    DeliveryError,
    Outgoing,
    Target,
    deliver_in_place,
    deliver_with_map,
    end_offset,
    offset_map,
    progress,
)
from pipeline.jobs.restore import AUTO, KEEP, SAME, RestoreConfig, create, create_topics
from tests.durability.child import Child

SECONDS = 30.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    where = tmp_path_factory.mktemp("broker")
    child = Child(where / "data", where / "log", {"offsets.topic.num.partitions": "1"})
    child.start()
    assert child.wait_until_it_serves()
    yield "{}:{}".format(*child.address)
    child.kill()


@pytest.fixture
def target(bootstrap: str, request: pytest.FixtureRequest) -> Target:
    topic = request.node.name.replace("[", ".").replace("]", "")
    client = {"bootstrap.servers": bootstrap, "log_level": "0"}
    create(AdminClient(dict(client)), {topic: 2}, KEEP)
    create(AdminClient(dict(client)), {topic + MAP_SUFFIX: 1}, {"cleanup.policy": "compact"})
    return Target(client, topic, 1, f"job-{topic}", transaction_records=3)


def outgoing(*offsets: int) -> Callable[[int], Iterator[Outgoing]]:
    def records_from(start: int) -> Iterator[Outgoing]:
        for offset in offsets:
            if offset >= start:
                yield Outgoing(
                    offset, 1000 + offset, b"k%d" % offset, b"v%d" % offset, [("h", b"%d" % offset)]
                )

    return records_from


def seen(target: Target) -> list[tuple[int, int, bytes, bytes, list[tuple[str, bytes]]]]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.client["bootstrap.servers"],
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(target.topic, target.partition, 0)])
    found = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, "the partition has no end"
        if message.error() is not None:
            consumer.close()
            return found
        _, timestamp = message.timestamp()
        found.append((message.offset(), timestamp, message.key(), message.value(), message.headers()))


def test_records_keep_their_offsets_timestamps_and_headers(target: Target) -> None:
    assert deliver_in_place(target, outgoing(0, 1, 2), 0) == (3, 3)
    assert seen(target) == [
        (offset, 1000 + offset, b"k%d" % offset, b"v%d" % offset, [("h", b"%d" % offset)])
        for offset in range(3)
    ]


def test_what_is_there_is_not_delivered_again(target: Target) -> None:
    deliver_in_place(target, outgoing(0, 1, 2), 0)
    assert deliver_in_place(target, outgoing(0, 1, 2), 0) == (0, 3)
    assert deliver_in_place(target, outgoing(0, 1, 2, 3), 0) == (1, 4)
    assert [offset for offset, *_ in seen(target)] == [0, 1, 2, 3]


def test_offsets_cannot_be_kept_over_a_gap(target: Target) -> None:
    with pytest.raises(DeliveryError, match="after 1 comes 3"):
        deliver_in_place(target, outgoing(0, 1, 3), 0)
    with pytest.raises(DeliveryError, match="and the first to come is 100"):
        deliver_in_place(target, outgoing(100), 100)


def test_somebody_else_who_writes_is_noticed(target: Target) -> None:
    def records_from(start: int) -> Iterator[Outgoing]:
        yield from outgoing(0)(start)
        producer = Producer(dict(target.client))
        producer.produce(target.topic, b"intruder", partition=target.partition)
        producer.flush(SECONDS)
        yield from outgoing(1)(start)

    with pytest.raises(DeliveryError, match="somebody else"):
        deliver_in_place(target, records_from, 0)


def test_a_map_says_which_offset_became_which(target: Target) -> None:
    offsets = [5, 6, 7, 8, 20, 21, 30]
    assert deliver_with_map(target, outgoing(*offsets), 0) == (7, 31)
    found = {
        source + step: there + step for source, there, count in offset_map(target) for step in range(count)
    }
    assert sorted(found) == offsets
    assert [(offset, key) for offset, _, key, *_ in seen(target)] == [
        (found[source], b"k%d" % source) for source in offsets
    ]
    assert end_offset(target) == 7 + 3  # three transactions, each with its marker
    assert progress(target) == 31


@pytest.mark.parametrize("fails_at", [1, 3, 4, 6])
def test_an_interrupted_delivery_goes_on_where_it_was(target: Target, fails_at: int) -> None:
    offsets = list(range(0, 16, 2))

    def failing(start: int) -> Iterator[Outgoing]:
        for number, record in enumerate(outgoing(*offsets)(start)):
            if number == fails_at:
                raise OSError("the disk is gone")
            yield record

    with pytest.raises(OSError, match="gone"):
        deliver_with_map(target, failing, 0)
    left = 8 - fails_at // 3 * 3
    assert deliver_with_map(target, outgoing(*offsets), 0) == (left, 15)
    assert deliver_with_map(target, outgoing(*offsets), 0) == (0, 15)
    assert [key for _, _, key, *_ in seen(target)] == [b"k%d" % offset for offset in offsets]
    mapped = [source for source, _, count in offset_map(target) for _ in range(count)]
    assert len(mapped) == 8


class LosesFatalErrors(Producer):
    """What confluent-kafka does by chance: a fatal error within flush gets lost on its way."""

    def flush(self, timeout: float = -1.0) -> int:
        try:
            return super().flush(timeout)
        except (KafkaException, SystemError):
            raise SystemError("flush returned NULL without setting an exception") from None


@pytest.mark.parametrize("kind", [Producer, LosesFatalErrors])
def test_an_older_one_of_the_same_job_is_fenced(
    target: Target, kind: type[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "TIMEOUT_SECONDS", 5.0)
    monkeypatch.setattr(delivery, "Producer", kind)

    def overtaken(start: int) -> Iterator[Outgoing]:
        yield from outgoing(0, 1)(start)
        assert deliver_with_map(target, outgoing(0, 1, 2), 0) == (3, 3)
        yield from outgoing(2)(start)

    with pytest.raises(Exception, match="fenced"):
        deliver_with_map(target, overtaken, 0)
    assert [key for _, _, key, *_ in seen(target)] == [b"k0", b"k1", b"k2"]


def test_a_restore_of_late_records_that_is_done_stays_as_it_is(target: Target, tmp_path: Path) -> None:
    # Offset 5 has a file of its own, of another date, which begins last and does not end last.
    files = [
        DataFile("a", target.topic, 1, "2026-01-31", 0, 9, 9, 100, ""),
        DataFile("b", target.topic, 1, "2026-01-28", 5, 5, 1, 100, ""),
    ]
    config = RestoreConfig(tmp_path, target.job, Wanted(), AUTO, "", target.client, KEEP, 3)
    for _ in range(2):
        assert create_topics(config, by_partition(files)) == {(target.topic, 1): SAME}
        deliver_in_place(target, outgoing(*range(10)), 0)
    assert end_offset(target) == 10
