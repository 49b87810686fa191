"""Transactions whose records are stored late or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.coordinator.transactions.service import MAX_MARKER_RETRY_MS
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from tests.coordinator.transactions.transaction_harness import TransactionHarness

NAME = "a"
PARTITION: TopicPartition = ("t", 0)
TIMEOUT_MS = 60_000


class ProducerRequests:
    """Requests of one producer and their results."""

    def __init__(self, harness: TransactionHarness) -> None:
        self.harness = harness
        self.results: list[Any] = []

    def done(self, result: Any) -> None:
        self.results.append(ErrorCode(result.code) if isinstance(result, ApiError) else result)

    def init(self) -> None:
        self.harness.service.init_producer_id(NAME, TIMEOUT_MS, None, self.done)
        self.harness.host.run_pending()

    def add(self, producer: ProducerIdAndEpoch) -> None:
        self.harness.service.add_partitions(NAME, producer, [PARTITION], 0, self.done)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True) -> None:
        self.harness.service.end(NAME, producer, commit=commit, client_version=0, done=self.done)


@pytest.fixture
def harness() -> TransactionHarness:
    return TransactionHarness()


@pytest.fixture
def requests(harness: TransactionHarness) -> ProducerRequests:
    return ProducerRequests(harness)


@pytest.fixture
def producer(harness: TransactionHarness, requests: ProducerRequests) -> ProducerIdAndEpoch:
    """Return a producer in an open transaction."""
    requests.init()
    harness.settle()
    new_producer = requests.results[-1]
    assert isinstance(new_producer, ProducerIdAndEpoch)
    requests.add(new_producer)
    harness.settle()
    assert requests.results[-1] == ErrorCode.NONE
    return new_producer


def test_markers_are_written_after_a_slow_commit_record(
    harness: TransactionHarness, requests: ProducerRequests, producer: ProducerIdAndEpoch
) -> None:
    requests.end(producer)
    harness.advance(10_000)
    assert requests.results[-1] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.advance(20_000)
    assert not harness.markers
    harness.commit_appends()
    assert [(partition, ending.commit) for partition, ending, _, _ in harness.markers] == [(PARTITION, True)]
    harness.settle()
    requests.end(producer)
    assert requests.results[-1] == producer


@pytest.mark.parametrize(
    ("append_error", "expected"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_transition_that_cannot_be_stored_is_undone(
    harness: TransactionHarness,
    requests: ProducerRequests,
    producer: ProducerIdAndEpoch,
    append_error: ErrorCode,
    expected: ErrorCode,
) -> None:
    before = harness.transaction(NAME)
    harness.refuse = append_error
    requests.end(producer)
    assert requests.results[-1] == expected
    assert harness.transaction(NAME) == before
    harness.refuse = None
    requests.end(producer, commit=False)
    harness.settle()
    assert requests.results[-1] == producer


def test_transactional_id_that_cannot_be_stored_is_unknown(
    harness: TransactionHarness, requests: ProducerRequests
) -> None:
    harness.refuse = ErrorCode.MESSAGE_TOO_LARGE
    requests.init()
    assert requests.results == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert harness.transaction(NAME) is None


def test_completion_is_retried_until_the_log_accepts_it(
    harness: TransactionHarness, requests: ProducerRequests, producer: ProducerIdAndEpoch
) -> None:
    requests.end(producer)
    harness.commit_appends()
    harness.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.write_marker()
    harness.advance(1_000)
    requests.init()
    assert requests.results[-1] == ErrorCode.CONCURRENT_TRANSACTIONS
    harness.refuse = None
    harness.advance(1_000)
    requests.init()
    harness.settle()
    assert isinstance(requests.results[-1], ProducerIdAndEpoch)


def test_no_marker_is_written_before_the_loaded_log_is_committed(
    harness: TransactionHarness, requests: ProducerRequests, producer: ProducerIdAndEpoch
) -> None:
    requests.end(producer)
    harness.is_behind = True
    harness.crash(kept=1)
    harness.advance(10_000)
    assert not harness.markers
    harness.commit_appends()
    assert [partition for partition, *_ in harness.markers] == [PARTITION]


def test_verification_waits_until_the_added_partition_is_committed(
    harness: TransactionHarness, requests: ProducerRequests, producer: ProducerIdAndEpoch
) -> None:
    other: TopicPartition = ("u", 0)
    harness.service.add_partitions(NAME, producer, [other], 0, requests.done)
    count = len(requests.results)
    harness.service.verify_partitions(NAME, producer, [other], requests.done)
    assert len(requests.results) == count
    harness.commit_appends()
    assert requests.results[-1] == {other: ErrorCode.NONE}


def fail_markers(harness: TransactionHarness) -> None:
    """Let all pending markers fail, as if their partitions had no leader."""
    while harness.markers:
        partition, _, _, done = harness.markers.pop()
        done({partition: ErrorCode.NOT_LEADER_OR_FOLLOWER})


def test_new_leader_ends_the_backoff_of_markers(
    harness: TransactionHarness, requests: ProducerRequests, producer: ProducerIdAndEpoch
) -> None:
    requests.end(producer)
    harness.commit_appends()
    for _ in range(8):
        fail_markers(harness)
        harness.advance(MAX_MARKER_RETRY_MS)
    fail_markers(harness)
    timers = harness.host.timers
    harness.service.topics_changed(["another"])
    assert not harness.markers
    harness.service.topics_changed([PARTITION[0]])
    assert [partition for partition, *_ in harness.markers] == [PARTITION]
    assert harness.host.timers == timers - 1
    harness.settle()
    requests.end(producer)
    assert requests.results[-1] == producer
