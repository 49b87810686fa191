"""kafka-python: topics, every codec and acks, groups, commits, seeks, administration."""

from __future__ import annotations

import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from interop.brokers import Broker
from interop.scenario import scenario
from interop.workload import BASE_TIMESTAMP, CODECS, records

assert kafka.__version__.startswith("3."), "the classes below are those of kafka-python 3"


def make_topic(broker: Broker, name: str, partitions: int = 1, **configs: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics(
            {name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}},
            wait_for_metadata=True,
        )
    finally:
        admin.close()


def consumer_of(broker: Broker, *topics: str, **settings: Any) -> Any:
    return KafkaConsumer(
        *topics,
        bootstrap_servers=broker.bootstrap,
        **{"auto_offset_reset": "earliest", "consumer_timeout_ms": 20_000, **settings},
    )


def consume(consumer: Any, count: int) -> list[Any]:
    """Return `count` records, or fewer if the consumer's timeout passes first."""
    taken = []
    for record in consumer:
        taken.append(record)
        if len(taken) == count:
            break
    return taken


def record_fields(record: Any) -> list[Any]:
    return [
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        list(record.headers),
    ]


@scenario(seconds=120)
def codecs_and_acks(broker: Broker) -> Any:
    """Produce with each codec and each acks setting, and read every record back."""
    seen: dict[str, Any] = {}
    for codec in CODECS:
        for acks in (0, 1, "all"):
            topic = f"kafka-python-{codec}-{acks}"
            make_topic(broker, topic)
            producer = KafkaProducer(
                bootstrap_servers=broker.bootstrap,
                acks=acks,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=False,
                linger_ms=5,
            )
            for sent in records(60):
                producer.send(topic, sent.value, sent.key, sent.headers, 0, sent.timestamp_ms)
            producer.flush()
            producer.close()
            consumer = consumer_of(broker, topic)
            seen[topic] = [record_fields(record) for record in consume(consumer, 60)]
            consumer.close()
    return seen


@scenario()
def idempotent(broker: Broker) -> Any:
    """Produce idempotently with keys over several partitions."""
    topic = "kafka-python-idempotent"
    make_topic(broker, topic, 3)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True, linger_ms=2)
    futures = [
        producer.send(topic, sent.value, b"k%d" % (index % 20)) for index, sent in enumerate(records(300))
    ]
    producer.flush()
    written = sorted((future.get(10).partition, future.get(10).offset) for future in futures)
    producer.close()
    consumer = consumer_of(broker, topic)
    read = sorted((record.partition, record.offset) for record in consume(consumer, 300))
    consumer.close()
    return {"written": written, "the same is read": written == read}


@scenario()
def groups_commit_and_resume(broker: Broker) -> Any:
    """Read part of a topic in a group, commit, and resume from the committed offsets."""
    topic, group = "kafka-python-resume", "kafka-python-resume"
    make_topic(broker, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for sent in records(100):
        producer.send(topic, sent.value, sent.key)
    producer.flush()
    producer.close()
    seen: dict[str, Any] = {}
    first = consumer_of(broker, topic, group_id=group, enable_auto_commit=False)
    seen["first"] = [record.offset for record in consume(first, 30)]
    first.commit({TopicPartition(topic, 0): OffsetAndMetadata(30, "half way", -1)})
    seen["committed"] = first.committed(TopicPartition(topic, 0), metadata=True)
    first.close()
    second = consumer_of(broker, topic, group_id=group, enable_auto_commit=True)
    seen["second"] = [record.offset for record in consume(second, 70)]
    second.close()
    third = consumer_of(broker, topic, group_id=group, consumer_timeout_ms=2000)
    seen["third"] = [record.offset for record in third]
    third.close()
    return seen


@scenario()
def seeks(broker: Broker) -> Any:
    """Look up offsets by timestamp and the end offsets. Seek to offsets, one of them out of range."""
    topic = "kafka-python-seek"
    make_topic(broker, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for sent in records(50):
        producer.send(topic, sent.value, sent.key, timestamp_ms=sent.timestamp_ms)
    producer.flush()
    producer.close()
    partition = TopicPartition(topic, 0)
    seen: dict[str, Any] = {}
    consumer = consumer_of(broker, max_poll_records=1)
    consumer.assign([partition])
    for when in (0, BASE_TIMESTAMP, BASE_TIMESTAMP + 10_500, BASE_TIMESTAMP + 49_000, BASE_TIMESTAMP + 10**9):
        seen[f"at {when}"] = consumer.offsets_for_times({partition: when})[partition]
    seen["ends"] = [consumer.beginning_offsets([partition]), consumer.end_offsets([partition])]
    for place in (0, 17, 49):
        consumer.seek(partition, place)
        seen[f"from {place}"] = consume(consumer, 1)[0].offset
    consumer.seek(partition, 1000)
    seen["out of range"] = consume(consumer, 1)[0].offset
    seen["position"] = consumer.position(partition)
    consumer.close()
    return seen


@scenario()
def administration(broker: Broker) -> Any:
    """Create, describe, alter and delete topics, add partitions, and delete records, also with errors."""
    topic = "kafka-python-admin"
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    seen: dict[str, Any] = {}

    def attempt(name: str, action: Any) -> None:
        try:
            seen[name] = action()
        except KafkaError as error:
            seen[name] = type(error).__name__

    try:
        created = admin.create_topics(
            {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}},
            wait_for_metadata=True,
        )
        seen["created"] = [
            [entry["name"], entry["num_partitions"], sorted(entry["configs"])] for entry in created["topics"]
        ]
        attempt("again", lambda: admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}}))
        attempt(
            "bad name", lambda: admin.create_topics({"a b": {"num_partitions": 1, "replication_factor": 1}})
        )
        described = admin.describe_topics([topic])[0]
        described.pop("topic_id", None)
        seen["described"] = described
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        seen["configs"] = sorted(admin.describe_configs([resource])["topic"][topic])
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})
        attempt("altered", lambda: admin.alter_configs([changed]))
        wrong = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "soon"})
        attempt("altered wrongly", lambda: admin.alter_configs([wrong]))
        attempt("grown", lambda: admin.create_partitions({topic: 4}))
        attempt("shrunk", lambda: admin.create_partitions({topic: 1}))
        attempt("no such topic", lambda: admin.delete_topics(["kafka-python-nowhere"]))
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        for _ in range(10):
            producer.send(topic, b"x", partition=0)
        producer.flush()
        producer.close()
        attempt("records deleted", lambda: admin.delete_records({TopicPartition(topic, 0): 4}))
        cluster = admin.describe_cluster()
        seen["brokers"] = len(cluster["brokers"])
        attempt("deleted", lambda: admin.delete_topics([topic]))
        deadline = time.monotonic() + 20
        while topic in admin.list_topics() and time.monotonic() < deadline:
            time.sleep(0.05)
        seen["gone"] = topic not in admin.list_topics()
    finally:
        admin.close()
    return without_messages_and_ids(seen)


def without_messages_and_ids(value: Any) -> Any:
    """Replace topic ids and error messages by placeholders, because they differ between brokers."""
    if isinstance(value, dict):
        return {
            key: f"<{key}>"
            if key in ("error_message", "topic_id") and item
            else without_messages_and_ids(item)
            for key, item in value.items()
        }
    if isinstance(value, str) and value.startswith("[Error "):
        return value.partition(":")[0]
    return [without_messages_and_ids(item) for item in value] if isinstance(value, list) else value


@scenario()
def group_administration(broker: Broker) -> Any:
    """Describe, list and delete a group, and list its committed offsets before and after the deletion."""
    topic, group = "kafka-python-groups", "kafka-python-groups"
    make_topic(broker, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for _ in range(5):
        producer.send(topic, b"x")
    producer.flush()
    producer.close()
    consumer = consumer_of(broker, topic, group_id=group, client_id="interop")
    consume(consumer, 5)
    consumer.commit()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    seen: dict[str, Any] = {}
    try:
        described = admin.describe_groups([group])
        found = described[group] if isinstance(described, dict) else described[0]
        seen["state"] = found["group_state"]
        seen["members"] = [[member["client_id"], member["client_host"]] for member in found["members"]]
        seen["protocol"] = [found["protocol_type"], found["protocol_data"]]
        seen["offsets"] = admin.list_group_offsets(group)
        consumer.close()
        seen["listed"] = [entry for entry in admin.list_groups() if entry["group_id"] == group]
        seen["deleted"] = admin.delete_groups([group])
        seen["offsets after"] = admin.list_group_offsets(group)
    finally:
        admin.close()
    return seen
