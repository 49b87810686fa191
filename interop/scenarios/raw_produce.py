"""Produce, batch by batch: each way in which a batch can be invalid, and rules for idempotent producers."""

from __future__ import annotations

import gzip
import itertools
import struct
import time
from random import Random
from typing import Any

import lz4.frame
import snappy
import zstandard

from interop.batches import BASE_TIMESTAMP, Batch, Record, encode_record, old_message_set
from interop.brokers import Broker
from interop.raw import comparable, create_topic, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import encode_request, versions_of


def attempt(broker: Broker, topic: str, records: bytes | None, **fields: Any) -> Any:
    """Produce on a new connection. Return the partition in the response, or ``closed``."""
    version = fields.pop("version", 9)
    request = {
        "Acks": -1,
        "TimeoutMs": 10_000,
        "TopicData": [
            {"Name": topic, "PartitionData": [{"Index": fields.pop("partition", 0), "Records": records}]}
        ],
        **fields,
    }
    with RawClient(broker.bootstrap) as client:
        client.socket.settimeout(3)
        outcome = client.outcome(encode_request("Produce", version, request), "Produce", version)
        # The messages about invalid records differ between brokers, and some contain the current time.
        response = comparable(outcome, words=False)
    return response if isinstance(response, str) else response["Responses"][0]["PartitionResponses"][0]


@scenario()
def invalid_batches(broker: Broker) -> Any:
    """Produce valid batches, and batches with one invalid field or invalid records."""
    topic = "raw-produce-wrong"
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
    good = Batch().encode()
    two = [Record(b"a"), Record(b"b")]
    plain = b"".join(encode_record(record, index) for index, record in enumerate(two))
    attempts: dict[str, bytes | None] = {
        "good": good,
        "null": None,
        "empty": b"",
        "one byte": b"\0",
        "header cut": good[:40],
        "cut by one": good[:-1],
        "wrong CRC": Batch(crc=1).encode(),
        "last byte flipped": good[:-1] + bytes([good[-1] ^ 1]),
        "magic 0": old_message_set(0),
        "magic 1": old_message_set(1),
        "magic 3": Batch(magic=3).encode(),
        "magic -1": Batch(magic=-1).encode(),
        "count of 0": Batch(records_count=0).encode(),
        "count of 2 for 1": Batch(records_count=2).encode(),
        "count of 2 for 1, deltas too": Batch(records_count=2, last_offset_delta=1).encode(),
        "count of 1 for 2": Batch(two, records_count=1).encode(),
        "count of 1 for 2, deltas too": Batch(two, records_count=1, last_offset_delta=0).encode(),
        "count of -1": Batch(records_count=-1).encode(),
        "last delta too great": Batch(last_offset_delta=5).encode(),
        "last delta negative": Batch(last_offset_delta=-1).encode(),
        "no records": Batch([]).encode(),
        "length of 0": Batch(length=0).encode(),
        "length of -1": Batch(length=-1).encode(),
        "length one less": Batch(length=len(good) - 13).encode(),
        "length one more": Batch(length=len(good) - 11).encode(),
        "two batches": good + good,
        "trailing byte": good + b"\0",
        "base offset of 7": Batch(base_offset=7).encode(),
        "base offset of -1": Batch(base_offset=-1).encode(),
        "leader epoch of 9": Batch(leader_epoch=9).encode(),
        "offset deltas equal": Batch([Record(offset_delta=0), Record(offset_delta=0)]).encode(),
        "offset deltas with a gap": Batch([Record(offset_delta=0), Record(offset_delta=2)]).encode(),
        "offset deltas backwards": Batch([Record(offset_delta=1), Record(offset_delta=0)]).encode(),
        "control batch": Batch([Record(key=b"\0\0\0\0", value=b"\0\0\0\0\0\0")], attributes=0x20).encode(),
        "transactional without a producer": Batch(attributes=0x10).encode(),
        "append time flag from a client": Batch(attributes=0x08).encode(),
        "unknown attribute": Batch(attributes=0x4000).encode(),
        "codec 5": Batch(attributes=5).encode(),
        "codec 7": Batch(attributes=7).encode(),
        "gzip": Batch(two, attributes=1).encode(),
        "gzip that is not": Batch(attributes=1, payload=b"not gzip at all").encode(),
        "gzip cut": Batch(two, attributes=1, payload=b"\x1f\x8b\x08\0\0\0\0\0\0\xff").encode(),
        "snappy that is not": Batch(attributes=2, payload=b"\xff\xff\xff\xff\xff").encode(),
        "lz4 that is not": Batch(attributes=3, payload=b"not lz4 at all").encode(),
        "zstd that is not": Batch(attributes=4, payload=b"not zstd at all").encode(),
        "max timestamp too small": Batch(two, max_timestamp=BASE_TIMESTAMP - 5).encode(),
        "max timestamp too great": Batch(two, max_timestamp=BASE_TIMESTAMP + 5).encode(),
        "timestamp -1": Batch(base_timestamp=-1, max_timestamp=-1).encode(),
        "timestamp in two hours": Batch(base_timestamp=int(time.time() * 1000) + 7_200_000).encode(),
        "record longer than the batch": Batch(payload=b"\x7e" + b"\0" * 6).encode(),
        "record of negative length": Batch(payload=b"\1\0\0\0\1\1\0").encode(),
        "record with key past its end": Batch(payload=b"\x0e\0\0\0\x7e\0\0\0").encode(),
        "record with 63 headers and none": Batch(payload=b"\x0c\0\0\0\1\1\x7e").encode(),
        "record with a header without a name": Batch(payload=b"\x10\0\0\0\1\1\2\1\1").encode(),
        "record with bytes left over": Batch(payload=b"\x10\0\0\0\1\1\0\0\0").encode(),
        "bytes after the records": Batch(payload=b"\x0c\0\0\0\1\1\0\0\0\0").encode(),
        "varint of six bytes": Batch(payload=b"\xff\xff\xff\xff\xff\x7f").encode(),
        "producer id without epoch": Batch(producer_id=5).encode(),
        "producer epoch without sequence": Batch(producer_id=5, producer_epoch=0).encode(),
        "record with a negative number of headers": Batch(payload=b"\x0c\0\0\0\1\1\x35").encode(),
        "record with a header key of a negative length": Batch(payload=b"\x12\0\0\0\1\1\2\x7b\0\0").encode(),
        "record with a header key past its end": Batch(payload=b"\x12\0\0\0\1\1\2\x64ab").encode(),
        "record with a key of -5 bytes": Batch(payload=b"\x0c\0\0\0\x09\1\0").encode(),
        "records with two timestamps out of range": Batch(
            [Record(), Record(timestamp_delta=10**14), Record(timestamp_delta=10**15)]
        ).encode(),
        "no max timestamp": Batch([Record(), Record(timestamp_delta=7)], max_timestamp=-1).encode(),
        "no max timestamp, gzip": Batch(two, attributes=1, max_timestamp=-1).encode(),
        "gzip, offset deltas with a gap": Batch([Record(), Record(offset_delta=2)], attributes=1).encode(),
        "gzip, record with a header without a name": Batch(
            attributes=1, payload=gzip.compress(b"\x10\0\0\0\1\1\2\1\1", mtime=0)
        ).encode(),
        "gzip in two members": Batch(
            two, attributes=1, payload=gzip.compress(plain[:3], mtime=0) + gzip.compress(plain[3:], mtime=0)
        ).encode(),
        "gzip with bytes after it": Batch(
            two, attributes=1, payload=gzip.compress(plain, mtime=0) + b"rest"
        ).encode(),
        "snappy in one block": Batch(two, attributes=2, payload=snappy.compress(plain)).encode(),
        "lz4 with independent blocks": Batch(
            two, attributes=3, payload=lz4.frame.compress(plain, block_linked=False)
        ).encode(),
        "lz4 with linked blocks": Batch(
            two, attributes=3, payload=lz4.frame.compress(plain, block_linked=True)
        ).encode(),
        "null value": Batch([Record(value=None)]).encode(),
        "headers": Batch([Record(headers=[("a", b"1"), ("a", None), ("", b"")])]).encode(),
    }
    seen = {name: attempt(broker, topic, records) for name, records in attempts.items()}
    with RawClient(broker.bootstrap) as client:
        seen["log"] = comparable(fetch(client, topic, 0))["Responses"][0]["Partitions"][0]
    return without_shifted_offsets(seen)


def without_shifted_offsets(seen: dict[str, Any]) -> dict[str, Any]:
    """Replace each base offset by its distance from the previous one, and keep only the log's batches.

    Otherwise, a difference for one batch would change all later offsets.
    """
    previous = -1
    for response in seen.values():
        if isinstance(response, dict) and response.get("BaseOffset", -1) >= 0:
            step, previous = response["BaseOffset"] - previous, response["BaseOffset"]
            response["BaseOffset"] = f"previous + {step}"
    log = seen.pop("log", None)
    if log is not None:
        for batch in log["Records"]:
            batch.pop("base_offset")
        seen["log"] = log["Records"]
    return seen


@scenario()
def topic_limits(broker: Broker) -> Any:
    """Produce to topics whose configurations limit batches."""
    big = Batch([Record(b"x" * 3000)]).encode()
    old = Batch([Record()], base_timestamp=BASE_TIMESTAMP).encode()
    future = Batch([Record()], base_timestamp=int(time.time() * 1000) + 3_600_000).encode()
    no_key = Batch([Record(key=b"k"), Record()]).encode()
    keyed = Batch([Record(key=b"k")]).encode()
    cases: dict[str, tuple[dict[str, str], list[bytes]]] = {
        "max.message.bytes": ({"max.message.bytes": "2000"}, [big, old]),
        "compact": ({"cleanup.policy": "compact"}, [no_key, keyed]),
        "compact,delete": ({"cleanup.policy": "compact,delete"}, [no_key, keyed]),
        "append time": ({"message.timestamp.type": "LogAppendTime"}, [old, future]),
        "before": ({"message.timestamp.before.max.ms": "1000"}, [old]),
        "after": ({"message.timestamp.after.max.ms": "1000"}, [future, old]),
        "segment smaller than batch": (
            {"segment.bytes": "1048576"},
            [Batch([Record(b"x" * 1_040_000)]).encode()],
        ),
        "compression gzip": ({"compression.type": "gzip"}, [keyed]),
        "compression uncompressed": ({"compression.type": "uncompressed"}, [Batch(attributes=1).encode()]),
        "too large without compression": (
            {"compression.type": "uncompressed", "max.message.bytes": "2000"},
            [Batch([Record(b"x" * size)], attributes=1).encode() for size in (1000, 1900, 1950, 20_000)],
        ),
        "too large with compression": (
            {"compression.type": "gzip", "max.message.bytes": "1000"},
            [Batch([Record(Random(1).randbytes(925))]).encode()],
        ),
    }
    seen: dict[str, Any] = {}
    for index, (name, (configs, batches)) in enumerate(cases.items()):
        topic = f"raw-produce-rules-{index}"
        with RawClient(broker.bootstrap) as client:
            create_topic(client, topic, 1, configs)
            responses = [attempt(broker, topic, batch) for batch in batches]
            for response in responses:
                if isinstance(response, dict) and response["LogAppendTimeMs"] > BASE_TIMESTAMP:
                    response["LogAppendTimeMs"] = "<now>"
            stored = comparable(fetch(client, topic, 0))["Responses"][0]["Partitions"][0]["Records"]
        for batch in stored:
            for key in ("base_timestamp", "max_timestamp"):
                batch[key] = "<now>" if batch[key] > BASE_TIMESTAMP + 1000 else batch[key]
            if batch["attributes"] & 7:
                batch["length"] = "<compressed>"  # the brokers have different gzip implementations
        seen[name] = {"answers": responses, "stored": stored}
    return seen


@scenario()
def unknown_partitions_and_topics(broker: Broker) -> Any:
    """Produce to unknown partitions and topics. Produce must not create a topic automatically."""
    with RawClient(broker.bootstrap) as client:
        create_topic(client, "raw-produce-where", 2)
    good = Batch().encode()
    where = {
        "unknown topic": ("raw-produce-nowhere", 0),
        "invalid name": ("raw produce!", 0),
        "empty name": ("", 0),
        "dots": ("..", 0),
        "partition 2 of 2": ("raw-produce-where", 2),
        "partition -1": ("raw-produce-where", -1),
        "partition 2^31-1": ("raw-produce-where", 2**31 - 1),
        "internal topic": ("__consumer_offsets", 0),
        "metadata topic": ("__cluster_metadata", 0),
    }
    seen: dict[str, Any] = {
        name: attempt(broker, topic, good, partition=partition) for name, (topic, partition) in where.items()
    }
    for acks in (-2, 2, 3):
        seen[f"acks {acks}"] = attempt(broker, "raw-produce-where", good, Acks=acks)
    seen["acks 1"] = attempt(broker, "raw-produce-where", good, Acks=1)
    seen["transactional id without transaction"] = attempt(
        broker, "raw-produce-where", good, TransactionalId="raw-produce-t"
    )
    return seen


@scenario()
def requests_after_a_rejected_one(broker: Broker) -> Any:
    """Pipeline requests after a partly rejected one with acks=0. The broker must ignore later requests."""
    good, bad, behind = "raw-produce-partly", "raw-produce-nowhere", "raw-produce-behind"
    created = "raw-produce-made"
    batch = Batch().encode()

    def data(*topics: str) -> list[dict[str, Any]]:
        return [{"Name": topic, "PartitionData": [{"Index": 0, "Records": batch}]} for topic in topics]

    with RawClient(broker.bootstrap) as client:
        for topic in (good, behind):
            create_topic(client, topic)
        produce(client, behind, batch)
    responses = []
    for number in range(5):
        requests: list[tuple[str, int, dict[str, Any]]] = [
            ("Produce", 9, {"Acks": 0, "TimeoutMs": 5_000, "TopicData": data(good, bad)}),
            ("Produce", 9, {"Acks": -1, "TimeoutMs": 5_000, "TopicData": data(behind)}),
            ("CreateTopics", 5, {"timeoutMs": 5_000, "Topics": [new_topic(f"{created}-{number}")]}),
        ]
        frames = [encode_request(api, version, fields) for api, version, fields in requests]
        with RawClient(broker.bootstrap) as client:
            # All requests are sent at once, so the broker has received all when it handles the first.
            client.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
            responses.append(client.answer("Produce", 9))
    with RawClient(broker.bootstrap) as client:
        logs = [fetch(client, topic, 0)["Responses"][0]["Partitions"][0] for topic in (good, behind)]
        topics = client.call("Metadata", 4, Topics=None, AllowAutoTopicCreation=False)["Topics"]
        return {
            "answers": responses,
            "ends": [log["HighWatermark"] for log in logs],
            "made": [topic["Name"] for topic in topics if topic["Name"].startswith(created)],
        }


def new_topic(name: str) -> dict[str, Any]:
    return {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [], "Configs": []}


@scenario()
def acks_zero(broker: Broker) -> Any:
    """Produce with acks=0. There is no response, and an error closes the connection."""
    topic = "raw-produce-acks-zero"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        request = {
            "Acks": 0,
            "TimeoutMs": 1000,
            "TopicData": [{"Name": topic, "PartitionData": [{"Index": 0, "Records": Batch().encode()}]}],
        }
        client.send("Produce", 9, **request)
        client.send("Produce", 9, **request)
        # The next response on the connection belongs to the next request that is not acks=0.
        seen["after"] = client.call("ApiVersions", 2)["ErrorCode"]
        seen["appended"] = comparable(fetch(client, topic, 0))["Responses"][0]["Partitions"][0][
            "HighWatermark"
        ]
    for name, records in (("wrong CRC", Batch(crc=1).encode()), ("unknown topic", Batch().encode())):
        request["TopicData"] = [
            {
                "Name": topic if name == "wrong CRC" else "raw-produce-nowhere",
                "PartitionData": [{"Index": 0, "Records": records}],
            }
        ]
        with RawClient(broker.bootstrap) as client:
            client.socket.settimeout(5)
            client.send("Produce", 9, **request)
            client.send("ApiVersions", 2)
            try:
                seen[name] = client.receive("ApiVersions", 2)["ErrorCode"]
            except EOFError:
                seen[name] = "closed"
    return seen


@scenario()
def every_version(broker: Broker) -> Any:
    """Produce a valid batch, an invalid batch, and a batch to an unknown topic, in each version."""
    seen: dict[str, Any] = {}
    topic = "raw-produce-versions"
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, topic)
        for version in versions_of("Produce"):
            if version < 3:
                continue
            target_names: dict[str, str | bytes] = {"good": topic, "elsewhere": "raw-produce-nowhere"}
            if version >= 13:
                target_names = {"good": topic_id, "elsewhere": bytes(15) + b"\7", "zero id": bytes(16)}
            seen[f"v{version}"] = {
                **{
                    name: comparable(produce(client, target, Batch().encode(), version=version))
                    for name, target in target_names.items()
                },
                "wrong CRC": comparable(
                    produce(client, target_names["good"], Batch(crc=1).encode(), version=version)
                ),
            }
    return seen


@scenario()
def zstd_needs_version_7(broker: Broker) -> Any:
    topic = "raw-produce-zstd"
    payload = zstandard.compress(b"\x0c\0\0\0\1\1\0")
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        return {
            str(version): comparable(
                produce(client, topic, Batch(attributes=4, payload=payload).encode(), version=version)
            )
            for version in (3, 6, 7, 9)
        }


def init_producer(client: RawClient) -> Any:
    """Allocate a producer id. Retry for 5 s, because the broker may not have its first block of ids yet."""
    for _ in range(100):
        response = client.call("InitProducerId", 4, TransactionalId=None, TransactionTimeoutMs=60_000)
        if response["ErrorCode"] != 14:
            return response
        time.sleep(0.05)
    raise TimeoutError("no producer id after 5 s")


@scenario()
def sequences(broker: Broker) -> Any:
    """Produce idempotently with duplicates, gaps and new epochs. The broker knows the last five batches."""
    topic = "raw-produce-sequences"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 3)
        producer = init_producer(client)
        seen["init"] = {**comparable(producer), "ProducerId": producer["ProducerId"] >= 0}

        def send(
            sequence: int, epoch: int = 0, records: int = 1, partition: int = 0, pid: int | None = None
        ) -> Any:
            batch = Batch(
                [Record()] * records,
                producer_id=producer["ProducerId"] if pid is None else pid,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            response = produce(client, topic, batch.encode(), partition=partition)
            partition_answer = response["Responses"][0]["PartitionResponses"][0]
            return [
                partition_answer["ErrorCode"],
                partition_answer["BaseOffset"],
                partition_answer["LogStartOffset"],
            ]

        seen["first at 0"] = send(0)
        seen["next"] = send(1, records=3)
        seen["duplicate of the last"] = send(1, records=3)
        seen["duplicate of the first"] = send(0)
        seen["same first sequence, other length"] = send(1, records=2)
        seen["part of a batch"] = send(2, records=2)
        seen["gap"] = send(6)
        seen["in order again"] = [send(sequence) for sequence in range(4, 12)]
        seen["duplicates through the history"] = [send(sequence) for sequence in range(4, 12)]
        seen["older epoch"] = send(12, epoch=-1)
        seen["newer epoch not at 0"] = send(12, epoch=1)
        seen["newer epoch at 0"] = send(0, epoch=1)
        seen["old epoch after the new"] = send(12, epoch=0)
        seen["next sequence in the same epoch"] = send(1, epoch=1)
        seen["other partition, not at 0"] = send(5, epoch=1, partition=1)
        seen["other partition, at 0"] = send(0, epoch=1, partition=1)
        seen["unknown producer, not at 0"] = send(7, pid=999_999, partition=2)
        seen["unknown producer, next sequence"] = send(8, pid=999_999, partition=2)
        seen["unknown producer, negative epochs"] = [
            send(sequence, epoch, pid=888_888, partition=2)
            for epoch, sequence in ((-2, 0), (-(2**15), 5), (-1, 3), (-2, 4), (-1, 9), (0, 6))
        ]
        seen["negative sequence"] = send(-1, epoch=1)
        seen["sequence -2"] = send(-2, epoch=1)
        wrap = 2**31 - 1
        seen["near the end of sequences"] = send(wrap - 1, pid=777_777, partition=2, records=2)
        seen["wrapped to 0"] = send(0, pid=777_777, partition=2)
        seen["across the wrap"] = [
            send(wrap, pid=777_778, partition=2, records=2),
            send(1, pid=777_778, partition=2),
        ]
    return seen


@scenario()
def producer_ids(broker: Broker) -> Any:
    """Send InitProducerId without a transactional id, in every version, and with invalid fields."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        init_producer(client)
        ids = []
        for version in versions_of("InitProducerId"):
            response = client.call("InitProducerId", version, TransactionalId=None, TransactionTimeoutMs=1000)
            ids.append(response["ProducerId"])
            seen[f"v{version}"] = comparable(response)
        seen["ids rise"] = [right - left for left, right in itertools.pairwise(ids)]
        for name, fields in {
            "id 5, epoch 0": {"ProducerId": 5, "ProducerEpoch": 0},
            "id 5, epoch -1": {"ProducerId": 5},
            "epoch 3": {"ProducerEpoch": 3},
        }.items():
            seen[name] = comparable(
                client.call("InitProducerId", 4, TransactionalId=None, TransactionTimeoutMs=1, **fields)
            )
        seen["timeout 0"] = comparable(
            client.call("InitProducerId", 4, TransactionalId=None, TransactionTimeoutMs=0)
        )
        seen["empty transactional id"] = comparable(
            client.call("InitProducerId", 4, TransactionalId="", TransactionTimeoutMs=60_000)
        )
    return seen


@scenario()
def several_topics(broker: Broker) -> Any:
    """Produce to several topics and partitions in one request, some of them invalid."""
    with RawClient(broker.bootstrap) as client:
        create_topic(client, "raw-produce-many-a", 2)
        create_topic(client, "raw-produce-many-b", 1)
        good, bad = Batch().encode(), Batch(crc=3).encode()
        response = client.call(
            "Produce",
            9,
            Acks=-1,
            TimeoutMs=10_000,
            TopicData=[
                {
                    "Name": "raw-produce-many-a",
                    "PartitionData": [
                        {"Index": 1, "Records": good},
                        {"Index": 0, "Records": bad},
                        {"Index": 5, "Records": good},
                    ],
                },
                {"Name": "raw-produce-many-nowhere", "PartitionData": [{"Index": 0, "Records": good}]},
                {"Name": "raw-produce-many-b", "PartitionData": [{"Index": 0, "Records": good}]},
            ],
        )
        return {
            f"{topic['Name']}-{partition['Index']}": comparable(partition)
            for topic in response["Responses"]
            for partition in topic["PartitionResponses"]
        }


@scenario()
def connection_survives_errors(broker: Broker) -> Any:
    """Produce a batch that decompresses to 200 MB, then a valid batch on the same connection."""
    topic = "raw-produce-survives"
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        bomb = Batch(attributes=1, payload=gzip.compress(b"\0" * 200_000_000, 9, mtime=0)).encode()
        return {
            "bomb": comparable(produce(client, topic, bomb)),
            "after": comparable(produce(client, topic, Batch().encode())),
        }
