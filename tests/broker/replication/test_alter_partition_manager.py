"""Requests of the AlterPartition manager to the controller."""

from __future__ import annotations

from functools import partial

import pytest

from kwire.broker.replication.alter_partition_manager import IsrChange, IsrChangeResult
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.replication.fake_cluster import FakeCluster

TOPIC = Uuid(bytes(15) + b"\1")


class ManagerHarness:
    def __init__(self) -> None:
        self.cluster = FakeCluster(VirtualHost(seed=1))
        self.results: list[tuple[int, ErrorCode]] = []

    def submit(self, index: int) -> None:
        change = IsrChange(TOPIC, index, 0, 0, ((1, 10), (index, -1)))
        self.cluster.leading.alter_partition.submit(change, partial(self._record, index))

    def _record(self, index: int, answer: IsrChangeResult) -> None:
        self.results.append((index, answer.error))


def test_one_request_in_flight_with_all_changes_submitted_before_it() -> None:
    harness = ManagerHarness()
    harness.submit(5)
    harness.submit(6)
    assert harness.cluster.requested_isrs() == [(1, 5), (1, 6)]
    harness.submit(7)
    harness.submit(5)
    assert len(harness.cluster.requests) == 1
    assert harness.cluster.requested_isrs() == [(1, 5), (1, 6)]
    assert harness.results == [(5, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    harness.cluster.respond()
    assert harness.results[1:] == [(5, ErrorCode.NONE), (6, ErrorCode.NONE)]
    assert harness.cluster.requested_isrs() == [(1, 7)]
    harness.cluster.respond(ErrorCode.FENCED_LEADER_EPOCH)
    assert harness.results[3:] == [(7, ErrorCode.FENCED_LEADER_EPOCH)]
    assert harness.cluster.leading.alter_partition.failed_updates == 1
    harness.submit(7)
    assert harness.cluster.requested_isrs() == [(1, 7)]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_request_level_error_is_retried(code: ErrorCode) -> None:
    harness = ManagerHarness()
    harness.submit(5)
    harness.cluster.reject(code)
    harness.submit(6)
    assert harness.cluster.requested_isrs() == []
    harness.cluster.host.advance(50)
    assert harness.cluster.requested_isrs() == [(1, 5), (1, 6)]
    assert harness.results == []
    harness.cluster.respond()
    harness.cluster.host.advance(1_000)
    assert (harness.cluster.requested_isrs(), len(harness.results)) == ([], 2)


def test_partition_missing_in_the_response_is_retried() -> None:
    harness = ManagerHarness()
    harness.submit(5)
    harness.submit(6)
    harness.cluster.requested_isrs()
    _, done = harness.cluster.requests.pop()
    done({(TOPIC, 5): IsrChangeResult(ErrorCode.NONE)})
    harness.cluster.host.advance(50)
    assert (harness.results, harness.cluster.requested_isrs()) == ([(5, ErrorCode.NONE)], [(1, 6)])


def test_log_lists_a_few_of_many_isr_changes(caplog: pytest.LogCaptureFixture) -> None:
    harness = ManagerHarness()
    with caplog.at_level("INFO", "kwire.partition"):
        for index in range(300):
            harness.cluster.leading.log_isr_change(f"t-{index}: the ISR is (1,)")
        harness.cluster.host.run_pending()
    messages = [record.getMessage() for record in caplog.records]
    assert [messages[0], len(messages)] == ["t-0: the ISR is (1,)", 6]
    assert messages[-1].endswith("ISR changes: 295 more were not logged (limit: 5 at once)")
