"""A transactional producer that commits an offset of a source partition in each transaction.

Its group has no members. InitProducerId returns when all earlier transactions have ended. Then the group's
offset must be the offset in the last committed transaction.
"""

from __future__ import annotations

from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.violation import Violation
from kwire.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kwire.wire.messages.find_coordinator import GROUP, TRANSACTION
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kwire.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from simulation.cluster.simulated_client import Steps
from simulation.cluster.transactional_producer import TransactionalProducer

ADD_OFFSETS_VERSION: Final = 3
OLD_COMMIT_VERSION, NEW_COMMIT_VERSION = 4, 5
FETCH_VERSION: Final = 8
NOTHING: Final = -1


class TransactionalCopier(TransactionalProducer):
    """A producer that commits an offset in each transaction."""

    def __init__(self, *arguments: Any, source: TopicPartition, **named: Any) -> None:
        """Create a copier that commits offsets of the partition `source`."""
        super().__init__(*arguments, **named)
        self._source = source
        self._possible = {NOTHING}
        """The possible committed offsets: a single one unless a transaction's outcome is unknown."""

    def _initialize(self) -> Steps[PeerAddress]:
        coordinator = yield from super()._initialize()
        found = yield from self._fetch_committed_offset()
        if found not in self._possible:
            raise Violation(
                f"the group of {self.name} has committed {found}, expected one of {sorted(self._possible)}"
            )
        self._possible = {found}
        return coordinator

    def _end_transaction(self, coordinator: PeerAddress, commits: bool) -> Steps[None]:
        offset = self._transactions
        if not self._uses_transactions_v2:
            yield from self._add_group(coordinator)
        yield from self._commit(offset)
        if commits:
            self._possible = self._possible | {offset}
        yield from super()._end_transaction(coordinator, commits)
        if commits:
            self._possible = {offset}

    def _add_group(self, coordinator: PeerAddress) -> Steps[None]:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=self.name,
        )
        while True:
            response = yield from self.request(coordinator, ADD_OFFSETS_VERSION, request)
            if response is not None:
                if not response.error_code:
                    return
                self.on_error(response.error_code, "AddOffsetsToTxn")
                yield self.backoff()
            coordinator = yield from self.coordinator_of(self.name, TRANSACTION)

    def _commit(self, offset: int) -> Steps[None]:
        wanted = TxnOffsetCommitRequestPartition(
            partition_index=self._source.partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self._source.topic, partitions=[wanted])],
        )
        version = NEW_COMMIT_VERSION if self._uses_transactions_v2 else OLD_COMMIT_VERSION
        while True:
            coordinator = yield from self.coordinator_of(self.name, GROUP)
            response = yield from self.request(coordinator, version, request)
            if response is None:
                self._has_unanswered_request = not self._uses_transactions_v2
                continue
            ((outcome,),) = (topic.partitions for topic in response.topics)
            if not outcome.error_code:
                return
            self.on_error(outcome.error_code, "TxnOffsetCommit")
            yield self.backoff()

    def _fetch_committed_offset(self) -> Steps[int]:
        topic = OffsetFetchRequestTopics(name=self._source.topic, partition_indexes=[self._source.partition])
        groups = [OffsetFetchRequestGroup(group_id=self.name, topics=[topic])]
        request = OffsetFetchRequest(groups=groups, require_stable=True)
        while True:
            coordinator = yield from self.coordinator_of(self.name, GROUP)
            response = yield from self.request(coordinator, FETCH_VERSION, request)
            if response is None:
                continue
            (group,) = response.groups
            code = group.error_code
            if not code:
                ((found,),) = (each.partitions for each in group.topics)
                code = found.error_code
                if not code:
                    return int(found.committed_offset)
            self.check_retriable(code, "OffsetFetch")
            yield self.backoff()
