"""The transaction coordinator with virtual time: requests, results and states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from kwire.broker.config import BrokerConfig
from kwire.coordinator.transactions.service import TransactionCoordinatorService
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionMarker
from kwire.coordinator.transactions.transaction_metadata import (
    LAST_CLIENT_EPOCH,
    VALID_TRANSITIONS,
    TransactionState,
)
from kwire.testing.virtual_host import VirtualHost
from kwire.wire import batch
from kwire.wire.batch import MAX_PRODUCER_EPOCH
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition

A, B = ("a", 0), ("b", 1)


@dataclass
class Config:
    """The configuration keys of the transaction coordinator, with Kafka's defaults."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


@dataclass
class BrokerPorts:
    """Ports with a log in memory. Markers are written at once, unless `held` is set."""

    host: VirtualHost
    version: int = 2
    log: list[bytearray] = field(default_factory=list)
    markers: list[tuple[TopicPartition, TransactionMarker]] = field(default_factory=list)
    held: list[Callable[[ApiError | None], None]] | None = None
    next_id: int = 100
    has_no_ids: bool = False

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> int:
        self.log.append(data)
        self.host.call_soon(lambda: on_committed(None))
        return len(self.log) - 1

    def log_end_offset(self, index: int) -> int:
        raise AssertionError("transaction records are not batched")

    def delete_records_before(self, index: int, offset: int) -> None:
        raise AssertionError("transactions need all records")

    def max_batch_bytes(self, index: int) -> int:
        raise AssertionError("transaction records are not batched")

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        yield from [memoryview(bytes(data)) for data in self.log]

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        on_committed(None)

    def partition_count(self) -> int | None:
        return 1

    def leader(self, index: int) -> int | None:
        return 1

    def create_topic(self) -> None:
        raise AssertionError("the topic exists")

    def next_producer_id(self) -> int:
        if self.has_no_ids:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.next_id += 1
        return self.next_id

    def transaction_version(self) -> int:
        return self.version

    def write_markers(
        self,
        partitions: Collection[TopicPartition],
        ending: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        # As if each partition had a leader on another broker.
        for partition in partitions:
            self.markers.append((partition, ending))
            if self.held is None:
                done({partition: ErrorCode.NONE})
            else:
                self.held.append(partial(self._call_done, partition, done))

    @staticmethod
    def _call_done(
        partition: TopicPartition,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
        error: ApiError | None,
    ) -> None:
        done({partition: ErrorCode.NONE if error is None else ErrorCode(error.code)})


class CoordinatorScript:
    """Sends requests to a coordinator and returns their results at once."""

    def __init__(self, version: int = 2) -> None:
        self.host = VirtualHost(seed=1, now_ms=1_000_000)
        self.broker = BrokerPorts(self.host, version)
        self.start()

    def start(self) -> None:
        """Start a coordinator from the log."""
        self.service = TransactionCoordinatorService(cast("BrokerConfig", Config()), self.host, self.broker)
        self.service.elected(0, 5)
        self.host.run_pending()

    def _result_of(self, call: Callable[[Callable[[Any], None]], None]) -> Any:
        results: list[Any] = []
        call(results.append)
        self.host.run_pending()
        assert len(results) == 1, results
        result = results[0]
        return (
            result.code.name
            if isinstance(result, ApiError)
            else result.name
            if isinstance(result, ErrorCode)
            else result
        )

    def init(
        self, name: str = "t", expected: ProducerIdAndEpoch | None = None, timeout_ms: int = 60_000
    ) -> Any:
        return self._result_of(lambda done: self.service.init_producer_id(name, timeout_ms, expected, done))

    def add(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "t", version: int = 0
    ) -> Any:
        return self._result_of(
            lambda done: self.service.add_partitions(name, producer, partitions, version, done)
        )

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, name: str = "t", version: int = 0
    ) -> Any:
        return self._result_of(
            lambda done: self.service.end(name, producer, commit=commit, client_version=version, done=done)
        )

    def state(self, name: str = "t") -> str:
        found = self.service.describe(name)
        return f"{found.state.title} {found.producer_id}/{found.producer_epoch}"


def test_transaction_of_version_0_keeps_the_epoch() -> None:
    script = CoordinatorScript()
    producer = script.init()
    assert producer == ProducerIdAndEpoch(101, 0)
    assert script.state() == "Empty 101/0"
    assert script.add(producer, A, B) == "NONE"
    assert script.state() == "Ongoing 101/0"
    assert script.end(producer) == producer
    assert script.state() == "CompleteCommit 101/0"
    assert [
        (partition, ending.commit, ending.producer_epoch) for partition, ending in script.broker.markers
    ] == [
        (A, True, 0),
        (B, True, 0),
    ]
    assert script.end(producer) == producer  # a retry succeeds
    assert script.end(producer, commit=False) == "INVALID_TXN_STATE"


def test_transaction_of_version_2_bumps_the_epoch() -> None:
    script = CoordinatorScript()
    producer = script.init()
    assert script.add(producer, A, version=2) == "NONE"
    after = script.end(producer, version=2)
    assert after == ProducerIdAndEpoch(101, 1)
    assert script.state() == "CompleteCommit 101/1"
    assert [ending.producer_epoch for _, ending in script.broker.markers] == [1]
    assert script.end(producer, version=2) == after  # a retry after a lost response
    assert script.add(producer, A, version=2) == "PRODUCER_FENCED"
    assert script.add(after, A, version=2) == "NONE"
    assert script.end(after, commit=False, version=2) == ProducerIdAndEpoch(101, 2)
    assert script.state() == "CompleteAbort 101/2"


def test_abort_of_an_empty_transaction_bumps_the_epoch_in_version_2() -> None:
    script = CoordinatorScript()
    producer = script.init()
    assert script.end(producer, commit=False, version=2) == ProducerIdAndEpoch(101, 1)
    assert script.state() == "CompleteAbort 101/1"
    assert script.broker.markers == []
    assert script.end(ProducerIdAndEpoch(101, 1), commit=True, version=2) == "INVALID_TXN_STATE"


def test_end_of_an_empty_transaction_is_refused_in_version_0() -> None:
    script = CoordinatorScript()
    producer = script.init()
    for commit in (True, False):
        assert script.end(producer, commit=commit) == "INVALID_TXN_STATE"


def test_second_producer_fences_the_first() -> None:
    script = CoordinatorScript()
    first = script.init()
    second = script.init()
    assert second == ProducerIdAndEpoch(101, 1)
    assert script.add(first, A) == "PRODUCER_FENCED"
    assert script.end(first) == "PRODUCER_FENCED"
    assert script.add(ProducerIdAndEpoch(7, 0), A) == "INVALID_PRODUCER_ID_MAPPING"
    assert script.add(second, A, name="other") == "INVALID_PRODUCER_ID_MAPPING"


def test_new_producer_aborts_the_open_transaction_of_the_old_one() -> None:
    script = CoordinatorScript()
    first = script.init()
    script.add(first, A)
    assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == "CompleteAbort 101/1"
    assert [(ending.commit, ending.producer_epoch) for _, ending in script.broker.markers] == [(False, 1)]
    second = script.init()
    assert second == ProducerIdAndEpoch(101, 2)
    script.add(second, A, version=2)
    assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == "CompleteAbort 101/3"  # version 2 bumps the epoch at the end


def test_requests_return_concurrent_transactions_while_markers_are_written() -> None:
    script = CoordinatorScript()
    script.broker.held = []
    producer = script.init()
    script.add(producer, A)
    assert script.end(producer) == producer
    assert script.state() == "PrepareCommit 101/0"
    assert script.add(producer, B) == "CONCURRENT_TRANSACTIONS"
    assert script.end(producer) == "CONCURRENT_TRANSACTIONS"
    assert script.end(producer, commit=False) == "CONCURRENT_TRANSACTIONS"
    assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.init(expected=ProducerIdAndEpoch(7, 7)) == "CONCURRENT_TRANSACTIONS"
    assert script.add(ProducerIdAndEpoch(7, 7), B) == "CONCURRENT_TRANSACTIONS"
    assert script.end(ProducerIdAndEpoch(101, 7)) == "PRODUCER_FENCED"
    assert script.end(ProducerIdAndEpoch(101, 7), version=2) == "CONCURRENT_TRANSACTIONS"
    (written,) = script.broker.held
    written(None)
    script.host.run_pending()
    assert script.state() == "CompleteCommit 101/0"


def test_failed_marker_is_retried() -> None:
    script = CoordinatorScript()
    script.broker.held = []
    producer = script.init()
    script.add(producer, A)
    script.end(producer)
    script.broker.held.pop()(ApiError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert len(script.broker.markers) == 1
    script.host.advance(100)
    assert len(script.broker.markers) == 2
    script.broker.held.pop()(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))  # the partition was deleted
    script.host.run_pending()
    assert script.state() == "CompleteCommit 101/0"


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_fenced_marker_leaves_the_transaction_in_prepare_commit(code: ErrorCode) -> None:
    script = CoordinatorScript()
    script.broker.held = []
    producer = script.init()
    script.add(producer, A, B)
    script.end(producer, version=2)
    script.broker.held.pop(0)(ApiError(code))
    script.broker.held.pop()(None)
    script.host.advance(3_600_000)
    assert script.state() == "PrepareCommit 101/1"
    assert script.service.describe("t").partitions == {A}
    assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert len(script.broker.markers) == 2
    # A coordinator that is loaded again has a later epoch and writes all markers again.
    script.broker.held = None
    script.start()
    assert {partition for partition, _ in script.broker.markers[2:]} == {A, B}
    assert script.state() == "CompleteCommit 101/1"


RETRIABLE = ErrorCode.KAFKA_STORAGE_ERROR
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("first", "second", "remaining"),
    [
        ((RETRIABLE, RETRIABLE), (FENCED, None), {A}),
        ((RETRIABLE, RETRIABLE), (None, FENCED), {B}),
        ((RETRIABLE, RETRIABLE), (FENCED, RETRIABLE), {A, B}),
        ((RETRIABLE, RETRIABLE), (RETRIABLE, FENCED), {A, B}),
        ((FENCED, RETRIABLE), (), {A, B}),
        ((RETRIABLE, FENCED), (), {A, B}),
        ((RETRIABLE, None), (FENCED,), {A}),
    ],
)
def test_fenced_marker_ends_the_retries(
    first: tuple[ErrorCode | None, ...], second: tuple[ErrorCode | None, ...], remaining: set[TopicPartition]
) -> None:
    script = CoordinatorScript()
    script.broker.held = []
    producer = script.init()
    script.add(producer, A, B)
    script.end(producer)
    for round_ in (first, second):
        for code in round_:
            script.broker.held.pop(0)(None if code is None else ApiError(code))
        script.host.advance(3_600_000 if round_ is second else 100)
    assert len(script.broker.markers) == len(first) + len(second)
    assert script.state() == "PrepareCommit 101/0"
    assert script.service.describe("t").partitions == remaining
    script.broker.held = None
    script.start()
    assert script.state() == "CompleteCommit 101/0"


def test_restart_completes_a_prepared_transaction() -> None:
    script = CoordinatorScript()
    script.broker.held = []
    producer = script.init()
    script.add(producer, A)
    script.end(producer, version=2)
    script.broker.held = None
    script.start()
    assert script.state() == "CompleteCommit 101/1"
    script.add(ProducerIdAndEpoch(101, 1), B)
    script.start()
    assert script.state() == "Ongoing 101/1"
    assert script.service.describe("t").partitions == {B}


def test_timed_out_transaction_is_aborted() -> None:
    script = CoordinatorScript()
    producer = script.init(timeout_ms=30_000)
    script.add(producer, A)
    script.host.advance(30_000)
    assert script.state() == "Ongoing 101/0"
    script.host.advance(10_000)
    assert script.state() == "CompleteAbort 101/1"
    assert script.end(producer) == "PRODUCER_FENCED"


def test_unused_transactional_id_expires() -> None:
    script = CoordinatorScript()
    script.init()
    script.host.advance(604_800_000 - 3_600_000)
    assert script.state() == "Empty 101/0"
    script.host.advance(2 * 3_600_000)
    with pytest.raises(ApiError) as missing:
        script.state()
    assert missing.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    script.start()
    assert list(script.service.list_transactions()) == []


def test_exhausted_epochs_give_a_new_producer_id() -> None:
    script = CoordinatorScript()
    producer = script.init()
    machine = next(iter(script.service.active_shards())).machine
    machine.transactions["t"] = machine.transactions["t"]._replace(producer_epoch=LAST_CLIENT_EPOCH)
    last = ProducerIdAndEpoch(producer.producer_id, LAST_CLIENT_EPOCH)
    assert script.add(last, A, version=2) == "NONE"
    assert script.end(last, version=2) == ProducerIdAndEpoch(102, 0)
    assert script.state() == "CompleteCommit 102/0"
    assert [(ending.producer_id, ending.producer_epoch) for _, ending in script.broker.markers] == [
        (101, LAST_CLIENT_EPOCH + 1)
    ]
    assert script.end(last, version=2) == ProducerIdAndEpoch(102, 0)  # a retry
    machine.transactions["t"] = machine.transactions["t"]._replace(producer_epoch=LAST_CLIENT_EPOCH)
    assert script.init() == ProducerIdAndEpoch(103, 0)


def test_missing_producer_ids_return_load_in_progress() -> None:
    script = CoordinatorScript()
    script.broker.has_no_ids = True
    assert script.init(timeout_ms=0) == "INVALID_TRANSACTION_TIMEOUT"
    assert script.init() == "COORDINATOR_LOAD_IN_PROGRESS"
    assert list(script.service.list_transactions()) == []
    script.broker.has_no_ids = False
    script.init(timeout_ms=1_000)
    script.broker.has_no_ids = True
    assert script.init(timeout_ms=1_000) == ProducerIdAndEpoch(101, 1)  # it already has a producer id
    last = with_epoch(script, LAST_CLIENT_EPOCH)
    assert script.init() == "COORDINATOR_LOAD_IN_PROGRESS"
    assert script.add(last, A, version=2) == "NONE"
    assert script.end(last._replace(epoch=3), version=2) == "PRODUCER_FENCED"
    assert script.end(last, version=2) == "COORDINATOR_LOAD_IN_PROGRESS"
    assert script.init() == "COORDINATOR_LOAD_IN_PROGRESS"
    script.host.advance(20_000)  # timed out, but not aborted without a new producer id
    assert script.state() == f"Ongoing 101/{LAST_CLIENT_EPOCH}"
    script.broker.has_no_ids = False
    script.host.advance(20_000)
    assert script.state() == "CompleteAbort 102/0"


def with_epoch(script: CoordinatorScript, epoch: int) -> ProducerIdAndEpoch:
    """Set the epoch of the producer of `t` and return the producer."""
    machine = next(iter(script.service.active_shards())).machine
    found = machine.transactions["t"] = machine.transactions["t"]._replace(producer_epoch=epoch)
    return ProducerIdAndEpoch(found.producer_id, epoch)


@pytest.mark.parametrize("epoch", [LAST_CLIENT_EPOCH, MAX_PRODUCER_EPOCH])
@pytest.mark.parametrize("ending", ["timeout", "successor"])
def test_abort_at_the_last_epoch_gives_a_new_producer_id_in_version_2(epoch: int, ending: str) -> None:
    script = CoordinatorScript()
    script.init(timeout_ms=1_000)
    last = with_epoch(script, epoch)
    assert script.add(last, A, version=2) == "NONE"
    if ending == "timeout":
        script.host.advance(20_000)
    else:
        assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == "CompleteAbort 102/0"
    assert [(ending.producer_id, ending.producer_epoch) for _, ending in script.broker.markers] == [
        (101, MAX_PRODUCER_EPOCH)
    ]
    if epoch == LAST_CLIENT_EPOCH:
        assert script.end(last, commit=False, version=2) == ProducerIdAndEpoch(
            102, 0
        )  # the late abort returns the new id
    script.start()
    assert script.add(ProducerIdAndEpoch(102, 0), A, version=2) == "NONE"
    assert script.end(ProducerIdAndEpoch(102, 0), version=2) == ProducerIdAndEpoch(102, 1)


@pytest.mark.parametrize("ending", ["timeout", "successor"])
def test_version_1_does_not_exceed_the_maximum_epoch(ending: str) -> None:
    script = CoordinatorScript(version=1)
    script.init(timeout_ms=1_000)
    assert script.add(with_epoch(script, MAX_PRODUCER_EPOCH), A) == "NONE"
    if ending == "timeout":
        script.host.advance(20_000)
    else:
        assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == f"CompleteAbort 101/{MAX_PRODUCER_EPOCH}"
    assert script.init() == ProducerIdAndEpoch(102, 0)


def test_commit_at_the_maximum_epoch_is_refused_in_version_2() -> None:
    script = CoordinatorScript()
    script.init()
    last = with_epoch(script, MAX_PRODUCER_EPOCH)
    assert script.add(last, A, version=2) == "NONE"
    assert script.end(last, version=2) == "INVALID_REQUEST"
    assert script.state() == f"Ongoing 101/{MAX_PRODUCER_EPOCH}"
    assert script.end(last, commit=False, version=2) == ProducerIdAndEpoch(103, 0)


@pytest.mark.parametrize("expected", [5, LAST_CLIENT_EPOCH - 1])
def test_init_with_a_wrong_expected_epoch_is_refused(expected: int) -> None:
    script = CoordinatorScript()
    script.init()
    with_epoch(script, LAST_CLIENT_EPOCH)
    assert script.init(expected=ProducerIdAndEpoch(101, expected)) == "UNKNOWN_SERVER_ERROR"
    assert script.init(expected=ProducerIdAndEpoch(101, LAST_CLIENT_EPOCH)) == ProducerIdAndEpoch(102, 0)


def test_record_that_cannot_be_encoded_does_not_block_other_ids() -> None:
    script = CoordinatorScript()
    script.init("other")
    script.init()
    assert script.add(with_epoch(script, 40_000), A, version=2) == "UNKNOWN_SERVER_ERROR"
    # The state machine is ahead of its log, so it is loaded again.
    assert script.init("other") == "NOT_COORDINATOR"
    script.host.advance(1_000)
    assert script.state() == "Empty 102/0"
    assert script.init("other") == ProducerIdAndEpoch(101, 1)
    assert script.init() == ProducerIdAndEpoch(102, 1)


def test_recovering_producer_passes_its_id_and_epoch() -> None:
    script = CoordinatorScript()
    producer = script.init()
    after = script.init(expected=producer)
    assert after == ProducerIdAndEpoch(101, 1)
    assert script.init(expected=producer) == after  # a retry after a lost response
    assert script.init(expected=ProducerIdAndEpoch(101, 5)) == "PRODUCER_FENCED"
    assert script.init(expected=ProducerIdAndEpoch(55, 0)) == "PRODUCER_FENCED"
    assert script.init("new", expected=ProducerIdAndEpoch(0, 0)) == ProducerIdAndEpoch(102, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_transaction_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    script = CoordinatorScript()
    assert script.init(timeout_ms=timeout_ms) == "INVALID_TRANSACTION_TIMEOUT"


def test_empty_transactional_id_is_refused() -> None:
    script = CoordinatorScript()
    assert script.init("") == "INVALID_REQUEST"
    assert script.add(ProducerIdAndEpoch(1, 0), A, name="") == "INVALID_REQUEST"
    assert script.end(ProducerIdAndEpoch(1, 0), name="") == "INVALID_REQUEST"


def test_verify_partitions_returns_a_result_per_partition() -> None:
    script = CoordinatorScript()
    producer = script.init()
    script.add(producer, A)
    results: list[Any] = []
    for name in ("t", "nobody"):
        script.service.verify_partitions(name, producer, [A, B], results.append)
    assert results[0] == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert results[1].code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_records_have_version_0_before_transaction_version_1() -> None:
    script = CoordinatorScript(version=0)
    script.init()
    (data,) = script.broker.log
    (record,) = batch.records(data, 0, batch.read_header(data))
    assert record.value is not None
    assert record.value[:2] == b"\x00\x00"


def test_version_2_client_is_refused_before_transaction_version_1() -> None:
    for ends in (False, True):
        script = CoordinatorScript(version=0)
        producer = script.init(timeout_ms=1_000)
        if ends:
            script.add(producer, A)
            assert script.end(producer, version=2) == "UNSUPPORTED_VERSION"
        else:
            assert script.add(producer, A, version=2) == "UNSUPPORTED_VERSION"
        state = script.state()
        # As in Apache Kafka, the id waits for a record that is never written.
        for producer_ in (producer, ProducerIdAndEpoch(7, 7)):
            assert script.add(producer_, A) == "CONCURRENT_TRANSACTIONS"
            assert script.init(expected=producer_) == "CONCURRENT_TRANSACTIONS"
        assert script.end(producer) == "CONCURRENT_TRANSACTIONS"
        assert script.end(ProducerIdAndEpoch(101, 7)) == "PRODUCER_FENCED"
        script.host.advance(604_800_000 + 7_200_000)
        assert script.state() == state
        script.start()
        assert script.init() in (ProducerIdAndEpoch(101, 1), "CONCURRENT_TRANSACTIONS")


def test_version_2_transaction_completes_after_a_downgrade_to_0() -> None:
    script = CoordinatorScript()
    producer = script.init()
    assert script.add(producer, A, version=2) == "NONE"
    script.broker.version = 0
    script.start()
    assert script.end(producer) == producer
    assert script.state() == "CompleteCommit 101/0"
    assert script.init() == ProducerIdAndEpoch(101, 1)


def test_late_abort_in_version_2_returns_the_bumped_epoch() -> None:
    script = CoordinatorScript(version=1)
    producer = script.init(timeout_ms=1_000)
    assert script.add(producer, A) == "NONE"
    script.host.advance(20_000)
    assert script.state() == "CompleteAbort 101/1"
    assert script.end(producer, commit=False, version=2) == ProducerIdAndEpoch(101, 1)
    assert script.end(producer, version=2) == "INVALID_TXN_STATE"
    assert script.end(producer, commit=False) == "PRODUCER_FENCED"


def test_every_state_has_transitions() -> None:
    assert set(VALID_TRANSITIONS) == set(TransactionState)
    assert TransactionState.PREPARE_ABORT.title == "PrepareAbort"
