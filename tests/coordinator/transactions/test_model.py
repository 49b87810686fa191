"""Transactions under every order of events: whoever reads committed records sees each of them once.

Producers here do as clients do. They ask again where an answer is lost or tells them to, abort where a batch
was refused, and are no more once they are fenced; but one that was replaced goes on until it learns of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from tests.coordinator.transactions.world import PARTITIONS, World

NAMES = ("a", "b")
TIMEOUT_MS = 60_000
MOST_PRODUCERS = 6

mostly = st.sampled_from([True, True, True, False])
"""Most of the time nothing goes wrong, or nothing would ever be committed."""

AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""Errors after which clients ask again."""
FENCED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    # An end that comes to a transaction which has ended otherwise.
    ErrorCode.INVALID_TXN_STATE,
}
"""Errors that end a producer."""
REFUSED = {ErrorCode.TRANSACTION_ABORTABLE}
"""Errors that end a transaction."""


@dataclass
class Work:
    """One transaction, as the model knows it."""

    number: int
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    """What was acknowledged, by partition."""
    commit_asked: bool = False
    committed: bool = False
    """Whether its producer was told that it is committed."""


@dataclass(eq=False)
class Client:
    """A producer."""

    name: str
    number: int
    version: int
    producer: ProducerIdAndEpoch | None = None
    added: set[TopicPartition] = field(default_factory=set)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    work: Work | None = None
    must_abort: bool = False
    is_dead: bool = False
    asking: Callable[[], None] | None = None
    """What is asked, until it is answered."""

    @property
    def is_free(self) -> bool:
        return self.producer is not None and not self.is_dead and self.asking is None


class TransactionsModel(RuleBasedStateMachine):
    """Producers, a broker that dies, and readers."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clients: list[Client] = []
        self.works: dict[bytes, Work] = {}
        """By the beginning of the values that it writes."""
        self.seen: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}

    def free(self) -> list[Client]:
        return [client for client in self.clients if client.is_free]

    def pick(self, number: int) -> Client:
        free = self.free()
        return free[number % len(free)]

    def ask(self, client: Client, request: Callable[[], None], *, settled: bool = True) -> None:
        """Send a request, which is sent again until it is answered."""
        client.asking = request
        request()
        self.world.host.run_pending()
        if settled:
            self.world.settle()

    def answered(self, client: Client, code: ErrorCode) -> bool:
        """Take note of an error. Whether the answer is final, and the client lives on."""
        if code in AGAIN:
            return False
        client.asking = None
        assert code in {ErrorCode.NONE, *FENCED, *REFUSED}, code.name
        client.is_dead |= code in FENCED
        client.must_abort |= code in REFUSED
        return code == ErrorCode.NONE

    # --- rules: producers

    @precondition(lambda self: len(self.clients) < MOST_PRODUCERS)
    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([0, 2]), settled=mostly)
    def begin_producer(self, name: str, version: int, settled: bool) -> None:
        client = Client(name, len(self.clients), version)
        self.clients.append(client)
        self.ask(client, lambda: self.init(client, None), settled=settled)

    @precondition(lambda self: any(client.work is None for client in self.free()))
    @rule(number=st.integers(0, 9), settled=mostly)
    def begin_anew(self, number: int, settled: bool) -> None:
        """A producer asks for the next epoch, and says who it is (KIP-360)."""
        free = [client for client in self.free() if client.work is None]
        client = free[number % len(free)]
        producer = client.producer
        self.ask(client, lambda: self.init(client, producer), settled=settled)

    def init(self, client: Client, expected: ProducerIdAndEpoch | None) -> None:
        life = self.world.life

        def done(result: ProducerIdAndEpoch | ApiError) -> None:
            if life != self.world.life or client.asking is None:
                return
            code = ErrorCode(result.code) if isinstance(result, ApiError) else ErrorCode.NONE
            if self.answered(client, code):
                assert isinstance(result, ProducerIdAndEpoch)
                self.becomes(client, result)

        self.world.service.init_producer_id(client.name, TIMEOUT_MS, expected, done)

    def becomes(self, client: Client, producer: ProducerIdAndEpoch) -> None:
        if producer != client.producer:
            client.sequences.clear()
        client.producer = producer
        client.added.clear()

    @precondition(lambda self: self.free())
    @rule(
        number=st.integers(0, 9),
        partition=st.sampled_from(PARTITIONS),
        count=st.integers(1, 3),
        settled=mostly,
        arrives=mostly,
    )
    def send(self, number: int, partition: TopicPartition, count: int, settled: bool, arrives: bool) -> None:
        """A batch, whose first answer may be lost."""
        self.send_batch(self.pick(number), partition, count, settled=settled, arrives=arrives)

    def send_batch(
        self, client: Client, partition: TopicPartition, count: int, *, settled: bool, arrives: bool
    ) -> None:
        if client.must_abort:
            return
        if client.work is None:
            client.work = Work(len(self.works))
            self.works[b"%d" % client.work.number] = client.work
        work, producer = client.work, client.producer
        assert producer is not None
        sequence = client.sequences.get(partition, 0)
        first = len(work.sent.get(partition, ()))
        values = [
            b"%d/%s-%d/%d" % (work.number, partition[0].encode(), partition[1], first + at)
            for at in range(count)
        ]

        def produced(code: ErrorCode) -> None:
            nonlocal arrives
            if not arrives:
                arrives = True
                return
            if life == self.world.life and client.asking is not None and self.answered(client, code):
                client.sequences[partition] = sequence + count
                work.sent.setdefault(partition, []).extend(values)

        def added(code: ErrorCode) -> None:
            if life != self.world.life or client.asking is None or code in AGAIN:
                return
            if code != ErrorCode.NONE:
                self.answered(client, code)
                return
            client.added.add(partition)
            produce()

        def produce() -> None:
            assert producer is not None
            self.world.produce(client.name, producer, partition, sequence, values, client.version, produced)

        life = self.world.life

        def request() -> None:
            nonlocal life
            life = self.world.life
            if client.version >= 2 or partition in client.added:
                produce()
            else:
                self.world.service.add_partitions(client.name, producer, [partition], 0, added)

        self.ask(client, request, settled=settled)

    @precondition(lambda self: any(client.work is not None for client in self.free()))
    @rule(number=st.integers(0, 9), commit=st.booleans(), settled=mostly)
    def end(self, number: int, commit: bool, settled: bool) -> None:
        free = [client for client in self.free() if client.work is not None]
        self.end_work(free[number % len(free)], commit=commit, settled=settled)

    def end_work(self, client: Client, *, commit: bool, settled: bool) -> None:
        work, producer = client.work, client.producer
        assert work is not None
        assert producer is not None
        commit = commit and not client.must_abort
        if not work.sent and (commit or not client.added) and client.version < 2:
            # Nothing was begun that could end.
            client.work, client.must_abort = None, False
            return
        if not work.sent:
            commit = False
        work.commit_asked = commit
        life = self.world.life

        def done(result: ProducerIdAndEpoch | ApiError) -> None:
            if life != self.world.life or client.asking is None:
                return
            code = ErrorCode(result.code) if isinstance(result, ApiError) else ErrorCode.NONE
            if self.answered(client, code):
                assert isinstance(result, ProducerIdAndEpoch)
                work.committed = commit
                client.work, client.must_abort = None, False
                self.becomes(client, result if client.version >= 2 else producer)

        def request() -> None:
            nonlocal life
            life = self.world.life
            self.world.service.end(
                client.name, producer, commit=commit, client_version=client.version, done=done
            )

        self.ask(client, request, settled=settled)

    @precondition(lambda self: self.free())
    @rule(
        number=st.integers(0, 9),
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4),
        commit=mostly,
        settled=mostly,
    )
    def whole_transaction(
        self, number: int, partitions: list[TopicPartition], commit: bool, settled: bool
    ) -> None:
        """The rest of a transaction, or a whole one, without trouble up to its end."""
        client = self.pick(number)
        for partition in partitions:
            if client.is_free:
                self.send_batch(client, partition, 2, settled=True, arrives=True)
        if client.is_free and client.work is not None:
            self.end_work(client, commit=commit, settled=settled)

    @precondition(lambda self: any(client.asking for client in self.clients))
    @rule(number=st.integers(0, 9), settled=mostly)
    def ask_again(self, number: int, settled: bool) -> None:
        """Whoever has no answer, or one that says so, asks again."""
        waiting = [client for client in self.clients if client.asking is not None]
        client = waiting[number % len(waiting)]
        assert client.asking is not None
        self.ask(client, client.asking, settled=settled)

    # --- rules: the broker

    @precondition(lambda self: self.world.appends)
    @rule(count=st.integers(1, 3))
    def commit_appends(self, count: int) -> None:
        self.world.commit_appends(count)

    @precondition(lambda self: self.world.markers)
    @rule(number=st.integers(0, 9))
    def write_marker(self, number: int) -> None:
        self.world.write_marker(number % len(self.world.markers))

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        self.world.crash(kept)

    @rule(delay_ms=st.sampled_from([1_000, 10_000, TIMEOUT_MS + 10_000]))
    def time_passes(self, delay_ms: int) -> None:
        self.world.advance(delay_ms)

    # --- what must be

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        for partition in PARTITIONS:
            values = self.world.committed(partition)
            seen = self.seen[partition]
            assert values[: len(seen)] == seen, "what was seen has changed"
            self.seen[partition] = values
            assert len(set(values)) == len(values), "a record is there twice"
            last: dict[bytes, int] = {}
            for value in values[len(seen) :]:
                number, _, index = value.split(b"/")
                assert self.works[number].commit_asked, f"{value!r} was not committed"
                assert int(index) > last.get(number, -1), f"{value!r} comes too late"
                last[number] = int(index)

    def teardown(self) -> None:
        """In the end everything committed is there, nothing in part, and nothing is open."""
        self.world.crash()
        self.world.end_all()
        self.readers_see_what_was_committed()
        for work in self.works.values():
            there = {
                partition: [value for value in self.seen[partition] if value.startswith(b"%d/" % work.number)]
                for partition in work.sent
            }
            if work.committed or any(there.values()):
                assert there == work.sent, f"{work} is there as {there}"
        assert all(self.world.is_stable(partition) for partition in PARTITIONS)


TestTransactions = TransactionsModel.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
