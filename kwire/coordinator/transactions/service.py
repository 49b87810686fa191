"""The transaction coordinator as the broker's handlers use it: one method for each thing that clients ask.

Answers come through `done`, which is called exactly once, maybe inside the call. Besides the errors that each
method names, any may be NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from kwire.broker.metadata.topic_names import TRANSACTION_STATE_TOPIC
from kwire.coordinator.runtime import CoordinatorRuntime, CoordinatorShard, CoordinatorType, DecodedRecord
from kwire.coordinator.state_machine import CoordinatorResult, TimerHandle
from kwire.coordinator.transactions.ports import TransactionPorts
from kwire.coordinator.transactions.state_machine import (
    ProducerDone,
    ProducerIdAndEpoch,
    TransactionConfig,
    TransactionMarker,
    TransactionStateMachine,
    client_error,
)
from kwire.coordinator.transactions.transaction_metadata import TransactionMetadata
from kwire.host.host import Host, Timer
from kwire.host.loggers import NodeLogger
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import TransactionLogKey, TransactionLogValue
from kwire.wire.registry import decode_version_prefixed

MARKER_RETRY_MS = 100
MAX_MARKER_RETRY_MS = 1_000
"""Somebody waits for each transaction that has not ended, and the next leader of a partition may be there."""
COMMIT_TIMEOUT_MS = 5_000

FENCED_ERRORS = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""A log that has heard of a later epoch takes no marker of this one, however often it is sent."""


class ServiceConfig(TransactionConfig, Protocol):
    """The configuration keys that the transaction coordinator needs, dots as underscores."""

    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transaction_abort_timed_out_transaction_cleanup_interval_ms(self) -> int: ...
    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...


class _ShardContext:
    """What one machine may ask: of its shard, and of the coordinator."""

    def __init__(
        self, shard: CoordinatorShard[TransactionStateMachine], service: TransactionCoordinatorService
    ) -> None:
        self._shard = shard
        self._service = service

    def now_ms(self) -> int:
        return self._shard.now_ms()

    def monotonic_ms(self) -> int:
        return self._shard.monotonic_ms()

    def schedule(self, delay_ms: int, command: Callable[[], CoordinatorResult]) -> TimerHandle:
        return self._shard.schedule(delay_ms, command)

    def new_uuid(self) -> str:
        return self._shard.new_uuid()

    def logger(self, name: str) -> NodeLogger:
        return self._shard.logger(name)

    def transaction_version(self) -> int:
        return self._service.transaction_version()

    def next_producer_id(self) -> int:
        return self._service.next_producer_id()

    def run(self, result: CoordinatorResult) -> None:
        self._shard.execute(result)

    def write_markers(self, marker: TransactionMarker) -> None:
        self._service.write_markers(self._shard, marker)


class TransactionCoordinatorService:
    """All transactional ids that this broker coordinates."""

    def __init__(self, config: ServiceConfig, host: Host, ports: TransactionPorts) -> None:
        self._config = config
        self._host = host
        self._ports = ports
        self._logger = host.logger("kwire.transactions")
        self._runtime: CoordinatorRuntime[TransactionStateMachine] = CoordinatorRuntime(
            CoordinatorType(
                TRANSACTION_STATE_TOPIC,
                lambda shard: TransactionStateMachine(config, _ShardContext(shard, self)),
                stored_records,
                COMMIT_TIMEOUT_MS,
            ),
            host,
            ports,
        )
        self._stopped = False
        self._timers: dict[str, Timer] = {}
        self._schedule_repeatedly(
            "timeouts",
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self._abort_timed_out,
        )
        self._schedule_repeatedly(
            "expiry", config.transaction_remove_expired_transaction_cleanup_interval_ms, self._expire
        )

    # --- what the broker tells

    def elected(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition of the state topic from now on."""
        self._runtime.elected(index, leader_epoch)

    def resigned(self, index: int, leader_epoch: int) -> None:
        """This broker does not lead a partition of the state topic any more, as it did in this epoch."""
        self._runtime.resigned(index, leader_epoch)

    def shutdown(self) -> None:
        """Answer everyone who waits, and do nothing more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._runtime.shutdown()

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""
        return self._ports.transaction_version()

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""
        return self._ports.next_producer_id()

    def _schedule_repeatedly(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        def due() -> None:
            if not self._stopped:
                self._schedule_repeatedly(name, interval_ms, work)
                work()

        self._timers[name] = self._host.schedule_check(interval_ms, due)

    # --- finding

    def find_coordinator(self, transactional_id: str) -> int:
        """The id of the broker that coordinates a transactional id.

        ApiError COORDINATOR_NOT_AVAILABLE where nobody does; if that is for want of the state topic, its
        creation is under way.
        """
        index = self._runtime.partition_for(transactional_id)
        if index is None:
            self._ports.create_topic()
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        leader = self._ports.leader(index)
        if leader is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return leader

    # --- what producers ask

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, done: ProducerDone
    ) -> None:
        """Who to write as.

        INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        UNKNOWN_SERVER_ERROR; COORDINATOR_LOAD_IN_PROGRESS also while there are no producer ids.
        """
        if not transactional_id:
            done(ApiError(ErrorCode.INVALID_REQUEST))
            return
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
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
        """Make partitions part of a transaction.

        INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
        """
        if not transactional_id:
            done(ErrorCode.INVALID_REQUEST)
            return
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
        """Which partitions are part of a transaction, once all that shows that is committed.

        Errors of the whole are those of `add_partitions`.
        """
        if not transactional_id:
            done(ApiError(ErrorCode.INVALID_REQUEST))
            return

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
        """Commit or abort.

        INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        INVALID_TXN_STATE, UNSUPPORTED_VERSION; COORDINATOR_LOAD_IN_PROGRESS also while there are no producer
        ids.
        """
        if not transactional_id:
            done(ApiError(ErrorCode.INVALID_REQUEST))
            return
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
            shard = self._runtime.shard_for(transactional_id)
            result = command(shard.machine)
        except ApiError as error:
            refuse(error)
            return
        shard.execute(result)

    # --- what administrators ask

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """A transactional id. ApiError: INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND."""
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        found = self._runtime.shard_for(transactional_id).machine.transactions.get(transactional_id)
        if found is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return found

    def list_transactions(self) -> Iterator[TransactionMetadata]:
        """Every transactional id. ApiError COORDINATOR_LOAD_IN_PROGRESS while some are not known yet."""
        if self._runtime.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for shard in self._runtime.active_shards():
            yield from shard.machine.transactions.values()

    # --- markers

    def write_markers(
        self, shard: CoordinatorShard[TransactionStateMachine], marker: TransactionMarker
    ) -> None:
        """Write a marker into every partition of a transaction, again where that fails, then end it.

        They go in rounds, as the requests of Kafka's coordinator to a broker. If a log refuses its marker for
        good, those that fail in the same round are not written either.
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
        under_way, failed, refused = set(partitions), set[TopicPartition](), set[TopicPartition]()

        def written(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            under_way.difference_update(codes)
            for partition, code in codes.items():
                if code in FENCED_ERRORS:
                    self._log_marker("cannot be written", marker, partition, code)
                    refused.add(partition)
                # A partition that is deleted needs no marker.
                elif code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    if retry_ms == MARKER_RETRY_MS:
                        self._log_marker("waits", marker, partition, code)
                    failed.add(partition)
            if under_way or shard.is_closed:
                return
            left = frozenset(failed)
            if refused:
                shard.machine.markers_fenced(marker, left | refused)
            elif left:
                again_ms = min(2 * retry_ms, MAX_MARKER_RETRY_MS)
                self._host.internode_clock.schedule(
                    retry_ms, lambda: self._write_round(shard, marker, left, again_ms)
                )
            else:
                self._all_written(shard, marker)

        self._ports.write_markers(sorted(partitions), marker, shard.leader_epoch, written)

    def _log_marker(self, what: str, marker: TransactionMarker, partition: TopicPartition, code: int) -> None:
        name = ErrorCode(code).name
        self._logger.warning(
            "the marker of %s for %s-%d %s: %s", marker.transactional_id, *partition, what, name
        )

    def _all_written(
        self, shard: CoordinatorShard[TransactionStateMachine], marker: TransactionMarker
    ) -> None:
        if not shard.is_closed:
            shard.execute(shard.machine.markers_written(marker))

    # --- timers

    def _abort_timed_out(self) -> None:
        for shard in self._runtime.active_shards():
            for transactional_id in shard.machine.timed_out_ids():
                self._abort_one(shard, transactional_id)

    def _abort_one(self, shard: CoordinatorShard[TransactionStateMachine], transactional_id: str) -> None:
        try:
            result = shard.machine.abort_timed_out(transactional_id)
        except ApiError as error:
            # The next time, there may be a producer id to go on with.
            self._logger.warning("the transaction of %s is not aborted yet: %s", transactional_id, error)
            return
        shard.execute(result)

    def _expire(self) -> None:
        for shard in self._runtime.active_shards():
            records = shard.machine.expire()
            if records:
                shard.execute(CoordinatorResult(records))


def stored_records(data: memoryview) -> Iterator[DecodedRecord]:
    """The records of one stored batch of `__transaction_state`. CorruptBatch, WireError."""
    for record in batch.records(data, 0, batch.read_header(data)):
        if record.key is not None:
            value = (
                None if record.value is None else decode_version_prefixed(TransactionLogValue, record.value)
            )
            yield decode_version_prefixed(TransactionLogKey, record.key), value
