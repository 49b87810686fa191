"""Unmodified clients that produce to a topic and consume it, each in a thread. They record a history.

The clients have default settings, except for some timeouts of minutes, so the history shows what users would
see. A producer sends slowly, so that it is active during the whole scenario. A producer numbers its records
and sends each of them once, to a partition that the number determines.
"""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import CommitFailedError, NoOffsetForPartitionError, OffsetOutOfRangeError
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer

from interop.brokers import start_tool
from interop.cluster.identities import find_client_resends
from interop.cluster.logins import Login
from interop.tools import a_file
from kwire.testing.history import UNKNOWN_OFFSET, History, Partition

PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL)
"""Delivery errors of records in a transaction that a transactional producer has discarded."""
PAUSE_S = 0.01
"""The pause between two sends of a producer, in seconds."""
END_SECONDS = 60.0
"""The time limit for a client to make progress or to stop, in seconds."""
LOG_SETTINGS: Final[dict[str, Any]] = (
    {"debug": os.environ["INTEROP_DEBUG"]} if "INTEROP_DEBUG" in os.environ else {"log_level": 0}
)
"""librdkafka logs only if INTEROP_DEBUG has debug contexts such as `eos`, and then to standard error."""


class Load:
    """Clients on a topic, running from `start` to `stop`. `check` verifies the history."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, login: Login | None = None) -> None:
        self.bootstrap = bootstrap
        self.login = login
        self.of_librdkafka: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.of_python: dict[str, Any] = {"bootstrap_servers": bootstrap.split(",")}
        self.of_java: dict[str, str] = {}
        if login is not None:
            self.of_librdkafka |= login.of_librdkafka()
            self.of_python |= login.of_python()
            self.of_java |= login.of_java()
        self.topic = topic
        self.partitions = partitions
        self.history = History()
        self.errors: list[str] = []
        """Errors that the client libraries reported."""
        self.writers: list[Client] = []
        self.readers: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in [*self.writers, *self.readers]:
            client.stopping.set()

    def start(self, *kinds: type[Client]) -> None:
        for kind in kinds:
            client = kind(self)
            (self.readers if kind.reads else self.writers).append(client)
            client.start()

    def wait_until_all_write(self) -> None:
        """Wait until every producer has received the acknowledgment of a record sent after this call.

        Also wait until every consumer has received a record. Otherwise, a short scenario could end before a
        group has formed.
        """
        # The Java program does not report how many records it has sent, only how many were acknowledged.
        sent = {client: max(client.sent, client.acknowledged) for client in self.writers}

        def waiting() -> list[str]:
            writers = [client.name for client in self.writers if client.acknowledged <= sent[client]]
            return writers + [client.name for client in self.readers if not client.seen]

        deadline = time.monotonic() + END_SECONDS
        while names := waiting():
            assert time.monotonic() < deadline, f"{', '.join(names)} cannot write, or read; {self.errors}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the producers. Then wait until the consumers have read everything, and stop them."""
        for client in self.writers:
            client.end()
        records = read_all(self.bootstrap, self.topic, self.partitions, self.of_librdkafka)
        self.history.on_final_read("auditor", records)
        own = [record for record in records if record[-1].startswith(ConfluentWriter.name.encode())]
        for value, identities in find_client_resends(self.bootstrap, self.login, own).items():
            self.history.on_resend(value)
            warnings.warn(f"{value!r} was sent as {identities}: librdkafka's issue 4953", stacklevel=1)
        ends = {place: offset for place, offset, _ in records}
        deadline = time.monotonic() + END_SECONDS
        for client in self.readers:
            while not client.has_read(ends) and time.monotonic() < deadline:
                time.sleep(0.1)
            client.end()
            self.history.expect_all_read(client.name)

    def check(self) -> None:
        """Check that no client reported an error and that the history contains no anomaly."""
        found = [*self.errors, *map(str, self.history.anomalies())]
        assert not found, "\n" + "\n".join(found)


class Client(ABC):
    """A client that runs in its own thread."""

    name = "client"
    reads = False

    def __init__(self, load: Load) -> None:
        self.load = load
        self.stopping = threading.Event()
        self.seen: dict[Partition, int] = {}
        self.sent = 0
        """The number of records that were sent."""
        self.acknowledged = 0
        """One more than the highest record number that was acknowledged."""
        self._thread = threading.Thread(target=self._body, name=self.name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """Run until `stopping` is set."""

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.stopping.set()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self.report_error("does not end")

    def has_read(self, ends: dict[Partition, int]) -> bool:
        return all(self.seen.get(place, -1) >= offset for place, offset in ends.items())

    def _body(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.report_error(f"ended: {type(error).__name__}: {error}")

    def report_error(self, what: str) -> None:
        self.load.errors.append(f"{self.name}: {what}")

    def on_send(self, number: int, **more: Any) -> tuple[int, bytes]:
        """Record in the history that record `number` is sent next. Return its partition and value.

        `more` are further arguments of `History.on_send`.
        """
        partition = number % self.load.partitions
        value = f"{self.name} {number}".encode()
        self.load.history.on_send(self.name, (self.load.topic, partition), value, **more)
        self.sent = number + 1
        return partition, value

    def on_ack(self, value: bytes, offset: int | None) -> None:
        """Record an acknowledgment. The offset is None if the broker reported the record as a duplicate."""
        self.load.history.on_ack(value, UNKNOWN_OFFSET if offset is None else offset)
        self.acknowledged = max(self.acknowledged, int(value.rsplit(b" ")[-1]) + 1)

    def on_record(self, partition: int, offset: int, value: bytes) -> None:
        place = self.load.topic, partition
        self.load.history.on_poll(self.name, [(place, offset, value)])
        self.seen[place] = max(offset, self.seen.get(place, -1))

    def on_assign(self, partition: int) -> None:
        self.load.history.on_seek(self.name, (self.load.topic, partition))


class ConfluentWriter(Client):
    """librdkafka's idempotent producer.

    If a later batch reaches a new leader before an earlier batch, librdkafka raises its producer epoch and
    sends every unacknowledged batch again, including batches that the former leader has replicated
    (librdkafka issue 4953; also seen with Apache Kafka alone). Such a record is in the log twice, under two
    identities. A duplicate under a single identity is the broker's fault.
    """

    name = "librdkafka"

    def run(self) -> None:
        producer = Producer({**self.load.of_librdkafka, "enable.idempotence": True})
        number = 0
        while not self.stopping.is_set():
            partition, value = self.on_send(number)
            producer.produce(self.load.topic, value, partition=partition, on_delivery=self._delivered)
            producer.poll(PAUSE_S)
            number += 1
        assert producer.flush(END_SECONDS) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.report_error(str(error))
        else:
            self.on_ack(message.value(), message.offset())


class TransactionalWriter(Client):
    """librdkafka's transactional producer: four records per transaction, every seventh transaction aborted.

    If the producer aborts a transaction that the coordinator has not started, while the previous transaction
    is incomplete, the coordinator returns INVALID_TXN_STATE, as in Apache Kafka. This is fatal for the
    producer, and can happen while coordinators move. Then a new producer continues, as librdkafka's
    documentation says, and the outcome of the transaction is unknown.

    A batch of an aborted transaction may be in the broker's log although the producer still waits to send it
    again. librdkafka gives the sequence numbers of this batch to the next records, so the broker treats the
    next records as duplicates, and they are lost (`rd_kafka_toppar_purge_queues`; seen with 2.16 after a lost
    Produce response). So a new producer also continues after a purge.
    """

    name = "transactional"
    purged = False

    def run(self) -> None:
        producer = self._producer()
        transaction = 0
        while not self.stopping.is_set():
            transaction += 1
            title = f"transaction {transaction}"
            if self.purged:
                producer = self._producer()
            try:
                self._write(producer, transaction, title)
            except KafkaException as error:
                if error.args[0].fatal():
                    producer = self._producer()
                elif error.args[0].txn_requires_abort():
                    self._again(producer.abort_transaction)
                    self.load.history.on_transaction_end(title, committed=False)
                else:
                    raise

    def _producer(self) -> Producer:
        self.purged = False
        producer = Producer(
            {
                **self.load.of_librdkafka,
                "transactional.id": self.name,
                # By default, librdkafka waits a minute for a paused coordinator. The records would time out
                # within the same minute.
                "socket.timeout.ms": 15_000,
                **LOG_SETTINGS,
            }
        )
        self._again(producer.init_transactions)
        return producer

    def _write(self, producer: Producer, transaction: int, title: str) -> None:
        producer.begin_transaction()
        for number in range(4 * transaction, 4 * transaction + 4):
            partition, value = self.on_send(number, transaction=title)
            producer.produce(self.load.topic, value, partition=partition, on_delivery=self._delivered)
            producer.poll(PAUSE_S)
        if aborts := transaction % 7 == 0:
            producer.flush(5.0)
        self._again(producer.abort_transaction if aborts else producer.commit_transaction)
        self.load.history.on_transaction_end(title, committed=not aborts)

    def _again(self, call: Any) -> None:
        """Run `call` until it succeeds. Retries retriable errors for END_SECONDS, and raises all others."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            try:
                call(5.0)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.on_ack(message.value(), message.offset())
        elif error.code() in PURGED:
            self.purged = True
        else:
            self.report_error(str(error))


class PythonWriter(Client):
    """kafka-python's producer, which is idempotent by default."""

    name = "kafka-python"

    def run(self) -> None:
        producer = KafkaProducer(**self.load.of_python)
        number = 0
        while not self.stopping.is_set():
            partition, value = self.on_send(number)
            future = producer.send(self.load.topic, value, partition=partition)
            future.add_callback(lambda found, value=value: self.on_ack(value, found.offset))
            future.add_errback(lambda error: self.report_error(f"{type(error).__name__}: {error}"))
            number += 1
            time.sleep(PAUSE_S)
        producer.close(timeout=END_SECONDS)


class AioWriter(Client):
    """aiokafka's idempotent producer."""

    name = "aiokafka"
    metadata_max_age_ms = 300_000
    """aiokafka's default."""

    def run(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        producer = AIOKafkaProducer(
            **self.load.of_python,
            enable_idempotence=True,
            metadata_max_age_ms=self.metadata_max_age_ms,
        )
        await producer.start()
        sends: set[asyncio.Task[None]] = set()
        number = 0
        while not self.stopping.is_set():
            partition, value = self.on_send(number)
            # The order of the records is the order in which calls of `send` return, so the calls are
            # sequential.
            future = await producer.send(self.load.topic, value, partition=partition)
            task = asyncio.create_task(self._acknowledged(future, value))
            sends.add(task)
            task.add_done_callback(sends.discard)
            number += 1
            await asyncio.sleep(PAUSE_S)
        await producer.stop()
        await asyncio.gather(*sends)

    async def _acknowledged(self, future: Any, value: bytes) -> None:
        try:
            found = await future
        except Exception as error:
            self.report_error(f"{type(error).__name__}: {error}")
        else:
            self.on_ack(value, found.offset)


class JavaWriter(Client):
    """Kafka's VerifiableProducer, a Java program that sends numbered records with the Java producer."""

    name = "java"

    def run(self) -> None:
        assert self.load.partitions == 1
        rate = int(1 / PAUSE_S)
        # VerifiableProducer sets no retries by default, unlike the Java producer.
        settings = {"retries": "2147483647", **self.load.of_java}
        with a_file("".join(f"{key}={value}\n" for key, value in settings.items())) as config:
            process = start_tool(
                "org.apache.kafka.tools.VerifiableProducer",
                *("--bootstrap-server", self.load.bootstrap, "--topic", self.load.topic),
                *("--throughput", str(rate), "--value-prefix", "7", "--command-config", config),
                stderr=subprocess.DEVNULL,
            )
            threading.Thread(target=self._ends, args=(process,), daemon=True).start()
            assert process.stdout is not None
            declared = 0
            for line in process.stdout:
                event = json.loads(line)
                if event["name"] == "producer_send_success":
                    number = int(event["value"].partition(".")[2])
                    while declared <= number + 20 * rate:
                        self.load.history.on_send(self.name, (self.load.topic, 0), b"7.%d" % declared)
                        declared += 1
                    self.load.history.on_ack(event["value"].encode(), event["offset"])
                    self.acknowledged = number + 1
                elif event["name"] == "producer_send_error":
                    self.report_error(event["message"])

    def _ends(self, process: subprocess.Popen[bytes]) -> None:
        self.stopping.wait()
        process.terminate()


class ConfluentReader(Client):
    """librdkafka's consumer in a group, with isolation level read_committed."""

    name = "group of librdkafka"
    reads = True

    def run(self) -> None:
        consumer = Consumer(
            {
                **self.load.of_librdkafka,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([self.load.topic], on_assign=self._assigned)
        while not self.stopping.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.on_record(message.partition(), message.offset(), message.value())
            elif not error.retriable():
                self.report_error(str(error))
        consumer.close()

    def _assigned(self, _: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.on_assign(partition.partition)


class PythonReader(Client, ConsumerRebalanceListener):  # type: ignore[misc]
    """kafka-python's consumer in a group, with isolation level read_committed."""

    name = "group of kafka-python"
    reads = True

    def run(self) -> None:
        consumer = KafkaConsumer(
            **self.load.of_python,
            group_id=self.name,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        consumer.subscribe([self.load.topic], listener=self)
        while not self.stopping.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    self.on_record(record.partition, record.offset, record.value)
        consumer.close()

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        for partition in assigned:
            self.on_assign(partition.partition)


class AioReader(Client):
    """aiokafka's consumer in a group, with isolation level read_committed.

    aiokafka sends no leader epoch with a fetch. So a disconnected former leader may receive a fetch offset
    that only the new leader has. After the former leader has truncated its log, it returns
    OFFSET_OUT_OF_RANGE, as Apache Kafka does (see `test_network_faults`). An automatic offset reset would
    read everything again, so this consumer retries the fetch.
    """

    name = "group of aiokafka"
    reads = True

    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            self.load.topic,
            **self.load.of_python,
            group_id=self.name,
            auto_offset_reset="none",
            isolation_level="read_committed",
            # aiokafka sends ListOffsets to a former leader until its metadata expires, by default after five
            # minutes.
            metadata_max_age_ms=10_000,
        )
        await consumer.start()
        while not self.stopping.is_set():
            try:
                found = await consumer.getmany(timeout_ms=100)
            except NoOffsetForPartitionError:
                await consumer.seek_to_beginning()
                continue
            except OffsetOutOfRangeError as error:
                warnings.warn(f"{self.name}: {error}", stacklevel=1)
                continue
            for records in found.values():
                for record in records:
                    self.on_record(record.partition, record.offset, record.value)
        # The commit in aiokafka's `stop` does not look up a coordinator that has moved, and retries forever.
        with suppress(CommitFailedError):
            await consumer.commit()
        await consumer.stop()


CLIENTS: Final[tuple[type[Client], ...]] = (
    ConfluentReader,
    PythonReader,
    AioReader,
    ConfluentWriter,
    PythonWriter,
    AioWriter,
    TransactionalWriter,
)
"""All clients that do not need a JVM."""
ALL_CLIENTS: Final[tuple[type[Client], ...]] = (*CLIENTS, JavaWriter)


def read_all(
    bootstrap: str, topic: str, partitions: int, settings: Mapping[str, Any] = {}
) -> list[tuple[Partition, int, bytes]]:
    """Return the committed records of a topic from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "enable.partition.eof": True,
            "log_level": 0,
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    found: list[tuple[Partition, int, bytes]] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + END_SECONDS
    while len(at_end) < partitions:
        assert time.monotonic() < deadline, f"{topic} is not read to the end: {sorted(at_end)}"
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                found.append(((topic, message.partition()), message.offset(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    consumer.close()
    return found
