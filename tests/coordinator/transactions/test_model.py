"""A model test of transactions: read_committed consumers see each committed record exactly once.

Producers behave as clients do. They retry after a lost response or a retriable error, abort after an
abortable error, and stop when they are fenced. A replaced producer continues until it learns that it is
fenced.
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
from tests.coordinator.transactions.transaction_harness import PARTITIONS, TransactionHarness

NAMES = ("a", "b")
TIMEOUT_MS = 60_000
MAX_PRODUCERS = 6

mostly = st.sampled_from([True, True, True, False])
"""Mostly true, so that some transactions are committed."""

RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""Errors after which clients retry."""
FENCED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    # EndTxn for a transaction that has ended otherwise.
    ErrorCode.INVALID_TXN_STATE,
}
"""Errors that end a producer."""
ABORTABLE = {ErrorCode.TRANSACTION_ABORTABLE}
"""Errors after which a client must abort its transaction."""


@dataclass
class ModelTransaction:
    """One transaction in the model."""

    number: int
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    """Acknowledged values by partition."""
    commit_requested: bool = False
    committed: bool = False
    """Whether its producer received the response that it is committed."""


@dataclass(eq=False)
class Client:
    """The state of a producer on the client."""

    name: str
    number: int
    version: int
    producer: ProducerIdAndEpoch | None = None
    added: set[TopicPartition] = field(default_factory=set)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    transaction: ModelTransaction | None = None
    must_abort: bool = False
    is_fenced: bool = False
    pending_request: Callable[[], None] | None = None
    """The request that has no final response yet."""

    @property
    def is_free(self) -> bool:
        return self.producer is not None and not self.is_fenced and self.pending_request is None


class TransactionsModel(RuleBasedStateMachine):
    """Random events of producers and a broker that crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = TransactionHarness()
        self.clients: list[Client] = []
        self.transactions: dict[bytes, ModelTransaction] = {}
        """Transactions by the prefix of their values."""
        self.seen: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}

    def free(self) -> list[Client]:
        return [client for client in self.clients if client.is_free]

    def pick(self, number: int) -> Client:
        free = self.free()
        return free[number % len(free)]

    def send_request(self, client: Client, request: Callable[[], None], *, settled: bool = True) -> None:
        """Send a request; it stays pending until it has a final response."""
        client.pending_request = request
        request()
        self.harness.host.run_pending()
        if settled:
            self.harness.settle()

    def handle_error_code(self, client: Client, code: ErrorCode) -> bool:
        """Update a client after a response and return whether the request succeeded."""
        if code in RETRIABLE:
            return False
        client.pending_request = None
        assert code in {ErrorCode.NONE, *FENCED, *ABORTABLE}, code.name
        client.is_fenced |= code in FENCED
        client.must_abort |= code in ABORTABLE
        return code == ErrorCode.NONE

    # --- rules: producers

    @precondition(lambda self: len(self.clients) < MAX_PRODUCERS)
    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([0, 2]), settled=mostly)
    def add_producer(self, name: str, version: int, settled: bool) -> None:
        client = Client(name, len(self.clients), version)
        self.clients.append(client)
        self.send_request(client, lambda: self.init(client, None), settled=settled)

    @precondition(lambda self: any(client.transaction is None for client in self.free()))
    @rule(number=st.integers(0, 9), settled=mostly)
    def bump_epoch(self, number: int, settled: bool) -> None:
        """Let a producer request the next epoch with its id and epoch (KIP-360)."""
        free = [client for client in self.free() if client.transaction is None]
        client = free[number % len(free)]
        producer = client.producer
        self.send_request(client, lambda: self.init(client, producer), settled=settled)

    def init(self, client: Client, expected: ProducerIdAndEpoch | None) -> None:
        life = self.harness.life

        def done(result: ProducerIdAndEpoch | ApiError) -> None:
            if life != self.harness.life or client.pending_request is None:
                return
            code = ErrorCode(result.code) if isinstance(result, ApiError) else ErrorCode.NONE
            if self.handle_error_code(client, code):
                assert isinstance(result, ProducerIdAndEpoch)
                self.set_producer(client, result)

        self.harness.service.init_producer_id(client.name, TIMEOUT_MS, expected, done)

    def set_producer(self, client: Client, producer: ProducerIdAndEpoch) -> None:
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
        """Send a batch, whose first response may be lost."""
        self.send_batch(self.pick(number), partition, count, settled=settled, arrives=arrives)

    def send_batch(
        self, client: Client, partition: TopicPartition, count: int, *, settled: bool, arrives: bool
    ) -> None:
        if client.must_abort:
            return
        if client.transaction is None:
            client.transaction = ModelTransaction(len(self.transactions))
            self.transactions[b"%d" % client.transaction.number] = client.transaction
        transaction, producer = client.transaction, client.producer
        assert producer is not None
        sequence = client.sequences.get(partition, 0)
        first = len(transaction.sent.get(partition, ()))
        values = [
            b"%d/%s-%d/%d" % (transaction.number, partition[0].encode(), partition[1], first + at)
            for at in range(count)
        ]

        def produced(code: ErrorCode) -> None:
            nonlocal arrives
            if not arrives:
                arrives = True
                return
            if (
                life == self.harness.life
                and client.pending_request is not None
                and self.handle_error_code(client, code)
            ):
                client.sequences[partition] = sequence + count
                transaction.sent.setdefault(partition, []).extend(values)

        def added(code: ErrorCode) -> None:
            if life != self.harness.life or client.pending_request is None or code in RETRIABLE:
                return
            if code != ErrorCode.NONE:
                self.handle_error_code(client, code)
                return
            client.added.add(partition)
            produce()

        def produce() -> None:
            assert producer is not None
            self.harness.produce(client.name, producer, partition, sequence, values, client.version, produced)

        life = self.harness.life

        def request() -> None:
            nonlocal life
            life = self.harness.life
            if client.version >= 2 or partition in client.added:
                produce()
            else:
                self.harness.service.add_partitions(client.name, producer, [partition], 0, added)

        self.send_request(client, request, settled=settled)

    @precondition(lambda self: any(client.transaction is not None for client in self.free()))
    @rule(number=st.integers(0, 9), commit=st.booleans(), settled=mostly)
    def end(self, number: int, commit: bool, settled: bool) -> None:
        free = [client for client in self.free() if client.transaction is not None]
        self.end_transaction(free[number % len(free)], commit=commit, settled=settled)

    def end_transaction(self, client: Client, *, commit: bool, settled: bool) -> None:
        transaction, producer = client.transaction, client.producer
        assert transaction is not None
        assert producer is not None
        commit = commit and not client.must_abort
        if not transaction.sent and (commit or not client.added) and client.version < 2:
            # No transaction was begun on the coordinator.
            client.transaction, client.must_abort = None, False
            return
        if not transaction.sent:
            commit = False
        transaction.commit_requested = commit
        life = self.harness.life

        def done(result: ProducerIdAndEpoch | ApiError) -> None:
            if life != self.harness.life or client.pending_request is None:
                return
            code = ErrorCode(result.code) if isinstance(result, ApiError) else ErrorCode.NONE
            if self.handle_error_code(client, code):
                assert isinstance(result, ProducerIdAndEpoch)
                transaction.committed = commit
                client.transaction, client.must_abort = None, False
                self.set_producer(client, result if client.version >= 2 else producer)

        def request() -> None:
            nonlocal life
            life = self.harness.life
            self.harness.service.end(
                client.name, producer, commit=commit, client_version=client.version, done=done
            )

        self.send_request(client, request, settled=settled)

    @precondition(lambda self: self.free())
    @rule(
        number=st.integers(0, 9),
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4),
        commit=mostly,
        settled=mostly,
    )
    def run_transaction(
        self, number: int, partitions: list[TopicPartition], commit: bool, settled: bool
    ) -> None:
        """Run a transaction, or the rest of one, without faults up to its end."""
        client = self.pick(number)
        for partition in partitions:
            if client.is_free:
                self.send_batch(client, partition, 2, settled=True, arrives=True)
        if client.is_free and client.transaction is not None:
            self.end_transaction(client, commit=commit, settled=settled)

    @precondition(lambda self: any(client.pending_request for client in self.clients))
    @rule(number=st.integers(0, 9), settled=mostly)
    def retry(self, number: int, settled: bool) -> None:
        """Send a pending request again."""
        waiting = [client for client in self.clients if client.pending_request is not None]
        client = waiting[number % len(waiting)]
        assert client.pending_request is not None
        self.send_request(client, client.pending_request, settled=settled)

    # --- rules: the broker

    @precondition(lambda self: self.harness.appends)
    @rule(count=st.integers(1, 3))
    def commit_appends(self, count: int) -> None:
        self.harness.commit_appends(count)

    @precondition(lambda self: self.harness.markers)
    @rule(number=st.integers(0, 9))
    def write_marker(self, number: int) -> None:
        self.harness.write_marker(number % len(self.harness.markers))

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        self.harness.crash(kept)

    @rule(delay_ms=st.sampled_from([1_000, 10_000, TIMEOUT_MS + 10_000]))
    def time_passes(self, delay_ms: int) -> None:
        self.harness.advance(delay_ms)

    # --- invariants

    @invariant()
    def readers_see_committed_records(self) -> None:
        for partition in PARTITIONS:
            values = self.harness.committed(partition)
            seen = self.seen[partition]
            assert values[: len(seen)] == seen, "the records that were read have changed"
            self.seen[partition] = values
            assert len(set(values)) == len(values), "a record is duplicated"
            last: dict[bytes, int] = {}
            for value in values[len(seen) :]:
                number, _, index = value.split(b"/")
                assert self.transactions[number].commit_requested, f"{value!r} was not committed"
                assert int(index) > last.get(number, -1), f"{value!r} is out of order"
                last[number] = int(index)

    def teardown(self) -> None:
        """At the end, committed transactions are complete, no transaction is partial and none is open."""
        self.harness.crash()
        self.harness.end_all()
        self.readers_see_committed_records()
        for transaction in self.transactions.values():
            visible = {
                partition: [
                    value for value in self.seen[partition] if value.startswith(b"%d/" % transaction.number)
                ]
                for partition in transaction.sent
            }
            if transaction.committed or any(visible.values()):
                assert visible == transaction.sent, f"{transaction} is visible as {visible}"
        assert all(self.harness.is_stable(partition) for partition in PARTITIONS)


TestTransactions = TransactionsModel.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
