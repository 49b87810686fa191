"""A load of transactional producers and of readers, while a broker is killed and restarted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from interop.brokers import Broker
from interop.exactly_once.checker import Content, Evidence, Finding, check
from interop.exactly_once.clients import READERS, ClientFailed
from interop.exactly_once.ledger import Outcome, Transaction, read_ledgers
from interop.exactly_once.reading import read_view
from interop.exactly_once.writing import END_S, TIMEOUT_MS
from interop.raw import create_topic, wait_for_topic
from interop.raw_client import RawClient
from interop.reference import HERE
from kwire.wire.plural import plural

TOPIC = "exactly-once"
PARTITIONS = 6
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Small limits, so that the broker creates and deletes segments and producer snapshots during the load.
    "log.segment.bytes": "1048576",
    "log.roll.ms": "7000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
}
COMMITS_PER_KILL = 8
"""The required number of commits per kill. With fewer commits, the load was too small to find faults."""
WRITERS_END_S = END_S + 10
READERS_END_S = 30.0
SETTLE_S = TIMEOUT_MS / 1000 + 20
"""The time, in seconds, after which every transaction has ended and all transaction markers are written."""


@dataclass(frozen=True)
class Plan:
    """The size and timing of a load."""

    kills: int
    seed: int = 1
    longest_life_s: float = 3.0
    """The broker is killed at a random time within this many seconds after it has started."""
    early_kills: float = 0.15
    """The probability of another kill while the broker restarts."""
    pause_s: float = 0.0
    """The producers are stopped for this many seconds before each kill, so that no commit is in progress."""
    writers: tuple[tuple[str, int], ...] = (("confluent", 3), ("python", 2))
    """Client libraries, each with its number of transactional ids."""
    readers: tuple[str, ...] = ("confluent", "python")


@dataclass
class Outcomes:
    """The findings and statistics of a load."""

    findings: list[Finding]
    transactions: dict[tuple[str, int], Transaction]
    records: int

    def count(self, outcome: Outcome) -> int:
        return sum(transaction.outcome is outcome for transaction in self.transactions.values())

    def __str__(self) -> str:
        summary = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in Outcome)
        lines = [f"{summary}; {plural(self.records, 'record')}"]
        return "\n".join(lines + [f"{finding.kind}: {finding.text}" for finding in self.findings[:30]])


class Load:
    """The processes of the producers and the readers."""

    def __init__(self, broker: Broker, plan: Plan) -> None:
        self._broker = broker
        self._directory = broker.directory / "exactly-once"
        self._directory.mkdir()
        self._ledgers: list[Path] = []
        self._views: dict[str, Path] = {}
        self._writers: list[subprocess.Popen[bytes]] = []
        self._readers: list[subprocess.Popen[bytes]] = []
        for library, count in plan.writers:
            ids = ",".join(f"{library}-{number}" for number in range(count))
            self._ledgers.append(self._directory / f"{library}.ledger")
            self._ledgers[-1].touch()
            self._writers.append(self._start("writing", library, ids, str(self._ledgers[-1]), str(plan.seed)))
        for library in plan.readers:
            self._views[library] = self._directory / f"{library}.view"
            self._views[library].touch()
            self._readers.append(self._start("reading", library, str(self._views[library]), str(plan.seed)))

    def _start(self, module: str, library: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        with (self._directory / f"{module}-{library}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", f"interop.exactly_once.{module}", library),
                    *(self._broker.bootstrap, TOPIC, str(PARTITIONS), *arguments),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def signal_writers(self, signal_: signal.Signals) -> None:
        for process in self._writers:
            process.send_signal(signal_)

    def end_writers(self) -> dict[tuple[str, int], Transaction]:
        """Let each producer end its transaction, then stop the producers. Returns the logged transactions."""
        _end(self._writers, WRITERS_END_S)
        return read_ledgers(self._ledgers)

    def end_readers(self, content: Content) -> dict[str, Content]:
        """Wait until each reader has read all of `content`, but at most READERS_END_S, and stop the readers.

        Return the records that each reader has read.
        """
        deadline = time.monotonic() + READERS_END_S
        last = {partition: records[-1][0] for partition, records in content.items() if records}
        while time.monotonic() < deadline:
            views = self.views()
            if all(
                view.get(partition, [(-1, b"")])[-1][0] >= offset
                for view in views.values()
                for partition, offset in last.items()
            ):
                break
            time.sleep(0.2)
        _end(self._readers, READERS_END_S)
        return self.views()

    def views(self) -> dict[str, Content]:
        return {library: read_view(path) for library, path in self._views.items()}

    def discard(self) -> None:
        for process in [*self._writers, *self._readers]:
            if process.poll() is None:
                process.kill()
                process.wait()


def _end(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_under_load(broker: Broker, plan: Plan) -> Outcomes:
    """Start the broker and run the plan. The broker keeps running after the function returns."""
    rng = random.Random(plan.seed)
    broker.start()
    with RawClient(broker.bootstrap) as client:
        create_topic(client, TOPIC, PARTITIONS)
    load = Load(broker, plan)
    try:
        for _ in range(plan.kills):
            time.sleep(rng.uniform(0.2, plan.longest_life_s))
            if plan.pause_s:
                load.signal_writers(signal.SIGSTOP)
                time.sleep(plan.pause_s)
            broker.kill()
            load.signal_writers(signal.SIGCONT)
            while rng.random() < plan.early_kills:
                broker.start(wait=False)
                time.sleep(rng.uniform(0.05, 0.5))
                broker.kill()
            broker.start()
        time.sleep(1)
        transactions = load.end_writers()
        with RawClient(broker.bootstrap) as client:
            wait_for_topic(client, TOPIC, PARTITIONS)
            ends = settled_ends(client)
        content = final_content(broker, ends)
        views = load.end_readers(content)
    finally:
        load.discard()
    found = check(Evidence(transactions, content, views, ends))
    return Outcomes(found, transactions, sum(len(records) for records in content.values()))


def settled_ends(client: RawClient) -> dict[int, tuple[int, int]]:
    """Return the last stable offset and the high watermark of each partition.

    Wait until the two offsets are equal in every partition, at most for SETTLE_S.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        stable, end = (_latest(client, isolation) for isolation in (1, 0))
        if stable == end or time.monotonic() > deadline:
            return {partition: (stable[partition], end[partition]) for partition in range(PARTITIONS)}
        time.sleep(0.2)


def _latest(client: RawClient, isolation: int) -> dict[int, int]:
    partitions = [{"PartitionIndex": partition, "Timestamp": -1} for partition in range(PARTITIONS)]
    answer = client.call(
        "ListOffsets",
        5,
        ReplicaId=-1,
        IsolationLevel=isolation,
        Topics=[{"Name": TOPIC, "Partitions": partitions}],
    )
    found = answer["Topics"][0]["Partitions"]
    assert not any(partition["ErrorCode"] for partition in found), found
    return {partition["PartitionIndex"]: partition["Offset"] for partition in found}


def final_content(broker: Broker, ends: dict[int, tuple[int, int]], quiet_s: float = 2.0) -> Content:
    """Return all committed records. Stop reading when no record has arrived for `quiet_s` seconds."""
    content: Content = {partition: [] for partition in ends}
    reader = READERS["confluent"](broker.bootstrap, TOPIC, dict.fromkeys(ends, 0))
    quiet_since = time.monotonic()
    try:
        while time.monotonic() < quiet_since + quiet_s:
            for partition, offset, value in reader.poll():
                content[partition].append((offset, value))
                quiet_since = time.monotonic()
    except ClientFailed:
        pass  # The checker reports the missing records.
    finally:
        reader.close()
    return content


def run_plan(broker: Broker, plan: Plan) -> tuple[Outcomes, str]:
    """Run the plan, discard the broker, and return the result and the broker's log."""
    try:
        outcomes = kill_under_load(broker, plan)
        print(outcomes)
        return outcomes, broker.log_text()
    finally:
        broker.discard()
