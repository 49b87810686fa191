"""Transactional producers and read_committed readers of two client libraries, behind one interface."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as RdProducer
from confluent_kafka import TopicPartition as RdPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError as PythonKafkaError

RETRY_S = 40.0
"""The time limit for retries of one call, in seconds. It covers a restart of the broker."""


class ClientFailed(Exception):
    """A call failed and must not be retried. The transaction can be aborted, or the producer abandoned."""


class Writer(Protocol):
    """A transactional producer. Each method can raise ClientFailed."""

    def init(self) -> None:
        """Initialize the transactional id, which fences its previous producer."""

    def begin(self) -> None: ...

    def send(self, partition: int, value: bytes) -> None: ...

    def flush(self) -> None:
        """Wait at most two seconds until the broker has accepted or rejected every sent record."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def drop(self) -> None:
        """Abandon the producer without ending its open transaction."""


class ConfluentWriter:
    """librdkafka's producer."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str, timeout_ms: int) -> None:
        self._topic = topic
        self._producer = RdProducer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def _again(self, call: Callable[[float], Any]) -> None:
        deadline = time.monotonic() + RETRY_S
        while True:
            try:
                call(2.0)
                return
            except KafkaException as raised:
                error = raised.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise ClientFailed(error.name()) from raised

    def init(self) -> None:
        self._again(self._producer.init_transactions)

    def begin(self) -> None:
        self._again(lambda _: self._producer.begin_transaction())

    def send(self, partition: int, value: bytes) -> None:
        try:
            self._producer.produce(self._topic, value, partition=partition)
        except KafkaException as error:
            raise ClientFailed(error.args[0].name()) from error

    def flush(self) -> None:
        self._producer.flush(2.0)

    def commit(self) -> None:
        self._again(self._producer.commit_transaction)

    def abort(self) -> None:
        self._again(self._producer.abort_transaction)

    def drop(self) -> None:
        self._producer.purge()


class PythonWriter:
    """kafka-python's producer.

    After some errors, kafka-python starts a new producer epoch, and then the commit of the now empty
    transaction succeeds. So a commit counts only if the broker has acknowledged every record.
    """

    def __init__(self, bootstrap: str, topic: str, transactional_id: str, timeout_ms: int) -> None:
        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=timeout_ms + 2000,
            request_timeout_ms=timeout_ms,
            linger_ms=1,
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            max_block_ms=int(RETRY_S * 1000),
        )
        self._sent: list[Any] = []

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except (PythonKafkaError, AssertionError) as error:
            raise ClientFailed(type(error).__name__) from error

    def init(self) -> None:
        self._try(self._producer.init_transactions)

    def begin(self) -> None:
        self._sent = []
        self._try(self._producer.begin_transaction)

    def send(self, partition: int, value: bytes) -> None:
        self._try(lambda: self._sent.append(self._producer.send(self._topic, value, partition=partition)))

    def flush(self) -> None:
        self._try(lambda: self._producer.flush(timeout=2.0))

    def commit(self) -> None:
        self._try(self._producer.commit_transaction)
        for future in self._sent:
            if not future.succeeded():
                raise ClientFailed(f"a record was refused: {type(future.exception).__name__}")

    def abort(self) -> None:
        self._try(self._producer.abort_transaction)

    def drop(self) -> None:
        self._producer.close(timeout=0)


Seen = tuple[int, int, bytes]
"""The partition, offset and value of a record."""


class Reader(Protocol):
    def poll(self) -> list[Seen]:
        """Return the records that arrive within 100 ms, possibly none. Raises ClientFailed after an error."""

    def close(self) -> None: ...


class ConfluentReader:
    """librdkafka's consumer."""

    def __init__(self, bootstrap: str, topic: str, positions: dict[int, int]) -> None:
        self._consumer = RdConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "exactly-once",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([RdPartition(topic, partition, at) for partition, at in positions.items()])

    def poll(self) -> list[Seen]:
        found: list[Seen] = []
        for message in self._consumer.consume(500, 0.1):
            error = message.error()
            if error is None:
                found.append((message.partition() or 0, message.offset() or 0, message.value() or b""))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise ClientFailed(str(error))
        return found

    def close(self) -> None:
        self._consumer.close()


class PythonReader:
    """kafka-python's consumer."""

    def __init__(self, bootstrap: str, topic: str, positions: dict[int, int]) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            fetch_max_wait_ms=100,
        )
        self._consumer.assign([TopicPartition(topic, partition) for partition in positions])
        for partition, at in positions.items():
            self._consumer.seek(TopicPartition(topic, partition), at)

    def poll(self) -> list[Seen]:
        try:
            polled = self._consumer.poll(timeout_ms=100)
        except PythonKafkaError as error:
            raise ClientFailed(type(error).__name__) from error
        return [
            (record.partition, record.offset, record.value)
            for records in polled.values()
            for record in records
        ]

    def close(self) -> None:
        self._consumer.close()


WRITERS: dict[str, Callable[[str, str, str, int], Writer]] = {
    "confluent": ConfluentWriter,
    "python": PythonWriter,
}
READERS: dict[str, Callable[[str, str, dict[int, int]], Reader]] = {
    "confluent": ConfluentReader,
    "python": PythonReader,
}
