"""Transactional producers, which commit or abort transactions and initialize again when they are fenced.

They use the protocol before KIP-890, in which they send AddPartitionsToTxn, or the protocol since KIP-890, in
which Produce adds the partition and each transaction has its own producer epoch.
"""

from __future__ import annotations

from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kwire.wire.messages.end_txn import EndTxnRequest
from kwire.wire.messages.find_coordinator import TRANSACTION
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from simulation.cluster.client_oracle import Transaction
from simulation.cluster.producers import Producer
from simulation.cluster.simulated_client import Steps

INIT_VERSION: Final = 4
ADD_VERSION: Final = 3
OLD_PRODUCE_VERSION, OLD_END_VERSION = 11, 4
NEW_PRODUCE_VERSION, NEW_END_VERSION = 12, 5
TRANSACTION_TIMEOUT_MS: Final = 5_000

REINITIALIZE_ERRORS: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors that mean that the coordinator has aborted the transaction, for example after a timeout."""


class MustReinitialize(Exception):
    """The producer must call InitProducerId again."""


class TransactionalProducer(Producer):
    """A producer that runs one transaction after another."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._uses_transactions_v2 = self.rng.random() < 0.5
        self._end_version = NEW_END_VERSION if self._uses_transactions_v2 else OLD_END_VERSION
        self.produce_version = NEW_PRODUCE_VERSION if self._uses_transactions_v2 else OLD_PRODUCE_VERSION
        self._transactions = 0
        self._has_unanswered_request = False
        """Whether a delayed request may still arrive and affect a later transaction, as before KIP-890."""

    def run(self) -> Steps[None]:
        while not self.is_stopping:
            coordinator = yield from self._initialize()
            try:
                while not self.is_stopping:
                    yield from self._run_transaction(coordinator)
                    yield self.random_pause(self._pause_ms)
            except MustReinitialize as error:
                self.log(f"initializes again: {error}")
        yield from self._initialize()  # this aborts an open transaction

    def _initialize(self) -> Steps[PeerAddress]:
        """Send InitProducerId until it succeeds, and return the coordinator of the transactional id."""
        self._has_unanswered_request = False
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        while True:
            coordinator = yield from self.coordinator_of(self.name, TRANSACTION)
            response = yield from self.request(coordinator, INIT_VERSION, request)
            if response is None:
                continue
            if not response.error_code:
                self._set_producer_id(response.producer_id, response.producer_epoch)
                return coordinator
            if ErrorCode(response.error_code) not in REINITIALIZE_ERRORS:
                self.check_retriable(response.error_code, "InitProducerId")
            yield self.backoff()

    def _set_producer_id(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = producer_id, epoch
            self._sequences.clear()

    def _run_transaction(self, coordinator: PeerAddress) -> Steps[None]:
        self._transactions += 1
        transaction = Transaction(f"{self.name}#{self._transactions}")
        self.oracle.on_transaction_begin(transaction)
        named: set[TopicPartition] = set()
        for _ in range(self.rng.choice((1, 2, 3))):
            tp = self.rng.choice(self.partitions)
            if not self._uses_transactions_v2 and tp not in named:
                yield from self._add_partition(coordinator, tp)
                named.add(tp)
            if not (yield from self.deliver(tp, self.new_records(tp, transaction), self.name)):
                raise MustReinitialize("a batch timed out")
            yield self.random_pause(50)
        commits = self.rng.random() < 0.7
        if commits:
            transaction.outcome = None  # the outcome is unknown until there is a response
        yield from self._end_transaction(coordinator, commits)
        transaction.outcome = commits
        if self._has_unanswered_request:
            raise MustReinitialize("an EndTxn without a response could end the next transaction")

    def _add_partition(self, coordinator: PeerAddress, tp: TopicPartition) -> Steps[None]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
        )
        while True:
            response = yield from self.request(coordinator, ADD_VERSION, request)
            if response is not None:
                ((one,),) = (each.results_by_partition for each in response.results_by_topic_v3_and_below)
                if not one.partition_error_code:
                    return
                self.on_error(one.partition_error_code, "AddPartitionsToTxn")
                yield self.backoff()
            coordinator = yield from self.coordinator_of(self.name, TRANSACTION)

    def _end_transaction(self, coordinator: PeerAddress, commits: bool) -> Steps[None]:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commits,
        )
        while True:
            response = yield from self.request(coordinator, self._end_version, request)
            if response is not None:
                if not response.error_code:
                    if self._uses_transactions_v2:
                        self._set_producer_id(response.producer_id, response.producer_epoch)
                    return
                self.on_error(response.error_code, "EndTxn")
                yield self.backoff()
            else:
                self._has_unanswered_request = not self._uses_transactions_v2
            coordinator = yield from self.coordinator_of(self.name, TRANSACTION)

    def on_error(self, code: int, what: str) -> None:
        if ErrorCode(code) in REINITIALIZE_ERRORS:
            raise MustReinitialize(f"{what} returned {ErrorCode(code).name}")
        super().on_error(code, what)
