"""Transactions that Python clients cannot commit: fencing, timeouts, rejected records, former members."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from interop.brokers import Broker
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic, producer_of
from interop.scenarios.clients_transactions import isolation_views, read_by_librdkafka

WAIT_S = 20
TIMEOUT_MS = 1500
TOO_LARGE = "x" * 5000
CHECK_S = 40.0
"""The maximum wait in seconds for an abort. Every ten seconds, coordinators abort timed-out transactions."""


class TransactionalClient(ABC):
    """A transactional producer of a client library, with the same methods for every library."""

    def __init__(self, broker: Broker, transactional_id: str, topic: str, timeout_ms: int = 60_000) -> None:
        self.topic = topic

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, value: str) -> None:
        """Send a record and wait for its acknowledgment."""

    @abstractmethod
    def send_offset(self, group: str, offset: int) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class ConfluentClient(TransactionalClient):
    def __init__(self, broker: Broker, transactional_id: str, topic: str, timeout_ms: int = 60_000) -> None:
        super().__init__(broker, transactional_id, topic, timeout_ms)
        self.broker = broker
        self.producer = producer_of(
            broker, **{"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        )
        self.producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, value: str) -> None:
        failed: list[Any] = []
        self.producer.produce(
            self.topic, value, partition=0, on_delivery=lambda error, _: failed.append(error)
        )
        self.producer.flush(WAIT_S)
        if failed[0] is not None:
            raise KafkaException(failed[0])

    def send_offset(self, group: str, offset: int) -> None:
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": group})
        metadata = reader.consumer_group_metadata()
        reader.close()
        self.producer.send_offsets_to_transaction(
            [ConfluentPartition(self.topic, 0, offset)], metadata, WAIT_S
        )

    def commit(self) -> None:
        self.producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self.producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        self.producer.purge()


class KafkaPythonClient(TransactionalClient):
    def __init__(self, broker: Broker, transactional_id: str, topic: str, timeout_ms: int = 60_000) -> None:
        super().__init__(broker, transactional_id, topic, timeout_ms)
        self.producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, value: str) -> None:
        self.producer.send(self.topic, value.encode(), partition=0).get(WAIT_S)

    def send_offset(self, group: str, offset: int) -> None:
        self.producer.send_offsets_to_transaction(
            {TopicPartition(self.topic, 0): OffsetAndMetadata(offset, "", -1)}, group
        )

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=1)


class AiokafkaClient(TransactionalClient):
    def __init__(self, broker: Broker, transactional_id: str, topic: str, timeout_ms: int = 60_000) -> None:
        super().__init__(broker, transactional_id, topic, timeout_ms)
        self.loop = asyncio.new_event_loop()

        async def created() -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )

        self.producer = self._run(created())
        self._run(self.producer.start())

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, WAIT_S))

    def begin(self) -> None:
        self._run(self.producer.begin_transaction())

    def send(self, value: str) -> None:
        self._run(self.producer.send_and_wait(self.topic, value.encode(), partition=0))

    def send_offset(self, group: str, offset: int) -> None:
        self._run(self.producer.send_offsets_to_transaction({AioPartition(self.topic, 0): offset}, group))

    def commit(self) -> None:
        self._run(self.producer.commit_transaction())

    def abort(self) -> None:
        self._run(self.producer.abort_transaction())

    def close(self) -> None:
        attempt(lambda: self._run(self.producer.stop()))
        self.loop.close()


CLIENTS: dict[str, type[TransactionalClient]] = {
    "confluent": ConfluentClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AiokafkaClient,
}


def attempt(action: Callable[[], Any]) -> Any:
    """Call the action. Return "ok", or the class of the exception that the action raised.

    For an error of librdkafka, return its name, whether it is fatal, and whether it requires an abort.
    """
    try:
        action()
    except KafkaException as failure:
        error = failure.args[0]
        return [error.name(), error.fatal(), error.txn_requires_abort()]
    except Exception as failure:
        return type(failure).__name__
    return "ok"


def observe_each_client(
    broker: Broker, what: str, observe: Callable[[Broker, type[TransactionalClient], str], Any]
) -> Any:
    """Return an observation for each client library. Its topic is `transactions-<what>-<library>`."""
    seen: dict[str, Any] = {}
    for name, client in CLIENTS.items():
        topic = f"transactions-{what}-{name}"
        make_topic(broker, topic)
        seen[name] = observe(broker, client, topic)
    return seen


@scenario(seconds=120)
def fenced(broker: Broker) -> Any:
    """Start a second producer with the same transactional id. The first transaction must be aborted."""

    def observe(broker: Broker, client: type[TransactionalClient], topic: str) -> Any:
        seen: dict[str, Any] = {}
        for last in ("commit", "abort", "send"):
            zombie = client(broker, topic, topic)
            zombie.begin()
            zombie.send(f"zombie before {last}")
            other = client(broker, topic, topic)
            other.begin()
            other.send(f"other before {last}")
            if last == "send":
                # The second producer's transaction must end first. After an error, kafka-python requests a
                # new epoch, and may get one, also from Apache Kafka.
                seen["other before send"] = attempt(other.commit)
                seen["send is refused"] = attempt(partial(zombie.send, "zombie again")) != "ok"
            else:
                seen[last] = attempt(zombie.commit if last == "commit" else zombie.abort)
                seen[f"commit after {last}"] = attempt(zombie.commit)
                seen[f"other after {last}"] = attempt(other.commit)
            zombie.close()
            other.close()
        return [seen, isolation_views(broker, topic)]

    return observe_each_client(broker, "fenced", observe)


@scenario(seconds=120)
def timed_out(broker: Broker) -> Any:
    """Let transactions time out. Readers must continue, and the producer must get an error."""
    producers: dict[str, TransactionalClient] = {}
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    for name, client in CLIENTS.items():
        topic = f"transactions-timed-out-{name}"
        make_topic(broker, topic)
        producers[topic] = client(broker, topic, topic, TIMEOUT_MS)
    for topic, producer in producers.items():
        producer.begin()
        producer.send("too slow")
        plain.produce(topic, "plain", partition=0)
    assert plain.flush(WAIT_S) == 0
    seen: dict[str, Any] = {}
    deadline = time.monotonic() + CHECK_S
    for topic, producer in producers.items():
        while read_by_librdkafka(broker, topic, "read_committed") != ["plain"]:
            assert time.monotonic() < deadline, f"the transaction in {topic} is not ended"
            time.sleep(0.2)
        seen[topic] = {"commit": attempt(producer.commit), "abort": attempt(producer.abort)}
        producer.close()
        successor = type(producer)(broker, topic, topic)
        successor.begin()
        successor.send("of the next")
        seen[topic]["the next"] = attempt(successor.commit)
        successor.close()
        seen[topic]["views"] = isolation_views(broker, topic)
    return seen


@scenario(seconds=120)
def rejected_record(broker: Broker) -> Any:
    """Send a record that the topic rejects. Only an abort is possible; the next transaction succeeds."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def observe(broker: Broker, client: type[TransactionalClient], topic: str) -> Any:
        narrow = f"{topic}-narrow"
        admin.create_topics([NewTopic(narrow, 1, 1, config={"max.message.bytes": "1000"})])[narrow].result(30)
        producer = client(broker, topic, narrow)
        seen: dict[str, Any] = {}
        producer.begin()
        seen["small"] = attempt(lambda: producer.send("small"))
        seen["large"] = attempt(lambda: producer.send(TOO_LARGE))
        seen["commit"] = attempt(producer.commit)
        seen["abort"] = attempt(producer.abort)
        seen["begin"] = attempt(producer.begin)
        seen["again"] = attempt(lambda: producer.send("again"))
        seen["commit again"] = attempt(producer.commit)
        producer.close()
        return [seen, isolation_views(broker, narrow)]

    return observe_each_client(broker, "refused", observe)


@scenario(seconds=120)
def offset_commits(broker: Broker) -> Any:
    """Commit offsets in transactions. An aborted transaction must not change the committed offsets."""

    def observe(broker: Broker, client: type[TransactionalClient], topic: str) -> Any:
        group = f"{topic}-group"

        def committed() -> int:
            reader = KafkaConsumer(
                bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False
            )
            found = reader.committed(TopicPartition(topic, 0))
            reader.close()
            return -1 if found is None else int(found)

        producer = client(broker, topic, topic)
        seen: list[Any] = []
        for offset, end in ((3, producer.commit), (5, producer.abort), (4, producer.commit)):
            producer.begin()
            producer.send(f"with {offset}")
            seen.append(attempt(partial(producer.send_offset, group, offset)))
            seen.append([attempt(end), committed()])
        # This transaction contains only an offset. Then its producer is fenced.
        producer.begin()
        seen.append(attempt(lambda: producer.send_offset(group, 9)))
        successor = client(broker, topic, topic)
        seen.append([attempt(producer.commit), committed()])
        successor.begin()
        seen.append(attempt(lambda: successor.send_offset(group, 7)))
        seen.append([attempt(successor.commit), committed()])
        producer.close()
        successor.close()
        return [seen, isolation_views(broker, topic)]

    return observe_each_client(broker, "offsets", observe)


@scenario(seconds=90)
def former_group_member(broker: Broker) -> Any:
    """Commit offsets as a former group member. The coordinator must reject the commit (KIP-447)."""
    topic = "transactions-members-that-left"
    make_topic(broker, topic)
    seen: dict[str, Any] = {}
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False}
    reader = Consumer(settings)
    reader.subscribe([topic])
    while not reader.assignment():
        reader.poll(0.1)
    metadata = reader.consumer_group_metadata()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(WAIT_S)

    def copy(offset: int) -> None:
        producer.begin_transaction()
        producer.produce(topic, f"with {offset}", partition=0)
        assert producer.flush(WAIT_S) == 0
        producer.send_offsets_to_transaction([ConfluentPartition(topic, 0, offset)], metadata, WAIT_S)

    seen["as a member"] = [attempt(lambda: copy(1)), attempt(lambda: producer.commit_transaction(WAIT_S))]
    reader.close()
    seen["as a former member"] = [
        attempt(lambda: copy(2)),
        attempt(lambda: producer.commit_transaction(WAIT_S)),
    ]
    seen["abort"] = attempt(lambda: producer.abort_transaction(WAIT_S))
    python_reader = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=topic, enable_auto_commit=False
    )
    # If the client joins before it has metadata, it may assign no partitions to itself and not rebalance
    # later.
    assert python_reader.partitions_for_topic(topic) == {0}
    python_reader.subscribe([topic])
    while not python_reader.assignment():
        python_reader.poll(100)
    python_metadata = python_reader.group_metadata()
    python_producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-python")
    python_producer.init_transactions()

    def copy_python(offset: int) -> None:
        python_producer.begin_transaction()
        python_producer.send(topic, b"with %d" % offset, partition=0).get(WAIT_S)
        python_producer.send_offsets_to_transaction(
            {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}, python_metadata
        )

    seen["as a member, kafka-python"] = [
        attempt(lambda: copy_python(3)),
        attempt(python_producer.commit_transaction),
    ]
    python_reader.close()
    seen["as a former member, kafka-python"] = [
        attempt(lambda: copy_python(4)),
        attempt(python_producer.commit_transaction),
    ]
    seen["abort, kafka-python"] = attempt(python_producer.abort_transaction)
    python_producer.close()
    last = Consumer(settings)
    seen["committed"] = [place.offset for place in last.committed([ConfluentPartition(topic, 0)], WAIT_S)]
    last.close()
    return [seen, isolation_views(broker, topic)]
