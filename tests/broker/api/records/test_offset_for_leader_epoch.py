"""OffsetForLeaderEpoch: where epochs ended, and who asks under a wrong one."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.node_harness import NodeHarness


@pytest.fixture
def harness() -> NodeHarness:
    """A partition of which epoch 0 has the offsets 0 to 2, and epoch 4 what comes then."""
    made = NodeHarness()
    made.create("a")
    for count, epoch in ((3, 0), (2, 4)):
        log = made.node.log_manager.get("a", 0)
        assert log is not None
        log.begin_leader_epoch(epoch)
        partition = made.node.partition("a", 0)
        assert partition is not None
        partition.leader_epoch = epoch
        for _ in range(count):
            assert made.produce("a").error_code == 0
    return made


def ask(
    harness: NodeHarness, epoch: int, *, current: int = -1, topic: str = "a", version: int = 4
) -> tuple[int, int, int]:
    """(error, epoch, where it ended)"""
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])])
    [partition] = harness.call(version, request).topics[0].partitions
    return partition.error_code, partition.leader_epoch, partition.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "answer"), [(0, (0, 3)), (2, (0, 3)), (4, (4, 5)), (5, (-1, -1)), (-1, (-1, -1))]
)
def test_the_largest_epoch_up_to_the_one_asked_for(
    harness: NodeHarness, version: int, epoch: int, answer: tuple[int, int]
) -> None:
    assert ask(harness, epoch, version=version) == (0, *answer)


@pytest.mark.parametrize(
    ("current", "code"),
    [
        (-1, ErrorCode.NONE),
        (4, ErrorCode.NONE),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_who_knows_another_epoch_is_told_so(harness: NodeHarness, current: int, code: ErrorCode) -> None:
    assert ask(harness, 0, current=current)[0] == code


def test_a_topic_that_is_not_there(harness: NodeHarness) -> None:
    assert ask(harness, 0, topic="b") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
