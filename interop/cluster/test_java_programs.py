"""Java programs with exactly-once semantics, while the brokers that they use are killed in turn."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer

from interop.cluster import broker_kills
from interop.cluster.nodes import CLUSTER_KINDS, Cluster, wait_until
from interop.cluster.word_count import PARTITIONS as PARTITIONS_OF_WORDS
from interop.cluster.word_count import TOPICS, WORKS_S, word_count
from interop.exactly_once.clients import READERS
from interop.exactly_once.copying import (
    COPY,
    INSTANCES,
    PARTITIONS,
    SOURCE,
    CopyResult,
    Instances,
    RecordFeed,
    read,
)
from interop.java_programs import JavaProgram

KILLS = int(os.environ.get("INTEROP_KILLS", "4"))
TO_COPY = 30_000
"""The number of records in each partition, more than the programs can copy during the test."""


class CommittedReader:
    """A thread that polls the committed records of a topic continuously."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.content: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        self.count = 0
        self._reader = READERS["confluent"](bootstrap, topic, dict.fromkeys(self.content, 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            for partition, _, value in self._reader.poll():
                self.content[partition].append(value)
                self.count += 1
        self._reader.close()

    def until(self, count: int) -> None:
        wait_until(lambda: self.count >= count, f"{self.count} are committed, not {count}", WORKS_S)


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_java_copy_program_copies_exactly_once_under_broker_kills(cluster_kind: str) -> None:
    """Run three copiers in one group. After each kill of a broker, one copier is killed and restarted."""
    rng = random.Random(cluster_kind)
    with (
        Cluster(CLUSTER_KINDS[cluster_kind], broker_kills.SETTINGS).start() as cluster,
        tempfile.TemporaryDirectory(prefix="interop-copiers-") as directory,
    ):
        broker_kills.make_topics(cluster, PARTITIONS, SOURCE, COPY)
        instances = Instances(cluster.bootstrap, Path(directory))
        with CommittedReader(cluster.bootstrap, COPY, PARTITIONS) as committed:
            feeding = RecordFeed(cluster.bootstrap, SOURCE, PARTITIONS)
            try:
                for number in range(INSTANCES):
                    instances.start(number)
                gaps = broker_kills.kill_in_turn(
                    cluster,
                    KILLS,
                    lambda: committed.until(committed.count + 500),
                    lambda _: instances.replace(rng.randrange(INSTANCES)),
                )
                written = feeding.end()
                committed.until(written)
            finally:
                instances.discard()
            broker_kills.wait_until_no_open_transactions(cluster)
            source, copy = (read(cluster.bootstrap, topic, written) for topic in (SOURCE, COPY))
        copied = CopyResult(source, copy, KILLS, KILLS)
        print(f"{written} records, gaps of {gaps} s")
        assert not copied.wrong(), "\n".join(copied.wrong())
        assert copied.records == written
        assert committed.content == copy
        broker_kills.check_replicas(cluster)


def copier(bootstrap: str, directory: Path, partition: int) -> JavaProgram:
    """Start Kafka's TransactionalMessageCopier for a partition. It aborts a third of its transactions."""
    return JavaProgram(
        "org.apache.kafka.tools.TransactionalMessageCopier",
        *("--broker-list", bootstrap, "--transactional-id", f"copier-{partition}"),
        *("--input-topic", SOURCE, "--input-partition", str(partition), "--output-topic", COPY),
        *("--consumer-group", f"copier-{partition}", "--transaction-size", "10"),
        *("--enable-random-aborts", "--use-group-metadata"),
        log=directory / f"copier-{partition}.log",
        heap="-Xmx96m",
    )


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_transactional_message_copier_copies_in_order_with_aborts(cluster_kind: str) -> None:
    """Run two copiers, which exit if fenced. Kill one, and start it again with its transactional id."""
    with (
        Cluster(CLUSTER_KINDS[cluster_kind], broker_kills.SETTINGS).start() as cluster,
        tempfile.TemporaryDirectory(prefix="interop-copiers-") as directory,
        ExitStack() as programs,
    ):
        broker_kills.make_topics(cluster, 2, SOURCE, COPY)
        client = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        producer = Producer(client)
        source = {partition: [b"%d" % number for number in range(TO_COPY)] for partition in (0, 1)}
        for number in range(TO_COPY):
            for partition, values in source.items():
                producer.produce(SOURCE, values[number], partition=partition)
        assert producer.flush(60) == 0

        def start(partition: int) -> JavaProgram:
            return programs.enter_context(copier(cluster.bootstrap, Path(directory), partition))

        running = [start(partition) for partition in source]
        with CommittedReader(cluster.bootstrap, COPY, len(source)) as committed:

            def works() -> None:
                ended = [each.tail() for each in running if each.process.poll() not in (None, 0)]
                assert not ended, "\n".join(ended)
                committed.until(min(committed.count + 200, 2 * TO_COPY))

            def meanwhile(number: int) -> None:
                if number == 1:
                    running[0].kill()
                    running[0] = start(0)

            gaps = broker_kills.kill_in_turn(cluster, KILLS, works, meanwhile)
            for partition, program in enumerate(running):
                program.kill()
                # The killed copier's open transaction is aborted when the new copier initializes the same
                # transactional id.
                Producer({**client, "transactional.id": f"copier-{partition}"}).init_transactions(60)
            broker_kills.wait_until_no_open_transactions(cluster)
            count = committed.count
            copy = read(cluster.bootstrap, COPY, count, len(source))
        print(f"{count} records, gaps of {gaps} s")
        begun = {partition: values[: len(copy[partition])] for partition, values in source.items()}
        copied = CopyResult(begun, copy, 1, KILLS)
        assert not copied.wrong(), "\n".join(copied.wrong())
        assert committed.content == copy
        broker_kills.check_replicas(cluster)


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_streams_application_counts_exactly_once_under_broker_kills(cluster_kind: str) -> None:
    """Run two instances. One of them is killed together with a broker, and replaced by a new instance."""
    with Cluster(CLUSTER_KINDS[cluster_kind], broker_kills.SETTINGS).start() as cluster:
        broker_kills.make_topics(cluster, PARTITIONS_OF_WORDS, *TOPICS)
        with word_count(cluster.bootstrap) as words:

            def meanwhile(number: int) -> None:
                if number == 1:
                    words.replace_one()

            gaps = broker_kills.kill_in_turn(cluster, KILLS, words.wait_for_more, meanwhile)
            print(f"{words.end()} words, gaps of {gaps} s")
            broker_kills.wait_until_no_open_transactions(cluster)
        broker_kills.check_replicas(cluster)
