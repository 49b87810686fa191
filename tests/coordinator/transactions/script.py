"""Readable scripts of transactions: commands and their output.

A line without indentation is a command; the indented lines below it are its output, including responses that
arrive during it. Only the commands `store`, `mark`, `settle` and `wait` store records and write markers. A
producer is a name; `a` and `a'` are two producers of the transactional id `a`. The commands are the methods
`do_*` below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionStateMachine
from kwire.coordinator.transactions.transaction_metadata import TransactionState
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import TransactionLogKey, TransactionLogValue
from tests.coordinator.transactions.transaction_harness import TransactionHarness

FOLDER = Path(__file__).parent / "scripts"
TIMEOUT_MS = 60_000


@dataclass
class Client:
    """The state of a producer on the client."""

    name: str
    version: int
    producer: ProducerIdAndEpoch | None = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.name.rstrip("'")


class Script:
    """Runs commands against a new transaction coordinator."""

    def __init__(self) -> None:
        self.harness = TransactionHarness()
        self.clients: dict[str, Client] = {}
        self.outputs: list[str] = []
        self._shown = 0

    def run(self, line: str) -> list[str]:
        """Run one command and return its output."""
        words = line.split()
        values = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        command: Callable[..., Iterable[str] | None] = getattr(self, "do_" + words[0])
        format_partition = list(command(*values, **options) or ())
        outputs, self.outputs = self.outputs, []
        return outputs + format_partition

    def _report(self, client: Client, what: str) -> Callable[[Any], None]:
        life = self.harness.life

        def done(result: Any) -> None:
            if life != self.harness.life:
                return
            if isinstance(result, ProducerIdAndEpoch):
                if result != client.producer:
                    client.sequences.clear()
                client.producer = result
                text = f"writes as {format_producer(result)}"
            else:
                text = ErrorCode(result.code if isinstance(result, ApiError) else result).name
            self.outputs.append(f"{client.name} {what}: {text}")

        return done

    # --- producers

    def do_init(self, name: str, version: str = "2", timeout: str = str(TIMEOUT_MS), says: str = "") -> None:
        """Send an InitProducerId; `says=` is the expected producer id and epoch."""
        client = self.clients.setdefault(name, Client(name, int(version)))
        expected = ProducerIdAndEpoch(*map(int, says.split("/"))) if says else None
        self.harness.service.init_producer_id(client.id, int(timeout), expected, self._report(client, "init"))
        self.harness.host.run_pending()

    def do_add(self, name: str, *partitions: str) -> None:
        """Send an AddPartitionsToTxn."""
        client, producer = self._ready(name)
        added = [partition_of(partition) for partition in partitions]
        self.harness.service.add_partitions(
            client.id, producer, added, client.version, self._report(client, "add")
        )

    def do_send(self, name: str, to: str, *values: str) -> None:
        """Produce one batch."""
        client, producer = self._ready(name)
        partition = partition_of(to)
        sequence = client.sequences.get(partition, 0)
        report = self._report(client, f"send to {to}")

        def done(code: ErrorCode) -> None:
            if code == ErrorCode.NONE:
                client.sequences[partition] = sequence + len(values)
            report(code)

        sent = [value.encode() for value in values]
        self.harness.produce(client.id, producer, partition, sequence, sent, client.version, done)

    def do_commit(self, name: str) -> None:
        self._end(name, commit=True)

    def do_abort(self, name: str) -> None:
        self._end(name, commit=False)

    def _end(self, name: str, *, commit: bool) -> None:
        client, producer = self._ready(name)
        report = self._report(client, "commit" if commit else "abort")
        self.harness.service.end(
            client.id, producer, commit=commit, client_version=client.version, done=report
        )
        self.harness.host.run_pending()

    def _ready(self, name: str) -> tuple[Client, ProducerIdAndEpoch]:
        client = self.clients[name]
        assert client.producer is not None, f"{name} has no producer id yet"
        return client, client.producer

    # --- the broker

    def do_store(self, count: str = "") -> Iterator[str]:
        """Commit the coordinator's appends, or the first `count` of them."""
        self.harness.commit_appends(int(count) if count else None)
        return self._records()

    def do_mark(self, *partitions: str) -> Iterator[str]:
        """Write the markers of these partitions, or all pending ones."""
        wanted = [partition_of(partition) for partition in partitions]
        while True:
            at = [at for at, one in enumerate(self.harness.markers) if not wanted or one[0] in wanted]
            if not at:
                return
            partition, ending, _, _ = self.harness.markers[at[0]]
            self.harness.write_marker(at[0])
            outcome = "commit" if ending.commit else "abort"
            yield f"{format_partition(partition)}: {outcome} of {format_marker_producer(ending)}"

    def do_settle(self) -> Iterator[str]:
        """Commit all appends and write all markers."""
        self.harness.settle()
        return self._records()

    def do_wait(self, delay_ms: str) -> Iterator[str]:
        """Advance the time."""
        self.harness.advance(int(delay_ms))
        return self._records()

    def do_crash(self, stored: str = "0") -> Iterator[str]:
        """Crash and restart the broker; the first `stored` uncommitted records survive."""
        self.harness.crash(int(stored))
        return self._records()

    def _records(self) -> Iterator[str]:
        for data in self.harness.state_log[self._shown :]:
            for key, value, _ in TransactionStateMachine.decode_batch(memoryview(data)):
                assert isinstance(key, TransactionLogKey)
                assert isinstance(value, TransactionLogValue)
                partitions = " ".join(
                    f"{topic.topic}-{index}"
                    for topic in value.transaction_partitions or ()
                    for index in topic.partition_ids
                )
                state = TransactionState(value.transaction_status).title
                producer = f"{value.producer_id}/{value.producer_epoch}"
                yield f"stored {key.transactional_id}: {state} {producer} {partitions}".rstrip()
        self._shown = len(self.harness.state_log)

    # --- state and readers

    def do_state(self, name: str) -> Iterator[str]:
        """Print the coordinator's state of a transactional id, stored or not."""
        found = self.harness.transaction(name)
        if found is None:
            yield "unknown"
            return
        partitions = " ".join(format_partition(partition) for partition in sorted(found.partitions))
        producer = f"{found.producer_id}/{found.producer_epoch}"
        yield f"{found.state.title} {producer} {partitions}".rstrip()

    def do_read(self, *partitions: str) -> Iterator[str]:
        """Print the records that read_committed consumers see; "and waits" means an open transaction."""
        for name in partitions:
            partition = partition_of(name)
            values = " ".join(value.decode() for value in self.harness.committed(partition)) or "nothing"
            open_ = "" if self.harness.is_stable(partition) else ", and waits"
            yield f"{name}: {values}{open_}"


def partition_of(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def format_partition(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def format_producer(producer: ProducerIdAndEpoch) -> str:
    return f"{producer.producer_id}/{producer.epoch}"


def format_marker_producer(ending: Any) -> str:
    return f"{ending.producer_id}/{ending.producer_epoch}"


def run_script(text: str) -> str:
    """Run a script and return it with its current output."""
    script = Script()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {result}" for result in script.run(line)]
    return "\n".join(lines) + "\n"
