"""Delivery to a broker: each record once after interruptions, with the same offsets or a map."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kwire.pipeline import delivery
from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.reading import RecordFilter, by_partition
from kwire.pipeline.delivery import (
    MAP_SUFFIX,
    DeliveryError,
    Outgoing,
    Target,
    deliver_same_offsets,
    deliver_with_map,
    end_offset,
    offset_map,
    progress,
)
from kwire.pipeline.jobs.restore import (
    AUTO,
    KEEP_FOREVER,
    MAP,
    SAME,
    CountingRecords,
    RestoreConfig,
    Restored,
    create_topics,
    run,
)
from kwire.pipeline.origin import UNKNOWN, Origin
from kwire.pipeline.restore.selection import Selection
from kwire.pipeline.topics import create
from tests.durability.child import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 30.0
SET = AlterConfigOpType.SET
FAR_MS = 9_000_000_000_000
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    where = tmp_path_factory.mktemp("broker")
    child = BrokerProcess(where / "data", where / "log", {"offsets.topic.num.partitions": "1"})
    child.start()
    assert child.wait_until_it_serves()
    yield "{}:{}".format(*child.address)
    child.kill()


@pytest.fixture
def target(bootstrap: str, request: pytest.FixtureRequest) -> Target:
    topic = request.node.name.replace("[", ".").replace("]", "")
    client = {"bootstrap.servers": bootstrap, "log_level": "0"}
    create(AdminClient(dict(client)), {topic: 2}, KEEP_FOREVER)
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


def seen(target: Target) -> list[tuple[Any, ...]]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.client["bootstrap.servers"],
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(target.topic, target.partition, 0)])
    found: list[tuple[Any, ...]] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, "the partition has no end"
        if message.error() is not None:
            consumer.close()
            return found
        _, timestamp = message.timestamp()
        found.append((message.offset(), timestamp, message.key(), message.value(), message.headers()))


def test_records_keep_their_offsets_timestamps_and_headers(target: Target) -> None:
    assert deliver_same_offsets(target, outgoing(0, 1, 2), 0) == (3, 3)
    assert seen(target) == [
        (offset, 1000 + offset, b"k%d" % offset, b"v%d" % offset, [("h", b"%d" % offset)])
        for offset in range(3)
    ]


def test_existing_records_are_not_delivered_again(target: Target) -> None:
    deliver_same_offsets(target, outgoing(0, 1, 2), 0)
    assert deliver_same_offsets(target, outgoing(0, 1, 2), 0) == (0, 3)
    assert deliver_same_offsets(target, outgoing(0, 1, 2, 3), 0) == (1, 4)
    assert [offset for offset, *_ in seen(target)] == [0, 1, 2, 3]


def test_offsets_cannot_be_preserved_over_a_gap(target: Target) -> None:
    with pytest.raises(DeliveryError, match="no offset between 1 and 3"):
        deliver_same_offsets(target, outgoing(0, 1, 3), 0)
    with pytest.raises(DeliveryError, match="before the first offset 100"):
        deliver_same_offsets(target, outgoing(100), 100)


def of_now(*sizes: int, far: int = -1) -> Callable[[int], Iterator[Outgoing]]:
    """Build records of the given sizes with current timestamps, except one."""

    def records_from(start: int) -> Iterator[Outgoing]:
        for offset, size in enumerate(sizes):
            if offset >= start:
                value = random.Random(offset).randbytes(size)
                yield Outgoing(offset, FAR_MS if offset == far else NOW_MS, None, value, [])

    return records_from


@pytest.mark.parametrize("deliver", [deliver_same_offsets, deliver_with_map])
def test_a_rejected_record_is_named(target: Target, deliver: Any) -> None:
    topic = target._replace(topic=target.topic + ".strict", transaction_records=10)
    client = AdminClient(dict(topic.client))
    settings = {"max.message.bytes": "4000000", "message.timestamp.after.max.ms": "3600000"}
    create(client, {topic.topic: 2}, settings)
    create(client, {topic.topic + MAP_SUFFIX: 1}, {"cleanup.policy": "compact"})
    begin = f"not all records were delivered to {topic.name}: offset 2 of the source: Broker: "
    with pytest.raises(DeliveryError) as caught:
        deliver(topic, of_now(1, 1, 1, 1, far=2), 0)
    assert str(caught.value).startswith(f"{begin}Invalid timestamp, which is {FAR_MS} ms (raise message.")


@pytest.mark.parametrize("deliver", [deliver_same_offsets, deliver_with_map])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (1, 3), (1_000, 2_000)])
def test_many_records_of_the_future_are_rejected_with_the_setting_to_raise(
    target: Target, deliver: Any, first: int, count: int
) -> None:
    topic = target._replace(topic=target.topic + ".strict")
    client = AdminClient(dict(topic.client))
    create(client, {topic.topic: 2}, {"message.timestamp.after.max.ms": "3600000"})
    create(client, {topic.topic + MAP_SUFFIX: 1}, {"cleanup.policy": "compact"})

    def records_from(start: int) -> Iterator[Outgoing]:
        for offset in range(start, count):
            yield Outgoing(offset, FAR_MS if offset >= first else NOW_MS, b"k", bytes(100), [])

    begin = f"not all records were delivered to {topic.name}: offset {first} of the source: Broker: "
    with pytest.raises(DeliveryError) as caught:
        deliver(topic, records_from, 0)
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(f" is {FAR_MS} ms (raise message.timestamp.after.max.ms of the topic)")
    alter = ConfigEntry("message.timestamp.after.max.ms", str(1 << 62), incremental_operation=SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.topic, incremental_configs=[alter])
    client.incremental_alter_configs([resource])[resource].result(SECONDS)
    assert deliver(topic, records_from, 0)[1] == count


def test_a_record_that_is_too_large_is_named(target: Target) -> None:
    client = AdminClient(dict(target.client))
    topic = target._replace(topic=target.topic + ".strict", transaction_records=10)
    create(client, {topic.topic: 2}, {"max.message.bytes": "4000000"})
    with pytest.raises(DeliveryError) as caught:
        deliver_same_offsets(topic, of_now(1, 1, 5_000_000), 0)
    assert str(caught.value) == (
        f"not all records were delivered to {topic.name}: offset 2 of the source: Broker: "
        f"Message size too large, which is 5000000 bytes (see max.message.bytes of the topic)"
    )
    assert deliver_same_offsets(topic, of_now(1, 1, 3_000_000), 0) == (1, 3)


def test_a_record_above_the_client_limit_is_named(target: Target) -> None:
    small = target._replace(client={**target.client, "message.max.bytes": "20000"})
    with pytest.raises(
        DeliveryError, match=r"cannot send offset 1 of the source to .*: the record is larger than"
    ):
        deliver_same_offsets(small, of_now(1, 30_000), 0)


def test_another_producer_is_detected(target: Target) -> None:
    def records_from(start: int) -> Iterator[Outgoing]:
        yield from outgoing(0)(start)
        producer = Producer(dict(target.client))
        producer.produce(target.topic, b"intruder", partition=target.partition)
        producer.flush(SECONDS)
        yield from outgoing(1)(start)

    with pytest.raises(DeliveryError, match="another program"):
        deliver_same_offsets(target, records_from, 0)


def test_the_map_has_source_and_target_offsets(target: Target) -> None:
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
def test_an_interrupted_delivery_continues_where_it_stopped(target: Target, fails_at: int) -> None:
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


SHOP = Origin("east", "t", "id-1")
WHOLE = Selection.of(RecordFilter(), SHOP)


@pytest.mark.parametrize(
    ("wanted", "origin"),
    [
        (RecordFilter(), SHOP),
        (RecordFilter(end_offset=7), SHOP),
        (RecordFilter(start_offset=3), SHOP),
        (RecordFilter(frozenset("t")), SHOP._replace(cluster=UNKNOWN, topic_id=UNKNOWN)),
    ],
)
def test_a_job_with_a_map_continues_with_new_records(wanted: RecordFilter, origin: Origin) -> None:
    for told in (WHOLE.encode(), ""):
        Selection.of(wanted, origin).check_continues("t-1", "job", told)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (RecordFilter(start_offset=50), RecordFilter(end_offset=50)),
        (RecordFilter(start_offset=50), RecordFilter()),
        (RecordFilter(end_ms=5), RecordFilter(start_ms=5)),
        (RecordFilter(end_ms=5), RecordFilter(end_ms=6)),
    ],
)
def test_a_job_with_a_map_refuses_another_range(
    target: Target, first: RecordFilter, then: RecordFilter
) -> None:
    def deliver(wanted: RecordFilter, job: str) -> tuple[int, int]:
        selection = Selection.of(wanted, SHOP)
        return deliver_with_map(
            target._replace(job=job),
            outgoing(*range(60)),
            wanted.start_offset,
            origin=selection.encode(),
            check_continues=partial(selection.check_continues, target.name, job),
        )

    [(count, _), again] = [deliver(first, "one") for _ in range(2)]
    assert again == (0, 60)
    with pytest.raises(
        DeliveryError, match=f"the job one has restored another range of offsets or times to {target.name}"
    ):
        deliver(then, "one")
    assert len(seen(target)) == count
    assert deliver(then, "two")[0] == 60 - then.start_offset


@pytest.mark.parametrize(
    ("origin", "what"),
    [
        (SHOP._replace(topic_id="id-2"), "a topic t that was deleted and recreated since"),
        (SHOP._replace(cluster="west"), "topic t of cluster east"),
        (SHOP._replace(topic="u"), "topic t of cluster east"),
    ],
)
def test_a_job_with_a_map_refuses_another_topic(origin: Origin, what: str) -> None:
    with pytest.raises(DeliveryError) as raised:
        Selection.of(RecordFilter(), origin).check_continues("t-1", "job", WHOLE.encode())
    assert str(raised.value) == (
        f"the job job has restored records of {what} to t-1, so the job would skip other records: "
        f"choose another restore.job"
    )


class LosesFatalErrors(Producer):
    """A producer that loses a fatal error in flush, as confluent-kafka sometimes does."""

    def flush(self, timeout: float = -1.0) -> int:
        try:
            return super().flush(timeout)
        except (KafkaException, SystemError):
            raise SystemError("flush returned NULL without setting an exception") from None


@pytest.mark.parametrize("kind", [Producer, LosesFatalErrors])
def test_an_older_delivery_of_the_same_job_is_fenced(
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


def dense(target: Target, end: int) -> list[DataFile]:
    """Return files with all offsets before `end`. Offset 5 has a file of its own, with another date."""
    return [
        DataFile("a", target.topic, 1, "2026-01-31", 0, end - 1, end - 1, 100, ""),
        DataFile("b", target.topic, 1, "2026-01-28", 5, 5, 1, 100, ""),
    ]


def way(archive: Path, target: Target, files: list[DataFile], **changed: Any) -> str:
    """Return the mode of a restore of these files."""
    config = RestoreConfig(archive, target.job, RecordFilter(), AUTO, "", target.client, KEEP_FOREVER, 3)
    [mode] = create_topics(config._replace(**changed), by_partition(files)).values()
    return mode


def test_partitions_without_records_are_created(target: Target, tmp_path: Path) -> None:
    config = RestoreConfig(tmp_path, target.job, RecordFilter(), AUTO, ".r", target.client, KEEP_FOREVER, 3)
    files = by_partition(dense(target, 10))
    known = [(target.topic, 0), (target.topic, 1), (target.topic, 4), ("of.none", 2), ("of.few", 3)]
    create(AdminClient(dict(target.client)), {"of.few.r": 1})
    assert create_topics(config, files, known) == {(target.topic, 1): SAME}
    topics = AdminClient(dict(target.client)).list_topics(timeout=SECONDS).topics
    counts = {name: len(topics[name].partitions) for name in topics}
    assert counts[target.topic + ".r"] == 5
    assert counts["of.none.r"] == 3
    # An earlier version created it, and the restore continues.
    assert counts["of.few.r"] == 1


@pytest.mark.parametrize(
    ("topic", "suffix", "why"),
    [
        ("__transaction_state", "", "__transaction_state cannot be restored, because the records describe"),
        ("__transaction_state", ".r", "__transaction_state cannot be restored, because the records describe"),
        ("__consumer", "_offsets", "__consumer_offsets is an internal topic of the target"),
    ],
)
def test_internal_topics_are_refused_before_a_topic_is_created(
    bootstrap: str, tmp_path: Path, topic: str, suffix: str, why: str
) -> None:
    archive = Archive(tmp_path)
    archive.add(Commit(-1, "job", 0, {topic: {0: (0, 9)}, "before.internal": {0: (0, 1)}}, []))
    client = {"bootstrap.servers": bootstrap}
    config = RestoreConfig(tmp_path, "j", RecordFilter(), AUTO, suffix, client, KEEP_FOREVER, 3)
    with pytest.raises(ArchiveError, match=why):
        run(cast("SparkSession", None), config)
    assert f"before.internal{suffix}" not in AdminClient(dict(client)).list_topics(timeout=SECONDS).topics


def test_records_with_timestamp_0_are_counted(target: Target) -> None:
    def records_from(start: int) -> Iterator[Outgoing]:
        for offset in range(start, 3):
            yield Outgoing(offset, offset // 2, None, b"v", [])

    source = CountingRecords(records_from)
    assert deliver_same_offsets(target, source, 0) == (3, 3)
    assert source.zero_timestamps == 2
    assert [time_ms for _, time_ms, *_ in seen(target)] == [1, 1, 1]
    told = str(Restored("t", 0, SAME, 3, 3, source.zero_timestamps))
    assert told == "t-0: 3 records, offsets: same, 2 with the timestamp 1 instead of 0"
    assert deliver_same_offsets(target, source, 0) == (0, 3)
    assert source.zero_timestamps == 0


def intrude(target: Target) -> None:
    producer = Producer(dict(target.client))
    producer.produce(target.topic, b"intruder", partition=target.partition)
    assert producer.flush(SECONDS) == 0


def test_a_completed_restore_of_late_records_stays_complete(target: Target, tmp_path: Path) -> None:
    for _ in range(2):
        assert way(tmp_path, target, dense(target, 10)) == SAME
        deliver_same_offsets(target, outgoing(*range(10)), 0)
    assert end_offset(target) == 10


def test_records_of_another_producer_after_a_killed_restore_are_detected(
    target: Target, tmp_path: Path
) -> None:
    assert way(tmp_path, target, dense(target, 10)) == SAME
    deliver_same_offsets(target, outgoing(*range(6)), 0)  # then the restore is killed
    intrude(target)
    assert way(tmp_path, target, dense(target, 10)) == SAME, "it may be the restore's own"
    for _ in range(2):
        with pytest.raises(DeliveryError, match="differs from the source at offset 6"):
            deliver_same_offsets(target, outgoing(*range(10)), 0)
    assert end_offset(target) == 7


def test_a_restore_with_the_same_offsets_continues_when_the_archive_grows(
    target: Target, tmp_path: Path
) -> None:
    assert way(tmp_path, target, dense(target, 10)) == SAME
    deliver_same_offsets(target, outgoing(*range(7)), 0)  # then the restore is killed
    for end in (10, 20, 20):
        assert way(tmp_path, target, dense(target, end), job="another") == SAME
        deliver_same_offsets(target, outgoing(*range(end)), 0)
    assert end_offset(target) == 20


def test_a_restore_that_preserved_offsets_does_not_switch_to_a_map(target: Target, tmp_path: Path) -> None:
    assert way(tmp_path, target, dense(target, 10)) == SAME
    deliver_same_offsets(target, outgoing(*range(10)), 0)
    begin = f"cannot continue to restore {target.name} with the offsets of {tmp_path}: "
    after = '; choose another suffix, or offsets = "map" to send all records again'
    gap = [*dense(target, 10), DataFile("c", target.topic, 1, "2026-02-01", 12, 19, 8, 100, "")]
    with pytest.raises(ArchiveError) as caught:
        way(tmp_path, target, gap)
    assert str(caught.value) == f"{begin}the archive now lacks 2 of the offsets below 20{after}"
    with pytest.raises(ArchiveError) as caught:
        way(tmp_path, target, dense(target, 10), wanted=RecordFilter(start_ms=5))
    assert str(caught.value) == f"{begin}only a part of the archive is selected now{after}"
    intrude(target)
    for end in (10, 20):
        with pytest.raises(ArchiveError) as caught:
            way(tmp_path, target, dense(target, end))
        why = f"{target.name} ends at offset 11, not 10: another program writes to it"
        assert str(caught.value) == f"{begin}{why}{after}"
    assert way(tmp_path, target, gap, offsets=MAP) == MAP
    deliver_with_map(target, outgoing(12), 0)
    assert way(tmp_path, target, gap) == MAP, "what was asked for goes on"


def test_a_restore_killed_before_its_first_record_may_use_a_map(target: Target, tmp_path: Path) -> None:
    assert way(tmp_path, target, dense(target, 10)) == SAME
    gap = [*dense(target, 10), DataFile("c", target.topic, 1, "2026-02-01", 12, 19, 8, 100, "")]
    assert way(tmp_path, target, gap) == MAP


def test_explicitly_preserved_offsets_are_recorded(target: Target, tmp_path: Path) -> None:
    assert way(tmp_path, target, dense(target, 10), offsets=SAME) == SAME
    deliver_same_offsets(target, outgoing(*range(10)), 0)
    assert way(tmp_path, target, dense(target, 10)) == SAME
    assert way(tmp_path / "of another archive", target, dense(target, 10)) == MAP


def test_a_recreated_topic_has_no_preserved_offsets(target: Target, tmp_path: Path) -> None:
    assert way(tmp_path, target, dense(target, 10)) == SAME
    deliver_same_offsets(target, outgoing(*range(10)), 0)
    admin = AdminClient(dict(target.client))
    admin.delete_topics([target.topic])[target.topic].result(SECONDS)
    create(admin, {target.topic: 2}, KEEP_FOREVER)
    intrude(target)
    assert way(tmp_path, target, dense(target, 10)) == MAP


def test_an_archive_that_cannot_record_preserved_offsets_is_an_error(target: Target, tmp_path: Path) -> None:
    (tmp_path / "_restores").touch()
    with pytest.raises(ArchiveError, match=r'cannot record .* offsets to "same" or "map"'):
        way(tmp_path, target, dense(target, 10))
    assert way(tmp_path, target, dense(target, 10), offsets=SAME) == SAME
    (tmp_path / "_restores").unlink()
    assert way(tmp_path, target, dense(target, 10)) == SAME
    [memory] = (tmp_path / "_restores").glob("*/*/1.json")
    memory.write_text("{")
    with pytest.raises(ArchiveError, match=r"1\.json does not describe a restore"):
        way(tmp_path, target, dense(target, 10))
