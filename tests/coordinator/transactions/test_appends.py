"""What becomes of a transaction whose record is slow to be stored, or is not stored."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from tests.coordinator.transactions.world import World

NAME = "a"
PARTITION: TopicPartition = ("t", 0)
TIMEOUT_MS = 60_000


class Asking:
    """One producer's requests; the newest answer is the last one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[Any] = []

    def done(self, answer: Any) -> None:
        self.answers.append(ErrorCode(answer.code) if isinstance(answer, ApiError) else answer)

    def init(self) -> None:
        self.world.service.init_producer_id(NAME, TIMEOUT_MS, None, self.done)
        self.world.host.run_pending()

    def add(self, producer: ProducerIdAndEpoch) -> None:
        self.world.service.add_partitions(NAME, producer, [PARTITION], 0, self.done)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True) -> None:
        self.world.service.end(NAME, producer, commit=commit, client_version=0, done=self.done)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def asking(world: World) -> Asking:
    return Asking(world)


@pytest.fixture
def producer(world: World, asking: Asking) -> ProducerIdAndEpoch:
    """In a transaction."""
    asking.init()
    world.settle()
    given = asking.answers[-1]
    assert isinstance(given, ProducerIdAndEpoch)
    asking.add(given)
    world.settle()
    assert asking.answers[-1] == ErrorCode.NONE
    return given


def test_markers_follow_a_decision_that_was_slow_to_be_stored(
    world: World, asking: Asking, producer: ProducerIdAndEpoch
) -> None:
    asking.end(producer)
    world.advance(10_000)
    assert asking.answers[-1] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.advance(20_000)
    assert not world.markers
    world.commit_appends()
    assert [(partition, ending.commit) for partition, ending, _, _ in world.markers] == [(PARTITION, True)]
    world.settle()
    asking.end(producer)
    assert asking.answers[-1] == producer


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_is_not_stored_has_not_been(
    world: World, asking: Asking, producer: ProducerIdAndEpoch, refused: ErrorCode, told: ErrorCode
) -> None:
    before = world.transaction(NAME)
    world.refuse = refused
    asking.end(producer)
    assert asking.answers[-1] == told
    assert world.transaction(NAME) == before
    world.refuse = None
    asking.end(producer, commit=False)
    world.settle()
    assert asking.answers[-1] == producer


def test_an_id_that_is_not_stored_is_not_known(world: World, asking: Asking) -> None:
    world.refuse = ErrorCode.MESSAGE_TOO_LARGE
    asking.init()
    assert asking.answers == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert world.transaction(NAME) is None


def test_the_end_of_a_transaction_is_stored_as_soon_as_the_log_takes_it(
    world: World, asking: Asking, producer: ProducerIdAndEpoch
) -> None:
    asking.end(producer)
    world.commit_appends()
    world.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    world.write_marker()
    world.advance(1_000)
    asking.init()
    assert asking.answers[-1] == ErrorCode.CONCURRENT_TRANSACTIONS
    world.refuse = None
    world.advance(1_000)
    asking.init()
    world.settle()
    assert isinstance(asking.answers[-1], ProducerIdAndEpoch)


def test_no_marker_is_written_before_what_was_loaded_is_committed(
    world: World, asking: Asking, producer: ProducerIdAndEpoch
) -> None:
    asking.end(producer)
    world.is_behind = True
    world.crash(kept=1)
    world.advance(10_000)
    assert not world.markers
    world.commit_appends()
    assert [partition for partition, *_ in world.markers] == [PARTITION]


def test_a_partition_is_part_of_a_transaction_once_that_is_committed(
    world: World, asking: Asking, producer: ProducerIdAndEpoch
) -> None:
    other: TopicPartition = ("u", 0)
    world.service.add_partitions(NAME, producer, [other], 0, asking.done)
    count = len(asking.answers)
    world.service.verify_partitions(NAME, producer, [other], asking.done)
    assert len(asking.answers) == count
    world.commit_appends()
    assert asking.answers[-1] == {other: ErrorCode.NONE}
