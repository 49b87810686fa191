"""Kafka Streams with exactly_once_v2: a word count, during which program and broker are killed."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import random
import struct
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from interop.brokers import Broker
from interop.java_programs import JavaProgram, compiled
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic, producer_of

NAME = "streams-words"
PARTITIONS = 3
LINES, WORDS_A_LINE, VOCABULARY = 3000, 6, 150
WAIT_S = 90.0


def lines() -> list[str]:
    rng = random.Random(7)
    return [
        " ".join(f"word{int(rng.triangular(0, VOCABULARY, 0))}" for _ in range(WORDS_A_LINE))
        for _ in range(LINES)
    ]


def program(bootstrap: str, directory: Path, instance: str, **more: Any) -> JavaProgram:
    """Start the word count. A new instance has no local state and restores its state from the changelog."""
    properties = directory / f"{instance}.properties"
    settings = {
        "application.id": NAME,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": directory / instance,
        "num.stream.threads": 2,
        "commit.interval.ms": 100,
        # Without the cache, every word makes an output record, so the output shows if a word is counted
        # twice.
        "statestore.cache.max.bytes": 0,
        "producer.transaction.timeout.ms": 8000,
        "consumer.session.timeout.ms": 6000,
        "consumer.heartbeat.interval.ms": 1000,
        "consumer.auto.offset.reset": "earliest",
        "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$LongSerde",
        **more,
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return JavaProgram(
        "WordCount",
        *(str(properties), NAME, f"{NAME}-counts"),
        log=directory / f"{instance}.log",
        classes=compiled("WordCount"),
    )


class Output:
    """A reader of the committed counts of each word, in the order of the partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.total = 0
        self._topic = topic
        self._last: dict[int | None, int | None] = {}
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    word = (message.key() or b"").decode()
                    self.counts[word].append(struct.unpack(">q", message.value() or b"")[0])
                    self.total += 1
                    self._last[message.partition()] = message.offset()
        self._consumer.close()

    def progress(self) -> str:
        """Return the number of counts read, the position and the end offset by partition, as text."""
        partitions = [TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]
        requested = {partition: OffsetSpec.latest() for partition in partitions}
        ends = {
            level.name: [future.result(30).offset for future in found.values()]
            for level in IsolationLevel
            for found in [self._admin.list_offsets(requested, isolation_level=level)]
        }
        return f"{self.total} counts were read, the last at {self._last}, where logs end at {ends}"

    def wrong_counts(self, words: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the words whose counts are not 1, 2, 3, ... up to the word's frequency.

        The values are the last five counts of each word.
        """
        return {
            word: self.counts.get(word, [])[-5:]
            for word, count in sorted(words.items())
            if self.counts.get(word) != list(range(1, count + 1))
        }

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)


def produce_lines(broker: Broker, text: Iterator[str], count: int) -> None:
    producer = producer_of(broker, **{"enable.idempotence": True})
    for number in range(count):
        producer.produce(NAME, value=next(text), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def internal_topics(broker: Broker) -> Any:
    """Return partition counts and non-default configurations of the output and internal topics."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = admin.list_topics(timeout=30).topics
    found = {name: len(topic.partitions) for name, topic in topics.items() if name.startswith(f"{NAME}-")}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(found)]
    return {
        resource.name: [
            found[resource.name],
            {key: entry.value for key, entry in sorted(future.result(30).items()) if not entry.is_default},
        ]
        for resource, future in admin.describe_configs(resources).items()
    }


@scenario(seconds=300, is_alone=True)
def exactly_once(broker: Broker) -> Any:
    """Kill the program and then the broker. The committed counts of each word must be 1, 2, 3, ...

    In about one of twenty runs, Apache Kafka 4.3.1 loses transaction markers. If it is killed after
    PrepareCommit and before it writes the markers, it completes the transaction after its restart without
    writing the markers. (The transaction log then has PrepareCommit and CompleteCommit for the epoch, but no
    partition has a marker.) The transaction hangs, as `kafka-transactions.sh find-hanging` reports, and
    read_committed consumers make no progress. Such a run cannot be compared, so the harness repeats it with
    Apache Kafka only. The failure message contains the log end offsets at both isolation levels.
    """
    make_topic(broker, NAME, PARTITIONS)
    make_topic(broker, f"{NAME}-counts", PARTITIONS)
    text = iter(lines())
    third = LINES // 3
    with (
        tempfile.TemporaryDirectory(prefix="interop-streams-", ignore_cleanup_errors=True) as name,
        Output(broker.bootstrap, f"{NAME}-counts") as output,
    ):
        directory = Path(name)
        produce_lines(broker, text, third)
        with program(broker.bootstrap, directory, "first") as first:
            first.until(lambda: output.total > 1000, "the first counts", WAIT_S)
            produce_lines(broker, text, third // 2)
            first.kill()
        seen: dict[str, Any] = {"killed midway": output.total < LINES * WORDS_A_LINE}
        with program(broker.bootstrap, directory, "second") as second:
            second.until(lambda: "RUNNING" in second.lines, "the second has its partitions", WAIT_S)
            at = output.total
            produce_lines(broker, text, third // 2)
            second.until(lambda: output.total > at + 300, "counts of the second", WAIT_S)
            broker.kill()
            broker.start()
            produce_lines(broker, text, third)
            wanted = LINES * WORDS_A_LINE
            try:
                second.until(lambda: output.total >= wanted, "all counts", WAIT_S)
            except RuntimeError as error:
                raise RuntimeError(f"{output.progress()}: {error}") from error
            seen["ends in order"] = second.stop()
        seen["internal topics"] = internal_topics(broker)
    words = Counter(word for line in lines() for word in line.split())
    seen["words"] = len(output.counts)
    seen["counted wrongly"] = output.wrong_counts(words)
    seen["strange words"] = sorted(set(output.counts) - set(words))
    return seen
