"""Scripts of transactions that a person can read: commands, and what they answer.

A line that is not indented is a command, and the indented lines below it are what comes of it: answers to
whoever asked, at the moment when they come. Nothing is stored and no marker is written unless a command says
so. A producer is a name; `a` and `a'` are two producers of the transactional id `a`. The commands are the
methods `do_*` below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kwire.coordinator.transactions.service import stored_records
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.coordinator.transactions.transaction_metadata import TransactionState
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import TransactionLogKey, TransactionLogValue
from tests.coordinator.transactions.world import World

FOLDER = Path(__file__).parent / "scripts"
TIMEOUT_MS = 60_000


@dataclass
class Client:
    """A producer as it sees itself."""

    name: str
    version: int
    producer: ProducerIdAndEpoch | None = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.name.rstrip("'")


class Script:
    """Runs commands against a fresh world."""

    def __init__(self) -> None:
        self.world = World()
        self.clients: dict[str, Client] = {}
        self.told: list[str] = []
        self._shown = 0

    def run(self, line: str) -> list[str]:
        """What comes of one command."""
        words = line.split()
        values = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        command: Callable[..., Iterable[str] | None] = getattr(self, "do_" + words[0])
        shown = list(command(*values, **options) or ())
        told, self.told = self.told, []
        return told + shown

    def _tell(self, client: Client, what: str) -> Callable[[Any], None]:
        life = self.world.life

        def done(answer: Any) -> None:
            if life != self.world.life:
                return
            if isinstance(answer, ProducerIdAndEpoch):
                if answer != client.producer:
                    client.sequences.clear()
                client.producer = answer
                said = f"writes as {named(answer)}"
            else:
                said = ErrorCode(answer.code if isinstance(answer, ApiError) else answer).name
            self.told.append(f"{client.name} {what}: {said}")

        return done

    # --- producers

    def do_init(self, name: str, version: str = "2", timeout: str = str(TIMEOUT_MS), says: str = "") -> None:
        """InitProducerId; `says=` who it was."""
        client = self.clients.setdefault(name, Client(name, int(version)))
        expected = ProducerIdAndEpoch(*map(int, says.split("/"))) if says else None
        self.world.service.init_producer_id(client.id, int(timeout), expected, self._tell(client, "init"))
        self.world.host.run_pending()

    def do_add(self, name: str, *partitions: str) -> None:
        """AddPartitionsToTxn."""
        client, producer = self._ready(name)
        added = [partition_of(partition) for partition in partitions]
        self.world.service.add_partitions(
            client.id, producer, added, client.version, self._tell(client, "add")
        )

    def do_send(self, name: str, to: str, *values: str) -> None:
        """One batch."""
        client, producer = self._ready(name)
        partition = partition_of(to)
        sequence = client.sequences.get(partition, 0)
        tell = self._tell(client, f"send to {to}")

        def done(code: ErrorCode) -> None:
            if code == ErrorCode.NONE:
                client.sequences[partition] = sequence + len(values)
            tell(code)

        sent = [value.encode() for value in values]
        self.world.produce(client.id, producer, partition, sequence, sent, client.version, done)

    def do_commit(self, name: str) -> None:
        self._end(name, commit=True)

    def do_abort(self, name: str) -> None:
        self._end(name, commit=False)

    def _end(self, name: str, *, commit: bool) -> None:
        client, producer = self._ready(name)
        tell = self._tell(client, "commit" if commit else "abort")
        self.world.service.end(client.id, producer, commit=commit, client_version=client.version, done=tell)
        self.world.host.run_pending()

    def _ready(self, name: str) -> tuple[Client, ProducerIdAndEpoch]:
        client = self.clients[name]
        assert client.producer is not None, f"{name} has no producer id yet"
        return client, client.producer

    # --- the broker

    def do_store(self, count: str = "") -> Iterator[str]:
        """Store what the coordinator has appended, or the first of it."""
        self.world.commit_appends(int(count) if count else None)
        return self._records()

    def do_mark(self, *partitions: str) -> Iterator[str]:
        """Write the markers of these partitions, or all that wait."""
        wanted = [partition_of(partition) for partition in partitions]
        while True:
            at = [at for at, one in enumerate(self.world.markers) if not wanted or one[0] in wanted]
            if not at:
                return
            partition, ending, _, _ = self.world.markers[at[0]]
            self.world.write_marker(at[0])
            yield f"{shown(partition)}: {'commit' if ending.commit else 'abort'} of {named_end(ending)}"

    def do_settle(self) -> Iterator[str]:
        """Let everything happen that waits for no time."""
        self.world.settle()
        return self._records()

    def do_wait(self, delay_ms: str) -> Iterator[str]:
        """Let time pass."""
        self.world.advance(int(delay_ms))
        return self._records()

    def do_crash(self, stored: str = "0") -> Iterator[str]:
        """The broker dies and comes back; so many of the records that wait are stored all the same."""
        self.world.crash(int(stored))
        return self._records()

    def _records(self) -> Iterator[str]:
        for data in self.world.state_log[self._shown :]:
            for key, value in stored_records(memoryview(data)):
                assert isinstance(key, TransactionLogKey)
                assert isinstance(value, TransactionLogValue)
                partitions = " ".join(
                    f"{topic.topic}-{index}"
                    for topic in value.transaction_partitions or ()
                    for index in topic.partition_ids
                )
                state = TransactionState(value.transaction_status).title
                who = f"{value.producer_id}/{value.producer_epoch}"
                yield f"stored {key.transactional_id}: {state} {who} {partitions}".rstrip()
        self._shown = len(self.world.state_log)

    # --- what is seen

    def do_state(self, name: str) -> Iterator[str]:
        """What the coordinator holds of a transactional id, stored or not."""
        found = self.world.transaction(name)
        if found is None:
            yield "unknown"
            return
        partitions = " ".join(shown(partition) for partition in sorted(found.partitions))
        who = f"{found.producer_id}/{found.producer_epoch}"
        yield f"{found.state.title} {who} {partitions}".rstrip()

    def do_read(self, *partitions: str) -> Iterator[str]:
        """What readers of committed records see, and whether there is more to come."""
        for name in partitions:
            partition = partition_of(name)
            values = " ".join(value.decode() for value in self.world.committed(partition)) or "nothing"
            open_ = "" if self.world.is_stable(partition) else ", and waits"
            yield f"{name}: {values}{open_}"


def partition_of(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def shown(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def named(producer: ProducerIdAndEpoch) -> str:
    return f"{producer.producer_id}/{producer.epoch}"


def named_end(ending: Any) -> str:
    return f"{ending.producer_id}/{ending.producer_epoch}"


def played(text: str) -> str:
    """The script with the answers that its commands give now."""
    script = Script()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {answer}" for answer in script.run(line)]
    return "\n".join(lines) + "\n"
