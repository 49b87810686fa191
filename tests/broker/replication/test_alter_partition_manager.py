"""Changes of the ISR on their way to the controller."""

from __future__ import annotations

from functools import partial

import pytest

from kwire.broker.replication.alter_partition_manager import IsrChange, IsrChangeResult
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.replication.cluster import Cluster

TOPIC = Uuid(bytes(15) + b"\1")


class ManagerHarness:
    def __init__(self) -> None:
        self.cluster = Cluster(VirtualHost(seed=1))
        self.heard: list[tuple[int, ErrorCode]] = []

    def submit(self, index: int) -> None:
        change = IsrChange(TOPIC, index, 0, 0, ((1, 10), (index, -1)))
        self.cluster.leading.alter_partition.submit(change, partial(self._hear, index))

    def _hear(self, index: int, answer: IsrChangeResult) -> None:
        self.heard.append((index, answer.error))


def test_one_request_is_on_its_way_with_all_that_is_wanted_by_then() -> None:
    harness = ManagerHarness()
    harness.submit(5)
    harness.submit(6)
    assert harness.cluster.wanted() == [(1, 5), (1, 6)]
    harness.submit(7)
    harness.submit(5)
    assert len(harness.cluster.asked) == 1
    assert harness.cluster.wanted() == [(1, 5), (1, 6)]
    assert harness.heard == [(5, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    harness.cluster.answer()
    assert harness.heard[1:] == [(5, ErrorCode.NONE), (6, ErrorCode.NONE)]
    assert harness.cluster.wanted() == [(1, 7)]
    harness.cluster.answer(ErrorCode.FENCED_LEADER_EPOCH)
    assert harness.heard[3:] == [(7, ErrorCode.FENCED_LEADER_EPOCH)]
    harness.submit(7)
    assert harness.cluster.wanted() == [(1, 7)]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_what_is_refused_as_a_whole_is_asked_again_until_it_is_answered(code: ErrorCode) -> None:
    harness = ManagerHarness()
    harness.submit(5)
    harness.cluster.refuse(code)
    harness.submit(6)
    assert harness.cluster.wanted() == []
    harness.cluster.host.advance(50)
    assert harness.cluster.wanted() == [(1, 5), (1, 6)]
    assert harness.heard == []
    harness.cluster.answer()
    harness.cluster.host.advance(1_000)
    assert (harness.cluster.wanted(), len(harness.heard)) == ([], 2)


def test_a_partition_that_the_answer_leaves_out_is_asked_for_again() -> None:
    harness = ManagerHarness()
    harness.submit(5)
    harness.submit(6)
    harness.cluster.wanted()
    _, done = harness.cluster.asked.pop()
    done({(TOPIC, 5): IsrChangeResult(ErrorCode.NONE)})
    harness.cluster.host.advance(50)
    assert (harness.heard, harness.cluster.wanted()) == ([(5, ErrorCode.NONE)], [(1, 6)])


def test_of_hundreds_of_changes_the_log_tells_a_few(caplog: pytest.LogCaptureFixture) -> None:
    harness = ManagerHarness()
    with caplog.at_level("INFO", "kwire.partition"):
        for index in range(300):
            harness.cluster.leading.log_isr_change(f"t-{index}: the ISR is (1,)")
        harness.cluster.host.run_pending()
    told = [record.getMessage() for record in caplog.records]
    assert [told[0], len(told)] == ["t-0: the ISR is (1,)", 6]
    assert told[-1].endswith("295 more partitions had ISR changes")
