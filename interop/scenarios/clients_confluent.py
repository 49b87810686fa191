"""confluent-kafka (librdkafka): codecs and acks, groups, commits, seeks and the admin client."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from interop.brokers import Broker, Served
from interop.scenario import scenario
from interop.workload import BASE_TIMESTAMP, CODECS, records

WAIT_S = 30.0


def make_topic(broker: Broker, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)
    wait_for_partitions(admin, name, partitions)


def wait_for_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until the broker knows the partitions. Until then librdkafka refuses records for them."""
    deadline = time.monotonic() + WAIT_S
    while len(admin.list_topics(topic, timeout=10).topics[topic].partitions) < count:
        assert time.monotonic() < deadline, f"{topic} does not have {count} partitions"
        time.sleep(0.02)


def producer_of(broker: Served, **settings: Any) -> Producer:
    """Make a producer that raises the error of a failed delivery, unless `produce` is given a callback."""
    common = {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "on_delivery": raise_failure}
    return Producer({**common, **settings})


def raise_failure(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def consumer_of(broker: Served, group: str, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )


def consume(consumer: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Any]:
    taken: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(taken) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            taken.append(message)
    return taken


def message_fields(message: Any) -> list[Any]:
    return [
        message.partition(),
        message.offset(),
        list(message.timestamp()),
        message.key(),
        message.value(),
        message.headers() or [],
    ]


def error_names(futures: dict[Any, Any]) -> dict[str, Any]:
    """Return the error name of each future, or "done" if it has no error."""
    seen = {}
    for key, future in futures.items():
        try:
            future.result(WAIT_S)
            seen[str(key)] = "done"
        except KafkaException as error:
            seen[str(key)] = error.args[0].name()
    return seen


@scenario(seconds=180)
def codecs_and_acks(broker: Broker) -> Any:
    """Produce with each codec and each acks setting, and read every record back."""
    seen: dict[str, Any] = {}
    for codec in CODECS:
        for acks in ("0", "1", "all"):
            topic = f"confluent-{codec}-{acks}"
            make_topic(broker, topic)
            producer = producer_of(broker, **{"acks": acks, "compression.type": codec})
            for sent in records(60):
                producer.produce(
                    topic, sent.value, sent.key, 0, timestamp=sent.timestamp_ms, headers=sent.headers
                )
            assert producer.flush(WAIT_S) == 0
            consumer = consumer_of(broker, topic)
            consumer.assign([TopicPartition(topic, 0, 0)])
            seen[topic] = [message_fields(message) for message in consume(consumer, 60)]
            consumer.close()
    return seen


@scenario()
def idempotent(broker: Broker) -> Any:
    topic = "confluent-idempotent"
    make_topic(broker, topic, 3)
    written: list[list[int]] = []

    def delivered(error: Any, message: Any) -> None:
        written.append([message.partition(), message.offset()] if error is None else [error.name()])

    producer = producer_of(broker, **{"enable.idempotence": True})
    for index in range(500):
        producer.produce(topic, b"v%d" % index, b"k%d" % (index % 9), on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    consumer = consumer_of(broker, "confluent-idempotent")
    consumer.subscribe([topic])
    read = sorted([message.partition(), message.offset()] for message in consume(consumer, 500))
    consumer.close()
    return {"written": sorted(written), "the same is read": sorted(written) == read}


@scenario(seconds=90)
def groups_commit_and_resume(broker: Broker) -> Any:
    """Read part of a topic in a group, commit, and resume from the committed offsets, with each assignor."""
    seen: dict[str, Any] = {}
    for strategy in ("range", "roundrobin", "cooperative-sticky"):
        topic = group = f"confluent-resume-{strategy}"
        make_topic(broker, topic)
        producer = producer_of(broker)
        for index in range(50):
            producer.produce(topic, b"%d" % index)
        assert producer.flush(WAIT_S) == 0
        settings = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200}
        first = consumer_of(broker, group, **settings)
        first.subscribe([topic])
        seen[f"{strategy} first"] = [message.offset() for message in consume(first, 20)]
        first.commit(offsets=[TopicPartition(topic, 0, 20)], asynchronous=False)
        first.close()
        second = consumer_of(broker, group, **settings)
        second.subscribe([topic])
        seen[f"{strategy} second"] = [message.offset() for message in consume(second, 30)]
        second.commit(asynchronous=False)
        seen[f"{strategy} committed"] = second.committed([TopicPartition(topic, 0)], timeout=10)[0].offset
        second.close()
    return seen


@scenario()
def static_member(broker: Broker) -> Any:
    """Restart a static member before its session times out. The member keeps its partitions."""
    topic = group = "confluent-static"
    make_topic(broker, topic, 2)
    producer = producer_of(broker)
    for index in range(10):
        producer.produce(topic, b"%d" % index, partition=index % 2)
    assert producer.flush(WAIT_S) == 0
    seen = {}
    for turn in ("first", "again"):
        consumer = consumer_of(broker, group, **{"group.instance.id": "one"})
        consumer.subscribe([topic])
        taken = consume(consumer, 10)
        seen[turn] = [len(taken), sorted(partition.partition for partition in consumer.assignment())]
        consumer.close()
    return seen


@scenario()
def seeks(broker: Broker) -> Any:
    topic = "confluent-seek"
    make_topic(broker, topic)
    producer = producer_of(broker)
    for sent in records(50):
        producer.produce(topic, sent.value, sent.key, timestamp=sent.timestamp_ms)
    assert producer.flush(WAIT_S) == 0
    consumer = consumer_of(broker, "confluent-seek")
    seen: dict[str, Any] = {}
    for when in (0, BASE_TIMESTAMP + 10_500, BASE_TIMESTAMP + 10**9):
        found = consumer.offsets_for_times([TopicPartition(topic, 0, when)], timeout=10)[0]
        seen[f"at {when}"] = found.offset
    seen["ends"] = list(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10))
    for place in (0, 23, 49):
        consumer.assign([TopicPartition(topic, 0, place)])
        seen[f"from {place}"] = consume(consumer, 1)[0].offset()
    consumer.assign([TopicPartition(topic, 0, 777)])
    seen["out of range"] = consume(consumer, 1)[0].offset()
    consumer.close()
    return seen


@scenario(seconds=90)
def administration(broker: Broker) -> Any:
    """Manage topics, configurations, records, groups and offsets through AdminClient, also with errors."""
    topic = group = "confluent-admin"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    seen: dict[str, Any] = {}

    def new(name: str, partitions: int = 2, replicas: int = 1, **configs: str) -> dict[str, Any]:
        created = NewTopic(
            name, partitions, replicas, config={k.replace("_", "."): v for k, v in configs.items()}
        )
        return error_names(admin.create_topics([created]))

    seen["created"] = new(topic, retention_ms="3600000")
    seen["again"] = new(topic)
    seen["bad name"] = new("a b")
    seen["too many replicas"] = new("confluent-replicas", 1, 3)
    seen["bad config"] = new("confluent-config", 1, 1, retention_ms="soon")
    until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2)
    seen["grown"] = error_names(admin.create_partitions([NewPartitions(topic, 4)]))
    seen["shrunk"] = error_names(admin.create_partitions([NewPartitions(topic, 1)]))
    resource = ConfigResource("topic", topic)
    described = admin.describe_configs([resource])[resource].result(WAIT_S)
    seen["configs"] = {
        name: [entry.value, entry.source, entry.is_default, entry.is_read_only, entry.is_sensitive]
        for name, entry in described.items()
    }
    changed = ConfigResource(
        "topic",
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    seen["altered"] = error_names(admin.incremental_alter_configs([changed]))
    producer = producer_of(broker)
    for index in range(20):
        producer.produce(topic, b"%d" % index, partition=0)
    assert producer.flush(WAIT_S) == 0
    ends = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    seen["latest"] = [future.result(WAIT_S).offset for future in ends.values()]
    ends = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()})
    seen["of the greatest timestamp"] = [future.result(WAIT_S).offset >= 0 for future in ends.values()]
    seen["records deleted"] = [
        future.result(WAIT_S).low_watermark
        for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    ]
    consumer = consumer_of(broker, group, **{"client.id": "interop"})
    consumer.subscribe([topic])
    seen["read"] = [message.offset() for message in consume(consumer, 15)]
    consumer.commit(asynchronous=False)
    group_seen = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    seen["group"] = [
        group_seen.state.name,
        group_seen.partition_assignor,
        group_seen.is_simple_consumer_group,
        [
            [member.client_id, member.host, len(member.assignment.topic_partitions)]
            for member in group_seen.members
        ],
    ]
    seen["deleted while in use"] = error_names(admin.delete_consumer_groups([group]))
    consumer.close()
    listed = admin.list_consumer_groups().result(WAIT_S)
    seen["listed"] = [[entry.group_id, entry.state.name] for entry in listed.valid if entry.group_id == group]
    seen["list errors"] = len(listed.errors)
    requested = [ConsumerGroupTopicPartitions(group)]
    offsets = admin.list_consumer_group_offsets(requested)[group].result(WAIT_S).topic_partitions
    seen["offsets"] = sorted([entry.partition, entry.offset] for entry in offsets)
    moved = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])]
    altered = admin.alter_consumer_group_offsets(moved)[group].result(WAIT_S).topic_partitions
    seen["offsets altered"] = [[entry.partition, entry.offset] for entry in altered]
    seen["group deleted"] = error_names(admin.delete_consumer_groups([group]))
    cluster = admin.describe_cluster().result(WAIT_S)
    seen["cluster"] = [len(cluster.nodes), cluster.controller.id]
    seen["topic deleted"] = error_names(admin.delete_topics([topic]))
    seen["no such topic"] = error_names(admin.delete_topics(["confluent-nowhere"]))
    until(lambda: topic not in admin.list_topics(timeout=10).topics)
    return seen


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)
