"""OffsetForLeaderEpoch: end offsets of leader epochs, and errors."""

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
    """Return a broker with partition a-0: offsets 0 to 2 are in leader epoch 0, and 3 and 4 in epoch 4."""
    harness = NodeHarness()
    harness.create("a")
    for count, epoch in ((3, 0), (2, 4)):
        log = harness.node.log_manager.get("a", 0)
        assert log is not None
        log.begin_leader_epoch(epoch)
        partition = harness.node.partition("a", 0)
        assert partition is not None
        partition.leader_epoch = epoch
        for _ in range(count):
            assert harness.produce("a").error_code == 0
    return harness


def end_offset(
    harness: NodeHarness, epoch: int, *, current: int = -1, topic: str = "a", version: int = 4
) -> tuple[int, int, int]:
    """Send OffsetForLeaderEpoch, and return the error, the leader epoch and the end offset of this epoch."""
    requested = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[requested])])
    [partition] = harness.call(version, request).topics[0].partitions
    return partition.error_code, partition.leader_epoch, partition.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 3)), (2, (0, 3)), (4, (4, 5)), (5, (-1, -1)), (-1, (-1, -1))]
)
def test_the_largest_epoch_up_to_the_requested_one_is_returned(
    harness: NodeHarness, version: int, epoch: int, expected: tuple[int, int]
) -> None:
    assert end_offset(harness, epoch, version=version) == (0, *expected)


@pytest.mark.parametrize(
    ("current", "code"),
    [
        (-1, ErrorCode.NONE),
        (4, ErrorCode.NONE),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_another_current_leader_epoch_is_an_error(
    harness: NodeHarness, current: int, code: ErrorCode
) -> None:
    assert end_offset(harness, 0, current=current)[0] == code


def test_an_unknown_topic_is_an_error(harness: NodeHarness) -> None:
    assert end_offset(harness, 0, topic="b") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
