"""Avro values from a topic to an archive, and dead letters for values that cannot be decoded."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from interop.brokers import Broker
from interop.pipeline.job_runs import Jobs, kafka
from interop.pipeline_kills.reading import read_topics
from interop.reference import HERE

WAIT_S: Final = 30.0
TOPIC, DEAD = "orders", "orders.dead"
PARTITIONS: Final = 2
START_MS: Final = 1_359_590_400_000
"""An old timestamp. Retention must not delete dead letters with such timestamps."""
COST: Final[dict[str, Any]] = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
REASON: Final = [f"kwire.{key}" for key in ("error", "topic", "partition", "offset", "timestamp")]
OLD: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "client", "type": "string"},
        {"name": "cost", "type": COST},
        {"name": "note", "type": "string"},
    ],
}

Partition = tuple[int, int]


@pytest.fixture
def broker(kind: type[Broker]) -> Iterator[Broker]:
    """Start a broker for one test only."""
    broker = kind()
    try:
        broker.start()
        yield broker
    finally:
        broker.discard()


@contextmanager
def registry() -> Iterator[str]:
    """Start the tests' schema registry in a separate process, and yield its address."""
    command = [sys.executable, "-m", "tests.pipeline.schema_registry"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


class Orders:
    """The records that the test writes, and the expected results."""

    def __init__(self, broker: Broker, url: str) -> None:
        self._producer = Producer({"bootstrap.servers": broker.bootstrap})
        self._url = url
        self._next = [0] * PARTITIONS
        self.data: dict[Partition, Any] = {}
        """The expected decoded value by partition and offset, or None if there is none."""
        self.dead: dict[Partition, tuple[Any, ...]] = {}
        """The key, value, headers, timestamp, and a part of the expected error."""

    def encode(self, schema: Any, orders: list[dict[str, Any]]) -> list[bytes]:
        """Encode orders with confluent's Avro serializer."""
        with SchemaRegistryClient({"url": self._url}) as client:
            serializer = AvroSerializer(client, json.dumps(schema))
            where = SerializationContext(TOPIC, MessageField.VALUE)
            return [serializer(order, where) for order in orders]

    def send(self, value: bytes | None, data: Any, why: str = "") -> None:
        """Send a record to the two partitions alternately, and note the expected decoded `data`.

        `why` is a part of the expected error, or empty if the value is valid.
        """
        partition = sum(self._next) % PARTITIONS
        place = (partition, self._next[partition])
        self._next[partition] += 1
        key = f"key {place}".encode() if place[1] % 2 else None
        headers = [("a", b"1"), ("a", b""), ("none", None)] if place[1] % 3 else []
        at_ms = START_MS + place[1] * 60_000
        self._producer.produce(TOPIC, value, key, partition, timestamp=at_ms, headers=headers)
        self.data[place] = data
        if why:
            self.dead[place] = (key, value, headers, at_ms, why)

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0


def read_dead(broker: Broker) -> dict[Partition, list[Any]]:
    """Return the dead letters as a plain consumer reads them, by original partition and offset."""
    found: dict[Partition, list[Any]] = {}
    for record in chain.from_iterable(read_topics(broker.bootstrap, [DEAD]).values()):
        about = {key: (value or b"").decode() for key, value in record.headers[-5:]}
        assert list(about) == REASON
        assert about["kwire.topic"] == TOPIC
        place = (int(about["kwire.partition"]), int(about["kwire.offset"]))
        headers, at_ms = list(record.headers[:-5]), int(about["kwire.timestamp"])
        found.setdefault(place, []).append((record.key, record.value, headers, at_ms, about["kwire.error"]))
    return found


def read_archive(directory: Path) -> dict[Partition, list[Any]]:
    """Return value, decoded data and error of each archived record, by partition and offset."""
    found: dict[Partition, list[Any]] = {}
    for manifest in sorted((directory / "_manifests").glob("*.json")):
        for file in json.loads(manifest.read_text())["files"]:
            rows = pq.ParquetFile(directory / file["path"]).read(["offset", "value", "data", "data_error"])
            for row in rows.to_pylist():
                place = (file["partition"], row["offset"])
                found.setdefault(place, []).append((row["value"], row["data"], row["data_error"]))
    return found


def judge(broker: Broker, directory: Path, orders: Orders) -> None:
    archived = read_archive(directory)
    assert archived.keys() == orders.data.keys()
    for place, rows in archived.items():
        assert len(rows) == 1, place
        _, data, error = rows[0]
        assert data == orders.data[place], place
        if place in orders.dead:
            assert orders.dead[place][4] in error, place
        else:
            assert error is None, place
    dead = read_dead(broker)
    assert dead.keys() == orders.dead.keys()
    for place, letters in dead.items():
        assert len(letters) == 1, place
        assert letters[0][:4] == orders.dead[place][:4]
        assert orders.dead[place][4] in letters[0][4]


def test_avro_orders_become_columns_and_others_dead_letters(broker: Broker, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new_topic = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin.create_topics([new_topic])[TOPIC].result(WAIT_S)
    directory = tmp_path / "archive"
    config: dict[str, Any] = {
        "input": kafka(broker, TOPIC, maxOffsetsPerTrigger=80),
        "archive": {"directory": str(directory)},
    }
    with registry() as url:
        config["values"] = {
            "format": "avro",
            "registry": url,
            "dead_letter": DEAD,
            "registry_client": {"max.retries": 0},
        }
        orders = Orders(broker, url)
        old: list[dict[str, Any]] = [
            {"id": n, "client": f"c{n}", "cost": Decimal(n) / 100, "note": ""} for n in range(100)
        ]
        values = orders.encode(OLD, old)
        for order, value in zip(old, values, strict=True):
            orders.send(value, order)
            if order["id"] % 25 == 7:
                orders.send(None, None)
                orders.send(b"\x01" + value[1:], None, "the first byte is 1")
                orders.send(b"\x00\x00\x0f\xff\xff" + value[5:], None, "is not in the registry")
                orders.send(value[:-1], None, "ends within its record")
                orders.send(b"", None, "0 bytes: too few for a schema id")
        orders.flush()
        Jobs(tmp_path).run("archive", config)
        judge(broker, directory, orders)
