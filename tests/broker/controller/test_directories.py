"""A broker tells which of its log directories holds a replica."""

from __future__ import annotations

from typing import Any

from kwire.broker.controller.commands import AssignDirectories
from kwire.wire.primitives import Uuid
from kwire.wire.stored.metadata import PartitionChangeRecord

OTHER = Uuid(b"another-one-of-1")
NOWHERE = Uuid(b"no-such-topic-at")


def with_a_topic(cluster: Any) -> Uuid:
    topic_id: Uuid = cluster.create("t", 2).topic_id
    return topic_id


def test_a_directory_is_written_down_where_it_is_news(cluster: Any) -> None:
    topic_id = with_a_topic(cluster)
    [known] = cluster.image.brokers[1].log_dirs
    cluster.run(AssignDirectories(1, {(topic_id, 0): known, (topic_id, 1): OTHER}))
    assert [stored.record for stored in cluster.records] == [
        PartitionChangeRecord(partition_id=1, topic_id=topic_id, directories=[OTHER])
    ]
    first, second = cluster.image.topics["t"].partitions
    assert (first.directories, second.directories) == ((known,), (OTHER,))
    assert (second.leader_epoch, second.partition_epoch) == (0, 1)


def test_what_is_deleted_by_now_is_passed_over(cluster: Any) -> None:
    topic_id = with_a_topic(cluster)
    cluster.run(AssignDirectories(1, {(NOWHERE, 0): OTHER, (topic_id, 2): OTHER}))
    assert not cluster.records
