"""Spark with isolation.level=read_committed on a topic with aborted and open transactions."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from interop.brokers import Broker
from interop.scenario import scenario
from interop.scenarios.spark import SparkJob, create_retained_topic

TOPIC = "spark-transactions"
PARTITIONS = 3
ROUNDS, EACH = 24, 8
FROM, TO = (11, 30, 0), (60, 100, 45)
"""The start and end offsets of a partial read, by partition."""
WAIT_S = 30


class TransactionalWriter:
    """A transactional producer that remembers which records it has committed."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self.committed: list[tuple[int, str]] = []
        self.sent: list[tuple[int, str]] = []
        self._open: list[tuple[int, str]] = []
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
        self._producer.init_transactions(WAIT_S)

    def write(self, number: int, count: int = EACH) -> None:
        """Begin a transaction and send its records. The transaction stays open."""
        self._producer.begin_transaction()
        self._open = [
            ((number + index) % PARTITIONS, f"{self.name}-{number}-{index}") for index in range(count)
        ]
        for partition, value in self._open:
            self._producer.produce(TOPIC, value=value, partition=partition)
        assert self._producer.flush(WAIT_S) == 0
        self.sent += self._open

    def end(self, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(WAIT_S)
            self.committed += self._open
        else:
            self._producer.abort_transaction(WAIT_S)


def count_and_hash(rows: list[list[Any]]) -> list[Any]:
    """Return the number of records, and a hash of their values in the order of their offsets.

    The hash does not include the offsets, because they vary. When EndTxn returns, its marker may not be in
    the log yet, and records of the next transaction may precede the marker.
    """
    inner = [[partition, value] for partition, _, value in sorted(rows)]
    return [len(rows), hashlib.sha256(repr(inner).encode()).hexdigest()[:16]]


def values(rows: list[list[Any]]) -> list[tuple[int, str]]:
    return sorted((partition, value) for partition, _, value in rows)


@scenario(seconds=240, needs="spark")
def committed_only(broker: Broker) -> Any:
    create_retained_topic(broker, TOPIC, PARTITIONS)
    first, second = TransactionalWriter(broker, "spark-first"), TransactionalWriter(broker, "spark-second")
    for number in range(ROUNDS):
        # The two transactions overlap, so there are aborted records between committed records.
        first.write(number)
        second.write(number)
        first.end(commit=number % 3 != 1)
        second.end(commit=number % 4 != 2)
    first.write(ROUNDS)
    first.end(commit=False)
    second.write(ROUNDS + 1)
    first.write(ROUNDS + 2)
    first.end(commit=True)
    # Records after the first record of an open transaction are not stable, even if they are committed.
    stable = sorted(row for row in first.committed + second.committed if f"-{ROUNDS + 2}-" not in row[1])
    seen: dict[str, Any] = {}
    streamed: list[list[Any]] = []

    def check(name: str, reads: dict[str, list[list[Any]]], wanted: list[tuple[int, str]]) -> None:
        part = [row for row in reads["batch, read_committed"] if FROM[row[0]] <= row[1] < TO[row[0]]]
        seen[f"{name}, partial batch equals the range"] = reads.pop("part, read_committed") == part
        seen[name] = {what: count_and_hash(rows) for what, rows in reads.items()}
        streamed.extend(reads["stream, read_committed"])  # a stream resumes from its checkpoint
        seen[f"{name}, batch equals the committed records"] = values(reads["batch, read_committed"]) == wanted
        seen[f"{name}, stream equals the committed records"] = values(streamed) == wanted

    with (
        tempfile.TemporaryDirectory(prefix="interop-spark-") as name,
        SparkJob(
            "committed",
            broker,
            Path(name),
            topic=TOPIC,
            batch=50,
            starts=dict(enumerate(FROM)),
            ends=dict(enumerate(TO)),
        ) as job,
    ):
        check("with an open transaction", job.expect("seen"), stable)
        assert job.expect("ask") == "end the open transaction"
        second.end(commit=True)
        job.resume()
        check("in the end", job.expect("seen"), sorted(first.committed + second.committed))
        job.resume()
    return seen
