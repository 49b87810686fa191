"""aiokafka: codecs and acks, groups, commits, seeks and the admin client."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from interop.brokers import Broker
from interop.scenario import scenario
from interop.workload import BASE_TIMESTAMP, CODECS, records


async def make_topic(broker: Broker, name: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1)])
        while not (await admin.describe_topics([name]))[0]["partitions"]:
            await asyncio.sleep(0.02)
    finally:
        await admin.close()


async def consume(broker: Broker, topic: str, count: int, **settings: Any) -> list[Any]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, **{"auto_offset_reset": "earliest", **settings}
    )
    await consumer.start()
    taken: list[Any] = []
    try:
        while len(taken) < count:
            taken.append(await asyncio.wait_for(consumer.getone(), 20))
    finally:
        await consumer.stop()
    return taken


def record_fields(record: Any) -> list[Any]:
    return [record.partition, record.offset, record.timestamp, record.key, record.value, list(record.headers)]


@scenario(seconds=120)
def codecs_and_acks(broker: Broker) -> Any:
    """Produce with each codec and each acks setting, and read every record back."""

    async def run() -> Any:
        seen = {}
        for codec in CODECS:
            for acks in (0, 1, "all"):
                topic = f"aiokafka-{codec}-{acks}"
                await make_topic(broker, topic)
                producer = AIOKafkaProducer(
                    bootstrap_servers=broker.bootstrap,
                    acks=acks,
                    compression_type=None if codec == "none" else codec,
                    linger_ms=5,
                )
                await producer.start()
                for sent in records(60):
                    await producer.send(topic, sent.value, sent.key, 0, sent.timestamp_ms, sent.headers)
                await producer.stop()
                seen[topic] = [record_fields(record) for record in await consume(broker, topic, 60)]
        return seen

    return asyncio.run(run())


@scenario()
def idempotent(broker: Broker) -> Any:
    async def run() -> Any:
        topic = "aiokafka-idempotent"
        await make_topic(broker, topic, 3)
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        await producer.start()
        futures = [await producer.send(topic, b"v%d" % index, b"k%d" % (index % 9)) for index in range(200)]
        written = sorted([sent.partition, sent.offset] for sent in await asyncio.gather(*futures))
        await producer.stop()
        read = sorted([record.partition, record.offset] for record in await consume(broker, topic, 200))
        return {"written": written, "the same is read": written == read}

    return asyncio.run(run())


@scenario()
def groups_commit_and_resume(broker: Broker) -> Any:
    """Read a topic with two group members. Then a new member resumes from the committed offsets."""

    async def run() -> Any:
        topic = group = "aiokafka-resume"
        await make_topic(broker, topic, 4)
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        for index in range(80):
            await producer.send(topic, b"%d" % index, partition=index % 4)
        await producer.stop()
        members = [
            AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
            )
            for _ in range(2)
        ]
        await asyncio.gather(*(member.start() for member in members))
        seen: dict[str, Any] = {}
        values: set[bytes] = set()
        for _ in range(200):
            for member in members:
                for batch in (await member.getmany(timeout_ms=100)).values():
                    values.update(record.value for record in batch)
            if len(values) == 80 and all(len(member.assignment()) == 2 for member in members):
                break
        seen["all read"] = len(values)
        seen["shares"] = [len(member.assignment()) for member in members]
        for member in members:
            await member.commit()
            await member.stop()
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        await producer.send_and_wait(topic, b"later", partition=2)
        await producer.stop()
        seen["resumed with"] = [
            [record.value, record.partition, record.offset]
            for record in await consume(broker, topic, 1, group_id=group)
        ]
        return seen

    return asyncio.run(run())


@scenario()
def seeks(broker: Broker) -> Any:
    async def run() -> Any:
        topic = "aiokafka-seek"
        await make_topic(broker, topic)
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        for sent in records(50):
            await producer.send(topic, sent.value, sent.key, timestamp_ms=sent.timestamp_ms)
        await producer.stop()
        partition = TopicPartition(topic, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
        await consumer.start()
        consumer.assign([partition])
        seen: dict[str, Any] = {}
        for when in (0, BASE_TIMESTAMP + 10_500, BASE_TIMESTAMP + 10**9):
            found = (await consumer.offsets_for_times({partition: when}))[partition]
            seen[f"at {when}"] = found and [found.offset, found.timestamp]
        seen["ends"] = [
            (await consumer.beginning_offsets([partition]))[partition],
            (await consumer.end_offsets([partition]))[partition],
        ]
        consumer.seek(partition, 23)
        seen["from 23"] = (await asyncio.wait_for(consumer.getone(), 10)).offset
        await consumer.seek_to_end(partition)
        seen["position at the end"] = await consumer.position(partition)
        await consumer.stop()
        return seen

    return asyncio.run(run())


@scenario()
def administration(broker: Broker) -> Any:
    async def run() -> Any:
        topic = "aiokafka-admin"
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        seen: dict[str, Any] = {}
        try:
            created = await admin.create_topics(
                [NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})]
            )
            seen["created"] = [list(entry[:2]) for entry in created.topic_errors]
            again = await admin.create_topics([NewTopic(topic, 2, 1)])
            seen["again"] = [list(entry[:2]) for entry in again.topic_errors]
            while len((await admin.describe_topics([topic]))[0]["partitions"]) < 2:
                await asyncio.sleep(0.02)
            grown = await admin.create_partitions({topic: NewPartitions(5)})
            seen["grown"] = [list(entry[:2]) for entry in grown.topic_errors]
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            described = (await admin.describe_configs([resource]))[0].resources[0]
            seen["configs"] = sorted(
                [entry[0], entry[1]] for entry in described[4] if entry[0].startswith("retention")
            )
            seen["cluster"] = sorted((await admin.describe_cluster()).keys())
            deleted = await admin.delete_topics([topic])
            seen["deleted"] = [list(entry[:2]) for entry in deleted.topic_error_codes]
            for name in ("aiokafka-nowhere",):
                try:
                    missing = await admin.delete_topics([name])
                    seen["no such topic"] = [list(entry[:2]) for entry in missing.topic_error_codes]
                except KafkaError as error:
                    seen["no such topic"] = type(error).__name__
        finally:
            await admin.close()
        return seen

    return asyncio.run(run())
