"""A mirror without Spark: offset maps, recovery, refused targets and group offsets."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kwire.pipeline import delivery, offset_map
from kwire.pipeline.config import ConfigError, Input, JobConfig
from kwire.pipeline.delivery import MappedDelivery, Outgoing, Target
from kwire.pipeline.jobs.mirror import CLAIM, Mirror, MirrorConfig, claim_checkpoint
from kwire.pipeline.mirror.groups import (
    ACTIVE,
    COMMITTED,
    NOT_MIRRORED,
    NOT_MOVED_BACK,
    SAME,
    GroupOffsetSync,
)
from kwire.pipeline.mirror.micro_batches import (
    PartitionPlan,
    PartitionRange,
    checkpoint_ranges,
    deliver_batches,
    first_offset,
)
from kwire.pipeline.mirror.source import FileSource, KafkaSource, SourceTopic, end_offsets
from kwire.pipeline.offset_map import MAP_SUFFIX, DeliveryError, MapEntry, OffsetRun, committed_reader
from kwire.pipeline.origin import Origin
from tests.durability.child import BrokerProcess

SECONDS = 30.0


class Cluster(NamedTuple):
    """A broker and its data directory."""

    bootstrap: str
    data: Path
    admin: Any = None

    @property
    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap, "log_level": "0"}

    def make(self, topic: str, partitions: int, **settings: str) -> None:
        config = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in settings.items()}}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(SECONDS)

    def produce(self, topic: str, partition: int, *values: bytes) -> None:
        producer = Producer(self.client)
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=partition, timestamp=1000 + number)
        assert producer.flush(SECONDS) == 0

    def records(self, topic: str, partition: int = 0) -> list[Any]:
        """Return the committed records."""
        consumer = committed_reader(self.client, "reader")
        found = list(offset_map.messages(consumer, TopicPartition(topic, partition), 0))
        consumer.close()
        return found

    def values(self, topic: str, partition: int = 0) -> list[Any]:
        return [record.value() for record in self.records(topic, partition)]

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        [asked] = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        places = asked.result(SECONDS).topic_partitions
        return {(place.topic, place.partition): place.offset for place in places}

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
        asked = self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        asked[group].result(SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    where = tmp_path_factory.mktemp("broker")
    child = BrokerProcess(
        where / "data",
        where / "log",
        {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"},
    )
    child.start()
    assert child.wait_until_it_serves()
    bootstrap = "{}:{}".format(*child.address)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": "0"})
    yield Cluster(bootstrap, where / "data", admin)
    child.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name.replace("[", ".").replace("]", ""))


def config_of(cluster: Cluster, topic: str, checkpoint: Path, **changed: Any) -> MirrorConfig:
    input_ = {
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic},
        **changed.pop("input", {}),
    }
    table = {
        "job": "m",
        "checkpoint": str(checkpoint),
        "suffix": ".mirror",
        "client": cluster.client,
        "source": cluster.client,
        **changed,
    }
    return MirrorConfig.of(JobConfig({"input": input_, "mirror": table}))


def write_offsets(checkpoint: Path, batch_id: int, offsets: dict[str, dict[str, int]]) -> None:
    """Write the offsets of a step as Spark does."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")


def rows(topic: str, partition: int, *offsets: int) -> pa.RecordBatch:
    """Build the record batches that Spark passes to a task."""
    moment = datetime.datetime.fromtimestamp(1, datetime.UTC)
    return pa.RecordBatch.from_pydict(
        {
            "topic": [topic] * len(offsets),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": list(offsets),
            "timestamp": pa.array(
                [moment + datetime.timedelta(milliseconds=offset) for offset in offsets],
                pa.timestamp("us", "UTC"),
            ),
            "key": pa.array([None if offset % 2 else b"k%d" % offset for offset in offsets], pa.binary()),
            "value": pa.array([None if offset % 3 == 2 else b"v%d" % offset for offset in offsets]),
            "headers": [
                [{"key": "h", "value": b"%d" % offset}, {"key": "h", "value": None}] for offset in offsets
            ],
        }
    )


def step(mirror: Mirror, batch_id: int, *batches: pa.RecordBatch) -> int:
    """Execute a step, and return how many records were delivered."""
    plan = mirror.plan(batch_id)
    done = []
    for batch in batches:
        for result in deliver_batches(plan, [batch]):
            done += [delivered_row(row) for row in result.to_pylist()]
    return sum(one.records for one in [*done, *mirror.record_gaps(plan, done)])


def delivered_row(row: dict[str, Any]) -> Any:
    from kwire.pipeline.mirror.micro_batches import PartitionResult

    return PartitionResult(**row)


# Offset maps.


def test_partition_ranges_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, {"t": {"0": 10}})
    assert checkpoint_ranges(tmp_path, 0) == {("t", 0): PartitionRange(None, 10, True)}
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('v1\n{"t": {"0": 4}}')
    assert checkpoint_ranges(tmp_path, 0) == {("t", 0): PartitionRange(4, 10, True)}
    write_offsets(tmp_path, 1, {"t": {"0": 15, "1": 3}})
    assert checkpoint_ranges(tmp_path, 1) == {
        ("t", 0): PartitionRange(10, 15, False),
        ("t", 1): PartitionRange(None, 3, True),
    }
    with pytest.raises(DeliveryError, match="offsets/7 does not contain offsets in Spark's format"):
        checkpoint_ranges(tmp_path, 7)


def test_a_checkpoint_that_is_ahead_of_the_map_is_refused() -> None:
    part = PartitionPlan(Target({}, "t", 0, "m"), "", 10, 20, False)
    assert first_offset(12, part, ())[0] == 12
    with pytest.raises(DeliveryError, match=r"t-0 was mirrored up to source offset 9, .* continues at 10"):
        first_offset(9, part, ())
    with pytest.raises(DeliveryError, match="t-0 has no offset map"):
        first_offset(None, part, ())
    assert first_offset(None, part._replace(is_new=True), ())[0] == 10


def test_an_unknown_start_is_the_first_record() -> None:
    part = PartitionPlan(Target({}, "t", 0, "m"), "", None, 20, True)
    records = [Outgoing(offset, 1, None, None, []) for offset in (7, 8)]
    start, found = first_offset(None, part, iter(records))
    assert (start, list(found)) == (7, records)
    assert first_offset(None, part, ())[0] == 20


# Mirroring.


def test_records_are_unchanged_and_steps_can_be_repeated(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.make(topic, 2)
    mirror = Mirror(config_of(cluster, topic, tmp_path))
    mirror.prepare()
    write_offsets(tmp_path, 0, {topic: {"0": 10, "1": 0}})
    first = rows(topic, 0, 2, 3, 5)
    assert step(mirror, 0, first) == 3
    assert step(mirror, 0, first) == 0
    write_offsets(tmp_path, 1, {topic: {"0": 12, "1": 6}})
    again = Mirror(config_of(cluster, topic, tmp_path))
    again.prepare()
    second = [rows(topic, 0, 11), rows(topic, 1, 0, 1)]
    assert step(again, 1, *second) == 3
    assert step(again, 1, *second) == 0
    for partition, offsets in ((0, (2, 3, 5, 11)), (1, (0, 1))):
        found = cluster.records(topic + ".mirror", partition)
        assert [(one.key(), one.value(), one.timestamp()[1], one.headers()) for one in found] == [
            (
                None if offset % 2 else b"k%d" % offset,
                None if offset % 3 == 2 else b"v%d" % offset,
                1000 + offset,
                [("h", b"%d" % offset), ("h", None)],
            )
            for offset in offsets
        ]
    told = [decoded(one) for one in cluster.records(topic + ".mirror" + MAP_SUFFIX, 0)]
    # The map does not cover source offsets before the first record.
    assert [(one.source, one.end, one.runs) for one in told] == [
        (2, 10, (OffsetRun(2, 0, 2), OffsetRun(5, 2, 1))),
        (10, 12, (OffsetRun(11, 4, 1),)),
    ]
    assert Origin.of(told[0].origin).topic == topic


def decoded(message: Any) -> MapEntry:
    return offset_map.decode_entry(message)


def test_an_interrupted_step_continues_at_the_end_of_the_map(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "TRANSACTION_RECORDS", 4)
    cluster.make(topic, 1)
    mirror = Mirror(config_of(cluster, topic, tmp_path))
    mirror.prepare()
    write_offsets(tmp_path, 0, {topic: {"0": 40}})
    plan = mirror.plan(0)
    for fails_at in (1, 6, 13, 3, 17):

        def failing(fails_at: int = fails_at) -> Iterator[pa.RecordBatch]:
            yield rows(topic, 0, *range(fails_at))
            raise OSError("the machine is gone")

        with pytest.raises(OSError, match="gone"):
            list(deliver_batches(plan, failing()))
    step(mirror, 0, rows(topic, 0, *range(30)))
    assert [one.timestamp()[1] for one in cluster.records(topic + ".mirror")] == [
        1000 + one for one in range(30)
    ]
    told = [decoded(one) for one in cluster.records(topic + ".mirror" + MAP_SUFFIX)]
    assert [one.source for one in told] == [0, *[one.end for one in told[:-1]]]
    assert told[-1].end == 40


def test_an_abandoned_transaction_is_fenced(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.make(topic, 1)
    mirror = Mirror(config_of(cluster, topic, tmp_path))
    mirror.prepare()
    killed = Producer({**cluster.client, "transactional.id": f"m-{topic}.mirror-0"})
    killed.init_transactions(SECONDS)
    killed.begin_transaction()
    killed.produce(topic + ".mirror", b"half", partition=0)
    killed.flush(SECONDS)
    write_offsets(tmp_path, 0, {topic: {"0": 2}})
    again = Mirror(config_of(cluster, topic, tmp_path))
    again.prepare()  # aborted records do not belong to another program
    assert step(again, 0, rows(topic, 0, 0, 1)) == 2
    assert cluster.values(topic + ".mirror") == [b"v0", b"v1"]


def test_timestamp_limits_are_copied_from_the_source(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    after, before = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
    cluster.make(topic, 1, **{after: "9223372036854775807", before: "3600000"})
    mirror = Mirror(config_of(cluster, topic, tmp_path))
    mirror.prepare()
    source = KafkaSource(cluster.client, {"subscribe": topic})
    found = source.settings(topic + ".mirror", (after, before))
    # message.timestamp.before.max.ms is not copied: mirrored records arrive later.
    assert found == {after: "9223372036854775807"}


def test_partitions_grow_with_the_source(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.make(topic, 1, max_message_bytes="2000000")
    config = config_of(cluster, topic, tmp_path, settings={"segment.bytes": 1 << 20})
    mirror = Mirror(config)
    mirror.prepare()
    assert KafkaSource(cluster.client, {"subscribe": topic}).settings(
        topic + ".mirror", ("max.message.bytes", "retention.ms", "segment.bytes")
    ) == {"max.message.bytes": "2000000", "retention.ms": "-1", "segment.bytes": "1048576"}
    write_offsets(tmp_path, 0, {topic: {"0": 1}})
    assert step(mirror, 0, rows(topic, 0, 0)) == 1
    cluster.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    write_offsets(tmp_path, 1, {topic: {"0": 1, "1": 0, "2": 4}})
    assert step(mirror, 1, rows(topic, 2, 0, 1, 2, 3)) == 4
    topics = cluster.admin.list_topics(timeout=SECONDS).topics
    assert [len(topics[topic + suffix].partitions) for suffix in (".mirror", ".mirror" + MAP_SUFFIX)] == [
        3,
        3,
    ]
    # Each partition gets an entry, also an empty one.
    again = Mirror(config)
    again.prepare()
    assert {key[1]: entry and entry.end for key, entry in again.progress.items()} == {0: 1, 1: 0, 2: 4}
    assert json.loads(again.starting_offsets() or "") == {topic: {"0": 1, "1": 0, "2": 4}}


def test_a_new_checkpoint_continues_at_the_end_of_the_map(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.make(topic, 3)
    mirror = Mirror(config_of(cluster, topic, tmp_path))
    mirror.prepare()
    assert mirror.starting_offsets() is None
    with MappedDelivery(
        Target(cluster.client, topic + ".mirror", 1, "m"), mirror._origins[topic]
    ) as delivered:
        delivered.deliver([], 5, 9)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    for text, others in (
        ("earliest", (-2, -2)),
        ("latest", (-1, -1)),
        (json.dumps({topic: {"0": 3, "1": 4, "2": 5}}), (3, 5)),
    ):
        given = {"options": {**options, "startingOffsets": text}}
        again = Mirror(config_of(cluster, topic, tmp_path, input=given))
        again.prepare()
        told = {topic: {"0": others[0], "1": 9, "2": others[1]}}
        assert json.loads(again.starting_offsets() or "") == told


# Refused targets and checkpoints.


def refused(cluster: Cluster, topic: str, where: Path, says: str, **changed: Any) -> None:
    with pytest.raises(DeliveryError, match=says):
        Mirror(config_of(cluster, topic, where, **changed)).prepare()


def test_a_missing_topic_is_named(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    refused(cluster, topic, tmp_path, f"{cluster.bootstrap} has no topic {topic}; its topics: ")
    given = {"options": {"kafka.bootstrap.servers": cluster.bootstrap, "subscribePattern": "no-.*-such"}}
    refused(cluster, topic, tmp_path, "has no topic that matches", input=given)


def test_an_internal_target_is_refused_before_a_topic_is_created(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    for name in ("__consumer", topic):
        cluster.make(name, 1)
    config = config_of(
        cluster,
        topic,
        tmp_path,
        suffix="_offsets",
        input={"options": {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": f"__consumer,{topic}"}},
    )
    with pytest.raises(DeliveryError, match="__consumer_offsets is an internal topic of the target"):
        Mirror(config).prepare()
    assert f"{topic}_offsets" not in cluster.admin.list_topics(timeout=SECONDS).topics


def test_a_topic_is_not_mirrored_into_itself(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.make(topic, 1)
    refused(cluster, topic, tmp_path, f"topic {topic} is both a source and a target", suffix="")


def test_a_target_with_other_partitions_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.make(topic, 1)
    cluster.make(topic + ".mirror", 2)
    refused(cluster, topic, tmp_path, "mirror has 2 partitions, but .* of the source has 1")


def test_a_target_with_other_records_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.make(topic, 2)
    cluster.make(topic + ".mirror", 2)
    Mirror(config_of(cluster, topic, tmp_path)).prepare()  # an empty topic is accepted
    cluster.produce(topic + ".mirror", 1, b"foreign")
    refused(cluster, topic, tmp_path, "mirror has records but no offset map")


class FakeSource:
    """A source cluster whose only topic, with one partition, is that of `origin`."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def topics(self) -> dict[str, SourceTopic]:
        return {self.origin.topic: SourceTopic(self.origin, 1)}

    def settings(self, topic: str, names: Iterable[str]) -> dict[str, str]:
        return {}


def test_the_map_of_another_source_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    config = config_of(cluster, topic, tmp_path)
    origin = Origin("east", topic, "id1")
    mirror = Mirror(config, FakeSource(origin))
    mirror.prepare()
    write_offsets(tmp_path, 0, {topic: {"0": 1}})
    step(mirror, 0, rows(topic, 0, 0))
    for other, says in (
        (origin._replace(cluster="north"), "another source: topic .* of cluster east, not .* of north"),
        (origin._replace(topic_id="id2"), "was deleted and recreated"),
    ):
        with pytest.raises(DeliveryError, match=says):
            Mirror(config, FakeSource(other)).prepare()
    Mirror(config, FakeSource(origin._replace(cluster="?"))).prepare()
    with pytest.raises(DeliveryError, match="is filled by the job 'm', not by 'other'"):
        Mirror(config._replace(job="other"), FakeSource(origin)).prepare()
    cluster.admin.delete_topics([topic + ".mirror"])[topic + ".mirror"].result(SECONDS)
    with pytest.raises(DeliveryError, match=r"mirror does not exist, but its offset map .* does"):
        Mirror(config, FakeSource(origin)).prepare()


def test_the_checkpoint_of_another_job_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    config = config_of(cluster, topic, tmp_path / "mine")
    assert not claim_checkpoint(config)
    (config.checkpoint / "metadata").write_text("{}")
    assert claim_checkpoint(config)
    with pytest.raises(DeliveryError, match="of another mirror, whose job is 'm', not 'n'"):
        claim_checkpoint(config._replace(job="n"))
    with pytest.raises(DeliveryError, match=r"of another mirror, whose suffix is '\.mirror', not ''"):
        claim_checkpoint(config._replace(suffix=""))
    (config.checkpoint / CLAIM).unlink()
    with pytest.raises(DeliveryError, match="is not the checkpoint of a mirror"):
        claim_checkpoint(config)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"client": {}}, "set it to the target cluster"),
        ({"job": "a/b"}, "must not contain a slash"),
        ({"groups": "("}, "a regular expression"),
        ({"sufix": ""}, "unknown key mirror.sufix"),
        ({"input": {"options": {"minPartitions": 8, "subscribe": "a"}}}, "splits partitions"),
        (
            {"input": {"options": {"subscribe": "a, __transaction_state"}}},
            "input.options selects __transaction_state, whose records describe the state of the source",
        ),
        ({"input": {"options": {"assign": '{"__consumer_offsets": [0]}'}}}, "selects __consumer_offsets"),
    ],
)
def test_a_wrong_configuration_is_named(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        config_of(Cluster("127.0.0.1:1", tmp_path), "t", tmp_path, **changed)


# The source.


def test_files_and_cluster_describe_the_same_topic(cluster: Cluster, topic: str) -> None:
    cluster.make(topic, 3)
    for partition in range(3):
        # The broker writes partition.metadata shortly after it creates the log.
        cluster.produce(topic, partition, b"v")
    told = KafkaSource(cluster.client, {"subscribe": topic}).topics()
    assert told == FileSource({"path": str(cluster.data), "subscribe": topic}).topics()
    assert told == KafkaSource(cluster.client, {"subscribePattern": topic}).topics()
    assert told[topic].partitions == 3
    assert "?" not in told[topic].origin


def test_the_source_client_is_derived_from_spark_options(tmp_path: Path) -> None:
    config = config_of(Cluster("127.0.0.1:1", tmp_path), "t", tmp_path, source={"sasl.username": "me"})
    assert config.source == {"bootstrap.servers": "127.0.0.1:1", "sasl.username": "me"}
    assert config.input == Input("kafka", {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})


# Group offsets.


def mirrored(cluster: Cluster, topic: str, checkpoint: Path) -> GroupOffsetSync:
    """Create a topic with gaps at offsets 3 to 5, mirror it, and return its GroupOffsetSync."""
    cluster.make(topic, 2)
    cluster.produce(topic, 0, *[b"%d" % number for number in range(10)])
    mirror = Mirror(config_of(cluster, topic, checkpoint))
    mirror.prepare()
    write_offsets(checkpoint, 0, {topic: {"0": 8, "1": 0}})
    step(mirror, 0, rows(topic, 0, 0, 1, 2, 6, 7))
    return GroupOffsetSync(cluster.client, cluster.client, "m", f"{topic}-.*")


def test_group_offsets_are_translated(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    groups = mirrored(cluster, topic, tmp_path)
    there = topic + ".mirror"
    # In the target, 0 to 4 are records and 5 is the transaction marker.
    expected = {"a": (1, 1), "b": (4, 3), "c": (7, 4), "end": (8, 6), "ahead": (9, None)}
    for name, (offset, _) in expected.items():
        cluster.commit(f"{topic}-{name}", topic, offset, 0)
    cluster.commit(f"other-{topic}", topic, 1)
    moved = {(one.group, one.partition): one for one in groups.sync({topic: there})}
    for name, (offset, translated) in expected.items():
        one = moved[f"{topic}-{name}", 0]
        assert (one.source_offset, one.target_offset, one.source_lag) == (offset, translated, 10 - offset)
        assert one.verdict == (NOT_MIRRORED if translated is None else COMMITTED)
        assert one.target_lag == (None if translated is None else 6 - translated)
        assert cluster.committed(f"{topic}-{name}").get((there, 0)) == translated
        assert cluster.committed(f"{topic}-{name}")[there, 1] == 0
    assert (there, 0) not in cluster.committed(f"other-{topic}")
    assert {one.verdict for one in groups.sync({topic: there})} == {SAME, NOT_MIRRORED}
    groups.close()


def test_group_offsets_are_moved_back_only_with_move_back(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    groups = mirrored(cluster, topic, tmp_path)
    there = topic + ".mirror"
    cluster.commit(f"{topic}-g", topic, 2)
    cluster.commit(f"{topic}-g", there, 4)
    [kept] = groups.sync({topic: there})
    assert (kept.target_offset, kept.verdict, cluster.committed(f"{topic}-g")[there, 0]) == (
        2,
        NOT_MOVED_BACK,
        4,
    )
    groups.close()
    told = GroupOffsetSync(cluster.client, cluster.client, "m", f"{topic}-.*", move_back=True)
    [moved] = told.sync({topic: there})
    assert (moved.verdict, cluster.committed(f"{topic}-g")[there, 0]) == (COMMITTED, 2)
    told.close()


def test_offsets_of_active_groups_are_not_committed(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    groups = mirrored(cluster, topic, tmp_path)
    there = topic + ".mirror"
    cluster.commit(f"{topic}-g", topic, 2)
    member = Consumer(
        {
            **cluster.client,
            "group.id": f"{topic}-g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    member.subscribe([there])
    assert member.poll(SECONDS) is not None
    [one] = groups.sync({topic: there})
    assert one.verdict == ACTIVE
    assert groups._commit(f"{topic}-g", (there, 0), 2, "") == ACTIVE  # as if the member had joined just now
    assert (there, 0) not in cluster.committed(f"{topic}-g")
    member.close()
    assert [one.verdict for one in groups.sync({topic: there})] == [COMMITTED]
    groups.close()


def test_lag_is_reported(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    groups = mirrored(cluster, topic, tmp_path)
    groups.close()
    mirror = Mirror(config_of(cluster, topic, tmp_path))
    mirror.prepare()
    assert [str(one) for one in mirror.partition_progress()] == [
        f"{topic}-0: 0 records, up to offset 8, lag 2",
        f"{topic}-1: 0 records, up to offset 0, lag 0",
    ]
    assert end_offsets(cluster.client, [TopicPartition(topic, 0)]) == {(topic, 0): 10}
