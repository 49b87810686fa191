"""The transaction coordinator on virtual time: a script of requests, and the states that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

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
    """The keys that the coordinator reads, with Kafka's defaults."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


@dataclass
class BrokerPorts:
    """Ports on a log in memory. Markers are written at once, unless they are held back."""

    host: VirtualHost
    version: int = 2
    log: list[bytearray] = field(default_factory=list)
    markers: list[tuple[TopicPartition, TransactionMarker]] = field(default_factory=list)
    held: list[Callable[[ApiError | None], None]] | None = None
    next_id: int = 100
    has_no_ids: bool = False

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> None:
        self.log.append(data)
        self.host.call_soon(lambda: on_committed(None))

    def max_batch_bytes(self, index: int) -> int:
        raise AssertionError("transactions are not gathered")

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        yield from [memoryview(bytes(data)) for data in self.log]

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        on_committed(None)

    def partition_count(self) -> int | None:
        return 1

    def leader(self, index: int) -> int | None:
        return 1

    def create_topic(self) -> None:
        raise AssertionError("the topic is there")

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
        # As if another broker led each of them.
        for partition in partitions:
            self.markers.append((partition, ending))
            if self.held is None:
                done({partition: ErrorCode.NONE})
            else:
                self.held.append(partial(self._told, partition, done))

    @staticmethod
    def _told(
        partition: TopicPartition,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
        error: ApiError | None,
    ) -> None:
        done({partition: ErrorCode.NONE if error is None else ErrorCode(error.code)})


class Script:
    """Requests to a coordinator, answered at once as far as no time has to pass."""

    def __init__(self, version: int = 2) -> None:
        self.host = VirtualHost(seed=1, now_ms=1_000_000)
        self.broker = BrokerPorts(self.host, version)
        self.start()

    def start(self) -> None:
        """A coordinator that has nothing but the log."""
        self.service = TransactionCoordinatorService(Config(), self.host, self.broker)
        self.service.elected(0, 5)
        self.host.run_pending()

    def _answer(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        ask(answers.append)
        self.host.run_pending()
        assert len(answers) == 1, answers
        answer = answers[0]
        return (
            answer.code.name
            if isinstance(answer, ApiError)
            else answer.name
            if isinstance(answer, ErrorCode)
            else answer
        )

    def init(
        self, name: str = "t", expected: ProducerIdAndEpoch | None = None, timeout_ms: int = 60_000
    ) -> Any:
        return self._answer(lambda done: self.service.init_producer_id(name, timeout_ms, expected, done))

    def add(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "t", version: int = 0
    ) -> Any:
        return self._answer(
            lambda done: self.service.add_partitions(name, producer, partitions, version, done)
        )

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, name: str = "t", version: int = 0
    ) -> Any:
        return self._answer(
            lambda done: self.service.end(name, producer, commit=commit, client_version=version, done=done)
        )

    def state(self, name: str = "t") -> str:
        found = self.service.describe(name)
        return f"{found.state.title} {found.producer_id}/{found.producer_epoch}"


def test_a_transaction_of_version_0() -> None:
    script = Script()
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
    assert script.end(producer) == producer  # again: it is done
    assert script.end(producer, commit=False) == "INVALID_TXN_STATE"


def test_a_transaction_of_version_2_raises_the_epoch_each_time() -> None:
    script = Script()
    producer = script.init()
    assert script.add(producer, A, version=2) == "NONE"
    after = script.end(producer, version=2)
    assert after == ProducerIdAndEpoch(101, 1)
    assert script.state() == "CompleteCommit 101/1"
    assert [ending.producer_epoch for _, ending in script.broker.markers] == [1]
    assert script.end(producer, version=2) == after  # the answer was lost: told again
    assert script.add(producer, A, version=2) == "PRODUCER_FENCED"
    assert script.add(after, A, version=2) == "NONE"
    assert script.end(after, commit=False, version=2) == ProducerIdAndEpoch(101, 2)
    assert script.state() == "CompleteAbort 101/2"


def test_an_abort_of_nothing_raises_the_epoch_in_version_2() -> None:
    script = Script()
    producer = script.init()
    assert script.end(producer, commit=False, version=2) == ProducerIdAndEpoch(101, 1)
    assert script.state() == "CompleteAbort 101/1"
    assert script.broker.markers == []
    assert script.end(ProducerIdAndEpoch(101, 1), commit=True, version=2) == "INVALID_TXN_STATE"


def test_nothing_to_end_in_version_0() -> None:
    script = Script()
    producer = script.init()
    for commit in (True, False):
        assert script.end(producer, commit=commit) == "INVALID_TXN_STATE"


def test_a_second_producer_fences_the_first() -> None:
    script = Script()
    first = script.init()
    second = script.init()
    assert second == ProducerIdAndEpoch(101, 1)
    assert script.add(first, A) == "PRODUCER_FENCED"
    assert script.end(first) == "PRODUCER_FENCED"
    assert script.add(ProducerIdAndEpoch(7, 0), A) == "INVALID_PRODUCER_ID_MAPPING"
    assert script.add(second, A, name="other") == "INVALID_PRODUCER_ID_MAPPING"


def test_a_new_producer_aborts_what_the_old_one_left_open() -> None:
    script = Script()
    first = script.init()
    script.add(first, A)
    assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == "CompleteAbort 101/1"
    assert [(ending.commit, ending.producer_epoch) for _, ending in script.broker.markers] == [(False, 1)]
    second = script.init()
    assert second == ProducerIdAndEpoch(101, 2)
    script.add(second, A, version=2)
    assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == "CompleteAbort 101/3"  # by version 2, whose end raises the epoch anyway


def test_while_markers_are_written_everybody_waits() -> None:
    script = Script()
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


def test_a_marker_that_cannot_be_written_is_tried_again() -> None:
    script = Script()
    script.broker.held = []
    producer = script.init()
    script.add(producer, A)
    script.end(producer)
    script.broker.held.pop()(ApiError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert len(script.broker.markers) == 1
    script.host.advance(100)
    assert len(script.broker.markers) == 2
    script.broker.held.pop()(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))  # it was deleted: nothing to end
    script.host.run_pending()
    assert script.state() == "CompleteCommit 101/0"


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_log_that_has_heard_of_a_later_epoch_leaves_the_transaction_ending(code: ErrorCode) -> None:
    script = Script()
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
    # A coordinator that is loaded again has a later epoch, and writes them all once more.
    script.broker.held = None
    script.start()
    assert {partition for partition, _ in script.broker.markers[2:]} == {A, B}
    assert script.state() == "CompleteCommit 101/1"


FAILS = ErrorCode.KAFKA_STORAGE_ERROR
REFUSES = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ((FAILS, FAILS), (REFUSES, None), {A}),
        ((FAILS, FAILS), (None, REFUSES), {B}),
        ((FAILS, FAILS), (REFUSES, FAILS), {A, B}),
        ((FAILS, FAILS), (FAILS, REFUSES), {A, B}),
        ((REFUSES, FAILS), (), {A, B}),
        ((FAILS, REFUSES), (), {A, B}),
        ((FAILS, None), (REFUSES,), {A}),
    ],
)
def test_a_log_that_refuses_its_marker_ends_the_rounds(
    first: tuple[ErrorCode | None, ...], second: tuple[ErrorCode | None, ...], left: set[TopicPartition]
) -> None:
    script = Script()
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
    assert script.service.describe("t").partitions == left
    script.broker.held = None
    script.start()
    assert script.state() == "CompleteCommit 101/0"


def test_a_restart_goes_on_with_what_was_decided() -> None:
    script = Script()
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


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    script = Script()
    producer = script.init(timeout_ms=30_000)
    script.add(producer, A)
    script.host.advance(30_000)
    assert script.state() == "Ongoing 101/0"
    script.host.advance(10_000)
    assert script.state() == "CompleteAbort 101/1"
    assert script.end(producer) == "PRODUCER_FENCED"


def test_an_id_that_nobody_uses_expires() -> None:
    script = Script()
    script.init()
    script.host.advance(604_800_000 - 3_600_000)
    assert script.state() == "Empty 101/0"
    script.host.advance(2 * 3_600_000)
    with pytest.raises(ApiError) as missing:
        script.state()
    assert missing.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    script.start()
    assert list(script.service.list_transactions()) == []


def test_when_the_epochs_are_used_up_the_producer_goes_on_under_a_new_id() -> None:
    script = Script()
    producer = script.init()
    machine = next(iter(script.service._runtime.active_shards())).machine
    machine.transactions["t"] = machine.transactions["t"]._replace(producer_epoch=LAST_CLIENT_EPOCH)
    last = ProducerIdAndEpoch(producer.producer_id, LAST_CLIENT_EPOCH)
    assert script.add(last, A, version=2) == "NONE"
    assert script.end(last, version=2) == ProducerIdAndEpoch(102, 0)
    assert script.state() == "CompleteCommit 102/0"
    assert [(ending.producer_id, ending.producer_epoch) for _, ending in script.broker.markers] == [
        (101, LAST_CLIENT_EPOCH + 1)
    ]
    assert script.end(last, version=2) == ProducerIdAndEpoch(102, 0)  # told again
    machine.transactions["t"] = machine.transactions["t"]._replace(producer_epoch=LAST_CLIENT_EPOCH)
    assert script.init() == ProducerIdAndEpoch(103, 0)


def test_who_needs_a_producer_id_while_there_is_none_is_to_ask_again() -> None:
    script = Script()
    script.broker.has_no_ids = True
    assert script.init(timeout_ms=0) == "INVALID_TRANSACTION_TIMEOUT"
    assert script.init() == "COORDINATOR_LOAD_IN_PROGRESS"
    assert list(script.service.list_transactions()) == []
    script.broker.has_no_ids = False
    script.init(timeout_ms=1_000)
    script.broker.has_no_ids = True
    assert script.init(timeout_ms=1_000) == ProducerIdAndEpoch(101, 1)  # it has one
    last = with_epoch(script, LAST_CLIENT_EPOCH)
    assert script.init() == "COORDINATOR_LOAD_IN_PROGRESS"
    assert script.add(last, A, version=2) == "NONE"
    assert script.end(last._replace(epoch=3), version=2) == "PRODUCER_FENCED"
    assert script.end(last, version=2) == "COORDINATOR_LOAD_IN_PROGRESS"
    assert script.init() == "COORDINATOR_LOAD_IN_PROGRESS"
    script.host.advance(20_000)  # timed out, and not aborted: nobody could go on
    assert script.state() == f"Ongoing 101/{LAST_CLIENT_EPOCH}"
    script.broker.has_no_ids = False
    script.host.advance(20_000)
    assert script.state() == "CompleteAbort 102/0"


def with_epoch(script: Script, epoch: int) -> ProducerIdAndEpoch:
    """The producer of `t`, after so many epochs."""
    machine = next(iter(script.service._runtime.active_shards())).machine
    found = machine.transactions["t"] = machine.transactions["t"]._replace(producer_epoch=epoch)
    return ProducerIdAndEpoch(found.producer_id, epoch)


@pytest.mark.parametrize("epoch", [LAST_CLIENT_EPOCH, MAX_PRODUCER_EPOCH])
@pytest.mark.parametrize("how", ["timeout", "successor"])
def test_in_version_2_an_abort_of_the_last_epoch_goes_on_under_a_new_id(epoch: int, how: str) -> None:
    script = Script()
    script.init(timeout_ms=1_000)
    last = with_epoch(script, epoch)
    assert script.add(last, A, version=2) == "NONE"
    if how == "timeout":
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
        )  # what it comes to know
    script.start()
    assert script.add(ProducerIdAndEpoch(102, 0), A, version=2) == "NONE"
    assert script.end(ProducerIdAndEpoch(102, 0), version=2) == ProducerIdAndEpoch(102, 1)


@pytest.mark.parametrize("how", ["timeout", "successor"])
def test_in_version_1_nothing_is_raised_above_the_greatest_epoch(how: str) -> None:
    script = Script(version=1)
    script.init(timeout_ms=1_000)
    assert script.add(with_epoch(script, MAX_PRODUCER_EPOCH), A) == "NONE"
    if how == "timeout":
        script.host.advance(20_000)
    else:
        assert script.init() == "CONCURRENT_TRANSACTIONS"
    assert script.state() == f"CompleteAbort 101/{MAX_PRODUCER_EPOCH}"
    assert script.init() == ProducerIdAndEpoch(102, 0)


def test_the_greatest_epoch_cannot_be_committed_in_version_2() -> None:
    script = Script()
    script.init()
    last = with_epoch(script, MAX_PRODUCER_EPOCH)
    assert script.add(last, A, version=2) == "NONE"
    assert script.end(last, version=2) == "INVALID_REQUEST"
    assert script.state() == f"Ongoing 101/{MAX_PRODUCER_EPOCH}"
    assert script.end(last, commit=False, version=2) == ProducerIdAndEpoch(103, 0)


@pytest.mark.parametrize("expected", [5, LAST_CLIENT_EPOCH - 1])
def test_who_names_another_epoch_than_the_last_one_is_not_given_the_next(expected: int) -> None:
    script = Script()
    script.init()
    with_epoch(script, LAST_CLIENT_EPOCH)
    assert script.init(expected=ProducerIdAndEpoch(101, expected)) == "UNKNOWN_SERVER_ERROR"
    assert script.init(expected=ProducerIdAndEpoch(101, LAST_CLIENT_EPOCH)) == ProducerIdAndEpoch(102, 0)


def test_what_cannot_be_encoded_holds_nobody_up() -> None:
    script = Script()
    script.init("other")
    script.init()
    assert script.add(with_epoch(script, 40_000), A, version=2) == "UNKNOWN_SERVER_ERROR"
    # The machine knew more than its log, and is loaded anew.
    assert script.init("other") == "NOT_COORDINATOR"
    script.host.advance(1_000)
    assert script.state() == "Empty 102/0"
    assert script.init("other") == ProducerIdAndEpoch(101, 1)
    assert script.init() == ProducerIdAndEpoch(102, 1)


def test_a_producer_that_recovers_names_who_it_was() -> None:
    script = Script()
    producer = script.init()
    after = script.init(expected=producer)
    assert after == ProducerIdAndEpoch(101, 1)
    assert script.init(expected=producer) == after  # its answer was lost
    assert script.init(expected=ProducerIdAndEpoch(101, 5)) == "PRODUCER_FENCED"
    assert script.init(expected=ProducerIdAndEpoch(55, 0)) == "PRODUCER_FENCED"
    assert script.init("new", expected=ProducerIdAndEpoch(0, 0)) == ProducerIdAndEpoch(102, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_has_bounds(timeout_ms: int) -> None:
    script = Script()
    assert script.init(timeout_ms=timeout_ms) == "INVALID_TRANSACTION_TIMEOUT"


def test_an_empty_id_is_no_id() -> None:
    script = Script()
    assert script.init("") == "INVALID_REQUEST"
    assert script.add(ProducerIdAndEpoch(1, 0), A, name="") == "INVALID_REQUEST"
    assert script.end(ProducerIdAndEpoch(1, 0), name="") == "INVALID_REQUEST"


def test_partitions_are_verified() -> None:
    script = Script()
    producer = script.init()
    script.add(producer, A)
    told: list[Any] = []
    for name in ("t", "nobody"):
        script.service.verify_partitions(name, producer, [A, B], told.append)
    assert told[0] == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert told[1].code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_records_are_of_version_0_before_transaction_version_1() -> None:
    script = Script(version=0)
    script.init()
    (data,) = script.broker.log
    (record,) = batch.records(data, 0, batch.read_header(data))
    assert record.value is not None
    assert record.value[:2] == b"\x00\x00"


def test_no_client_of_version_2_is_served_before_transaction_version_1() -> None:
    for ends in (False, True):
        script = Script(version=0)
        producer = script.init(timeout_ms=1_000)
        if ends:
            script.add(producer, A)
            assert script.end(producer, version=2) == "UNSUPPORTED_VERSION"
        else:
            assert script.add(producer, A, version=2) == "UNSUPPORTED_VERSION"
        state = script.state()
        # As in Apache Kafka the id waits for a record that is never written.
        for producer_ in (producer, ProducerIdAndEpoch(7, 7)):
            assert script.add(producer_, A) == "CONCURRENT_TRANSACTIONS"
            assert script.init(expected=producer_) == "CONCURRENT_TRANSACTIONS"
        assert script.end(producer) == "CONCURRENT_TRANSACTIONS"
        assert script.end(ProducerIdAndEpoch(101, 7)) == "PRODUCER_FENCED"
        script.host.advance(604_800_000 + 7_200_000)
        assert script.state() == state
        script.start()
        assert script.init() in (ProducerIdAndEpoch(101, 1), "CONCURRENT_TRANSACTIONS")


def test_a_transaction_of_version_2_outlives_a_downgrade_to_0() -> None:
    script = Script()
    producer = script.init()
    assert script.add(producer, A, version=2) == "NONE"
    script.broker.version = 0
    script.start()
    assert script.end(producer) == producer
    assert script.state() == "CompleteCommit 101/0"
    assert script.init() == ProducerIdAndEpoch(101, 1)


def test_one_behind_is_told_of_an_abort_whichever_version_ended() -> None:
    script = Script(version=1)
    producer = script.init(timeout_ms=1_000)
    assert script.add(producer, A) == "NONE"
    script.host.advance(20_000)
    assert script.state() == "CompleteAbort 101/1"
    assert script.end(producer, commit=False, version=2) == ProducerIdAndEpoch(101, 1)
    assert script.end(producer, version=2) == "INVALID_TXN_STATE"
    assert script.end(producer, commit=False) == "PRODUCER_FENCED"


def test_every_state_has_its_moves() -> None:
    assert set(VALID_TRANSITIONS) == set(TransactionState)
    assert TransactionState.PREPARE_ABORT.title == "PrepareAbort"
