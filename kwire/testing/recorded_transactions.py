"""The transactions that recorded requests show: which records are in which transaction, and its outcome.

A transaction begins with the first record or offset commit after the end of the last one. It ends when EndTxn
succeeds, or when a producer with the same transactional id initializes, which aborts it. If the response to
EndTxn did not leave the broker, a retry shows the outcome. If there is no retry, the outcome is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kwire.testing.observations import Commit, Observations, Outcome, Partition, Transaction
from kwire.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kwire.testing.exchange import Exchange


@dataclass(slots=True, eq=False)
class _Producer:
    """The state of a transactional id."""

    count: int = 0
    open: Transaction | None = None
    ending: Transaction | None = None
    """A transaction whose end was requested, with an outcome that is not known yet."""
    is_committing: bool = False
    commits: dict[Transaction, list[tuple[str, Partition, int, float]]] = field(default_factory=dict)
    """The offset commits in each transaction: group, partition, offset and time."""


class Transactions:
    """The transactions of all producers, while the requests are read in order."""

    def __init__(self, seen: Observations) -> None:
        self._seen = seen
        self._producers: dict[str, _Producer] = defaultdict(_Producer)

    def current(self, transactional_id: str) -> Transaction:
        """Return the open transaction, which begins now if there is none."""
        producer = self._producers[transactional_id]
        producer.ending = None
        if producer.open is None:
            producer.count += 1
            producer.open = self._seen.new_transaction(f"transaction {producer.count} of {transactional_id}")
        return producer.open

    def observe(self, exchange: Exchange, request: Any, response: Any) -> None:
        """Add what a request of a transactional producer shows. Ignores other requests."""
        observe: Callable[[Exchange, Any, Any], None] | None = {
            "TxnOffsetCommit": self._observe_offsets,
            "EndTxn": self._observe_end,
            "InitProducerId": self._observe_initialization,
        }.get(exchange.api)
        if observe is not None:
            observe(exchange, request, response)

    def _observe_offsets(self, exchange: Exchange, request: Any, response: Any) -> None:
        transaction = self.current(request.transactional_id)
        if response is None:
            return
        accepted = {
            (topic.name, one.partition_index)
            for topic in response.topics
            for one in topic.partitions
            if one.error_code == ErrorCode.NONE
        }
        commits = self._producers[request.transactional_id].commits.setdefault(transaction, [])
        commits += [
            (
                request.group_id,
                (topic.name, one.partition_index),
                one.committed_offset,
                exchange.received_at_s - self._seen.started_s,
            )
            for topic in request.topics
            for one in topic.partitions
            if (topic.name, one.partition_index) in accepted
        ]

    def _observe_end(self, exchange: Exchange, request: Any, response: Any) -> None:
        producer = self._producers[request.transactional_id]
        transaction = producer.open or producer.ending
        if transaction is None:
            return
        producer.open, producer.ending = None, transaction
        producer.is_committing = request.committed or producer.is_committing
        if transaction.end_requested_s < 0:
            producer.is_committing = request.committed
            transaction.end_requested_s = exchange.received_at_s - self._seen.started_s
        if response is None or response.error_code != ErrorCode.NONE:
            return
        outcome = Outcome.ACKNOWLEDGED if request.committed else Outcome.REJECTED
        self._end(producer, transaction, outcome, exchange)

    def _observe_initialization(self, exchange: Exchange, request: Any, response: Any) -> None:
        if not request.transactional_id or response is None or response.error_code != ErrorCode.NONE:
            return
        producer = self._producers[request.transactional_id]
        transaction, is_open = producer.open or producer.ending, producer.open is not None
        if transaction is not None and (is_open or not producer.is_committing):
            self._end(producer, transaction, Outcome.REJECTED, exchange)
        producer.open = producer.ending = None

    def _end(
        self, producer: _Producer, transaction: Transaction, outcome: Outcome, exchange: Exchange
    ) -> None:
        producer.ending = None
        responded_at_s = exchange.responded_at_s
        assert responded_at_s is not None
        transaction.end(outcome, responded_at_s - self._seen.started_s)
        for group, partition, offset, at_s in producer.commits.pop(transaction, ()):
            if outcome is Outcome.ACKNOWLEDGED:
                self._seen.commits[group].append(Commit(partition, offset, False, at_s))
