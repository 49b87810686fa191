"""The transaction coordinator's interface for the broker's request handlers.

Methods with a parameter `done` pass their result to it, exactly once and possibly inside the call.
`client_version` is the client's transaction version: 0, or 2 (KIP-890). Besides the errors listed for each
method, any method may return NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.topic_names import TRANSACTION_STATE_TOPIC
from kwire.coordinator.runtime import CoordinatorRuntime, CoordinatorShard, CoordinatorType
from kwire.coordinator.state_machine import CoordinatorResult
from kwire.coordinator.transactions.ports import TransactionPorts
from kwire.coordinator.transactions.state_machine import (
    ProducerDone,
    ProducerIdAndEpoch,
    TransactionMarker,
    TransactionStateMachine,
    client_error,
)
from kwire.coordinator.transactions.transaction_metadata import TransactionMetadata
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicPartition

MARKER_RETRY_MS = 100
MAX_MARKER_RETRY_MS = 1_000
"""The longest delay of a marker retry. It is short, since clients wait while a leader is elected."""
COMMIT_TIMEOUT_MS = 5_000

FENCED_ERRORS = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""Errors of a log that has seen a later producer epoch or coordinator epoch. A retry would fail, too."""


class _MarkerRetry(NamedTuple):
    """Markers that wait until they are written again."""

    topics: frozenset[str]
    timer: Timer
    write: Callable[[], None]


class TransactionCoordinatorService(CoordinatorRuntime[TransactionStateMachine]):
    """The transaction coordinator of this broker."""

    def __init__(self, config: BrokerConfig, host: Host, ports: TransactionPorts) -> None:
        def machine(shard: CoordinatorShard[TransactionStateMachine]) -> TransactionStateMachine:
            return TransactionStateMachine(config, shard, ports, partial(self._write_markers, shard))

        super().__init__(CoordinatorType(TRANSACTION_STATE_TOPIC, machine, COMMIT_TIMEOUT_MS), host, ports)
        self._config = config
        self._transaction_ports = ports
        self._logger = host.logger("kwire.transactions")
        self._marker_retries: list[_MarkerRetry] = []
        """The markers that wait until they are written again."""
        self.run_every(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self._abort_timed_out
        )
        self.run_every(config.transaction_remove_expired_transaction_cleanup_interval_ms, self._expire)

    # --- events of the broker

    def topics_changed(self, topics: Collection[str]) -> None:
        """Write the waiting markers of these topics again, because their partitions may have new leaders."""
        for retry in [one for one in self._marker_retries if not one.topics.isdisjoint(topics)]:
            retry.timer.cancel()
            self._marker_retries.remove(retry)
            retry.write()

    # --- producers

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, done: ProducerDone
    ) -> None:
        """Assign a producer id and epoch. `expected` are the producer's current ones, if known (KIP-360).

        Errors: INVALID_REQUEST if the id is empty; INVALID_TRANSACTION_TIMEOUT if `timeout_ms` is not between
        1 and transaction.max.timeout.ms; the errors of `TransactionStateMachine.init_producer_id`.
        """
        if transactional_id and not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            done(ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
            return
        self._run(
            transactional_id,
            lambda machine: machine.init_producer_id(transactional_id, timeout_ms, expected, done),
            done,
        )

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_version: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Add partitions to a transaction.

        Errors: INVALID_REQUEST if the id is empty; INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, UNSUPPORTED_VERSION.
        """
        self._run(
            transactional_id,
            lambda machine: machine.add_partitions(
                transactional_id, producer, partitions, client_version, done
            ),
            lambda error: done(error.code),
        )

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        done: Callable[[Mapping[TopicPartition, ErrorCode] | ApiError], None],
    ) -> None:
        """Check which partitions are in a transaction, after the transaction's records are committed.

        `done` gets NONE or TRANSACTION_ABORTABLE for each partition, or an error of `add_partitions` other
        than UNSUPPORTED_VERSION.
        """

        def verify(machine: TransactionStateMachine) -> CoordinatorResult:
            codes = machine.verify_partitions(transactional_id, producer, partitions)
            return CoordinatorResult((), lambda error: done(codes if error is None else client_error(error)))

        self._run(transactional_id, verify, done)

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: int,
        done: ProducerDone,
    ) -> None:
        """Commit or abort a transaction. `done` gets the producer id and epoch to continue with.

        Errors: INVALID_REQUEST if the id is empty; the errors of `TransactionStateMachine.end`.
        """
        self._run(
            transactional_id,
            lambda machine: machine.end(
                transactional_id, producer, commit=commit, client_version=client_version, done=done
            ),
            done,
        )

    def _run(
        self,
        transactional_id: str,
        command: Callable[[TransactionStateMachine], CoordinatorResult],
        refuse: Callable[[ApiError], None],
    ) -> None:
        try:
            shard = self._shard(transactional_id)
            result = command(shard.machine)
        except ApiError as error:
            refuse(error)
            return
        shard.execute(result)

    def _shard(self, transactional_id: str) -> CoordinatorShard[TransactionStateMachine]:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        return self.shard_for(transactional_id)

    # --- administration

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the state of a transactional id.

        Raises ApiError: INVALID_REQUEST if the id is empty, TRANSACTIONAL_ID_NOT_FOUND.
        """
        found = self._shard(transactional_id).machine.transactions.get(transactional_id)
        if found is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return found

    def list_transactions(self) -> Iterator[TransactionMetadata]:
        """Yield the state of every transactional id.

        Raises ApiError COORDINATOR_LOAD_IN_PROGRESS if a partition is still loading.
        """
        if self.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for shard in self.active_shards():
            yield from shard.machine.transactions.values()

    # --- markers

    def _write_markers(
        self, shard: CoordinatorShard[TransactionStateMachine], marker: TransactionMarker
    ) -> None:
        """Write a marker to every partition of a transaction, with retries, and complete the transaction.

        Markers are written in rounds, like the requests of Kafka's coordinator to a broker. If one log
        refuses its marker permanently (FENCED_ERRORS), the other failed markers of that round are not retried
        either, and the transaction stays prepared.
        """
        if marker.partitions:
            self._write_round(shard, marker, marker.partitions, MARKER_RETRY_MS)
        else:
            self._host.call_soon(lambda: self._all_written(shard, marker))

    def _write_round(
        self,
        shard: CoordinatorShard[TransactionStateMachine],
        marker: TransactionMarker,
        partitions: frozenset[TopicPartition],
        retry_ms: int,
    ) -> None:
        if shard.is_closed:
            return
        pending, failed, refused = set(partitions), set[TopicPartition](), set[TopicPartition]()

        def written(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            pending.difference_update(codes)
            for partition, code in codes.items():
                if code in FENCED_ERRORS:
                    self._log_marker(
                        marker,
                        partition,
                        code,
                        "the transaction stays prepared until its coordinator is reloaded",
                    )
                    refused.add(partition)
                # A deleted partition needs no marker.
                elif code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    if retry_ms == MARKER_RETRY_MS:
                        self._log_marker(
                            marker, partition, code, "retrying, and the transaction stays prepared meanwhile"
                        )
                    failed.add(partition)
            if pending or shard.is_closed:
                return
            remaining = frozenset(failed)
            if refused:
                shard.machine.markers_fenced(marker, remaining | refused)
            elif remaining:
                self._retry_round(shard, marker, remaining, retry_ms)
            else:
                self._all_written(shard, marker)

        self._transaction_ports.write_markers(sorted(partitions), marker, shard.leader_epoch, written)

    def _retry_round(
        self,
        shard: CoordinatorShard[TransactionStateMachine],
        marker: TransactionMarker,
        partitions: frozenset[TopicPartition],
        retry_ms: int,
    ) -> None:
        next_retry_ms = min(2 * retry_ms, MAX_MARKER_RETRY_MS)

        def due() -> None:
            self._marker_retries.remove(retry)
            retry.write()

        retry = _MarkerRetry(
            frozenset(topic for topic, _ in partitions),
            self._host.internode_clock.schedule(retry_ms, due),
            lambda: self._write_round(shard, marker, partitions, next_retry_ms),
        )
        self._marker_retries.append(retry)

    def _log_marker(
        self, marker: TransactionMarker, partition: TopicPartition, code: int, effect: str
    ) -> None:
        self._logger.warning(
            "Cannot write the %s marker of transactional id %s (producer id %d, producer epoch %d) to %s-%d: "
            "%s; %s",
            "COMMIT" if marker.commit else "ABORT",
            *(marker.transactional_id, marker.producer_id, marker.producer_epoch),
            *(*partition, ErrorCode(code).name, effect),
        )

    def _all_written(
        self, shard: CoordinatorShard[TransactionStateMachine], marker: TransactionMarker
    ) -> None:
        if not shard.is_closed:
            shard.execute(shard.machine.markers_written(marker))

    # --- timers

    def _abort_timed_out(self) -> None:
        for shard in self.active_shards():
            for transactional_id in shard.machine.timed_out_ids():
                self._abort_one(shard, transactional_id)

    def _abort_one(self, shard: CoordinatorShard[TransactionStateMachine], transactional_id: str) -> None:
        try:
            result = shard.machine.abort_timed_out(transactional_id)
        except ApiError as error:
            # The abort is tried again at the next check, when a producer id may be available.
            self._logger.warning(
                "Cannot abort the timed-out transaction of transactional id %s, retrying: %s",
                transactional_id,
                error,
            )
            return
        shard.execute(result)

    def _expire(self) -> None:
        for shard in self.active_shards():
            records = shard.machine.expire()
            if records:
                shard.execute(CoordinatorResult(records))
