"""Reports of the directories of replicas to the controller, which are repeated until they are accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.controller.commands import AssignReplicasToDirs
from kwire.broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from kwire.broker.node.assignments_manager import (
    MAX_ASSIGNMENTS_PER_REQUEST,
    MAX_BACKOFF_MS,
    MIN_BACKOFF_MS,
    NodeAssignmentsManager,
)
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.node.test_cluster import CONTROLLER, VirtualCluster, broker

TOPIC, GONE = Uuid(b"t" * 16), Uuid(b"g" * 16)
FIRST, SECOND = Uuid(b"1" * 16), Uuid(b"2" * 16)
NODE_ID = 2


class AssignmentsHarness:
    """The assignments of a broker with replicas of all partitions of a topic; the test is the controller."""

    def __init__(self, partitions: int = 2) -> None:
        self.host = VirtualHost()
        self.image = MetadataImage()
        replica = PartitionImage(replicas=(NODE_ID,), isr=(NODE_ID,), leader=NODE_ID, leader_epoch=0)
        self.image.topics_by_id = {TOPIC: TopicImage("t", TOPIC, (replica,) * partitions)}
        self.broker_epoch = 7
        self.requests: list[tuple[AssignReplicasToDirs, Callable[[Any], None]]] = []
        self.assigned: list[int] = []
        self._count = 0
        fakes: Any = self
        self.manager = NodeAssignmentsManager(fakes, fakes, self.host, NODE_ID, lambda: self.image)

    def submit(self, command: AssignReplicasToDirs, on_done: Callable[[Any], None]) -> None:
        self.requests.append((command, on_done))

    def assign(self, *replicas: tuple[Uuid, int], directory: Uuid = FIRST) -> None:
        """Assign replicas. Once they are, `assigned` gets the number of this call."""
        self._count += 1
        number = self._count
        self.manager.assign(dict.fromkeys(replicas, directory), lambda: self.assigned.append(number))
        self.host.run_pending()

    def sent(self) -> dict[tuple[Uuid, int], Uuid]:
        """Return the directories in the only request that waits for a response."""
        ((command, _),) = self.requests
        assert command.broker_epoch == self.broker_epoch
        return dict(command.directories)

    def respond(self, reply: dict[tuple[Uuid, int], ErrorCode] | ApiError) -> None:
        ((_, on_done),) = self.requests
        self.requests.clear()
        on_done(reply)
        self.host.run_pending()


@pytest.fixture
def harness() -> AssignmentsHarness:
    return AssignmentsHarness()


def test_assignments_of_one_turn_share_a_request(harness: AssignmentsHarness) -> None:
    harness.manager.assign({(TOPIC, 0): FIRST}, lambda: harness.assigned.append(0))
    harness.assign((TOPIC, 1), directory=SECOND)
    assert harness.sent() == {(TOPIC, 0): FIRST, (TOPIC, 1): SECOND}
    harness.respond({})
    assert harness.assigned == [0, 1]
    assert not harness.requests


def test_request_is_repeated_until_the_controller_accepts_it(harness: AssignmentsHarness) -> None:
    harness.assign((TOPIC, 0))
    backoff_ms = MIN_BACKOFF_MS
    for _ in range(10):
        harness.broker_epoch += 1  # the broker may register again meanwhile
        harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
        harness.host.advance(backoff_ms - 1)
        assert not harness.requests
        harness.host.advance(1)
        assert harness.sent() == {(TOPIC, 0): FIRST}
        backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)
    assert backoff_ms == MAX_BACKOFF_MS
    harness.respond({})
    assert harness.assigned == [1]


def test_new_controller_ends_the_backoff(harness: AssignmentsHarness) -> None:
    harness.manager.retry_now()
    harness.assign((TOPIC, 0))
    for _ in range(8):
        harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
        harness.host.advance(MAX_BACKOFF_MS)
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.manager.retry_now()
    assert harness.sent() == {(TOPIC, 0): FIRST}
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.host.advance(MIN_BACKOFF_MS)
    harness.respond({})
    assert (harness.assigned, harness.host.timers) == ([1], 0)


@pytest.mark.parametrize(
    "reply", [ApiError(ErrorCode.UNKNOWN_SERVER_ERROR), {(TOPIC, 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}]
)
def test_request_that_fails_after_the_news_of_a_new_controller_is_repeated_at_once(
    harness: AssignmentsHarness, reply: Any
) -> None:
    harness.assign((TOPIC, 0))
    harness.manager.retry_now()
    harness.respond(reply)
    assert harness.sent() == {(TOPIC, 0): FIRST}
    harness.respond(reply)
    assert not harness.requests, "the new controller refuses the request, too"
    harness.host.advance(MIN_BACKOFF_MS)
    assert harness.sent() == {(TOPIC, 0): FIRST}


def test_refused_replicas_are_repeated(harness: AssignmentsHarness) -> None:
    harness.assign((TOPIC, 0), (TOPIC, 1))
    harness.respond({(TOPIC, 1): ErrorCode.NOT_LEADER_OR_FOLLOWER})
    assert harness.assigned == [1]
    harness.host.advance(MIN_BACKOFF_MS)
    assert harness.sent() == {(TOPIC, 1): FIRST}
    harness.respond({})
    assert harness.assigned == [1, 1]


def test_replicas_that_do_not_exist_are_dropped(harness: AssignmentsHarness) -> None:
    harness.assign((TOPIC, 0), (TOPIC, 2), (GONE, 0))
    assert harness.sent() == {(TOPIC, 0): FIRST}
    harness.respond({(TOPIC, 0): ErrorCode.UNKNOWN_TOPIC_ID})
    harness.image.topics_by_id = {}
    harness.host.advance(MIN_BACKOFF_MS)
    assert not harness.requests
    assert harness.assigned == []


def test_newest_directory_of_a_replica_wins(harness: AssignmentsHarness) -> None:
    """For example, a move between directories is canceled while its report is in flight."""
    harness.assign((TOPIC, 0), directory=FIRST)
    harness.assign((TOPIC, 0), directory=SECOND)
    assert harness.sent() == {(TOPIC, 0): FIRST}
    harness.respond({})
    assert (harness.sent(), harness.assigned) == ({(TOPIC, 0): SECOND}, [])
    harness.assign((TOPIC, 0), directory=FIRST)
    harness.respond({})
    assert (harness.sent(), harness.assigned) == ({(TOPIC, 0): FIRST}, [])
    harness.respond({})
    assert harness.assigned == [3]
    assert not harness.requests


def test_directory_that_is_reported_twice_is_sent_once(harness: AssignmentsHarness) -> None:
    harness.assign((TOPIC, 0))
    harness.assign((TOPIC, 0), (TOPIC, 1))
    assert harness.sent() == {(TOPIC, 0): FIRST}
    harness.respond({})
    assert (harness.sent(), harness.assigned) == ({(TOPIC, 1): FIRST}, [1, 2])


def test_requests_are_limited_in_size() -> None:
    harness = AssignmentsHarness(partitions=MAX_ASSIGNMENTS_PER_REQUEST + 1)
    harness.assign(*((TOPIC, index) for index in range(MAX_ASSIGNMENTS_PER_REQUEST + 1)))
    assert len(harness.sent()) == MAX_ASSIGNMENTS_PER_REQUEST
    harness.respond({})
    assert len(harness.sent()) == 1


def test_stopped_broker_sends_no_more_assignments(harness: AssignmentsHarness) -> None:
    harness.assign((TOPIC, 0))
    harness.manager.stop()
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.assign((TOPIC, 1))
    harness.host.advance(MAX_BACKOFF_MS)
    assert not harness.requests
    assert not harness.assigned


def test_stopped_broker_does_not_repeat_a_request_for_a_new_controller(harness: AssignmentsHarness) -> None:
    harness.assign((TOPIC, 0))
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.manager.stop()
    harness.assign((TOPIC, 0))
    harness.manager.retry_now()
    harness.host.advance(MAX_BACKOFF_MS)
    assert (harness.requests, harness.host.timers) == ([], 0)


def test_directories_of_new_replicas_are_reported_after_an_outage_of_the_controller() -> None:
    """Otherwise, the controller would not know which replicas fail with a directory."""
    cluster = VirtualCluster(CONTROLLER, broker(2, "two") | {"log.dirs": "/data,/more"})
    cluster.events.advance(1_000)
    node = cluster.nodes[2].node
    submit = node.controller.submit

    def submit_to_dead_controller(command: Any, on_done: Any) -> None:
        if isinstance(command, AssignReplicasToDirs) and not cluster.nodes[1].host.is_dead:
            cluster.nodes[1].die()
        submit(command, on_done)

    node.controller.submit = submit_to_dead_controller  # type: ignore[method-assign]
    assert cluster.create("t", by="two", replicas=1).error_code == ErrorCode.NONE
    assert cluster.nodes[1].host.is_dead
    node.controller.submit = submit  # type: ignore[method-assign]
    cluster.nodes[1].start()
    cluster.events.advance(20_000)
    directories = []
    for index in (0, 1):
        log = node.log_manager.get("t", index)
        assert log is not None
        directories.append((node.log_manager.directory_of(log).directory_id,))
    assert [partition.directories for partition in node.image.topics["t"].partitions] == directories
