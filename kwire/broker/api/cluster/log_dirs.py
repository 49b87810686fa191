"""DescribeLogDirs v1–5, AlterReplicaLogDirs v1–2: the log directories of this broker and their replicas.

DescribeLogDirs: KIP-113, KIP-827 (volume sizes), KIP-1066 (cordoned).

AlterReplicaLogDirs (KIP-113) first checks that the future replica's directory name is not too long, then the
log directory, then the replica. If a partition occurs twice, its last directory wins. If the broker has no
replica of a partition, it remembers the directory and later creates the replica there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import RequestContext
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.broker.storage.log.log import Log
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kwire.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

UNKNOWN_LAG = -1


def describe_log_dirs(
    node: BrokerRole, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Return the volume sizes and the sizes of the requested replicas, by log directory.

    A null list of topics means all topics. An offline directory gets KAFKA_STORAGE_ERROR.
    """
    requested = None
    if request.topics is not None:
        requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    results: list[DescribeLogDirsResult] = []
    for directory in node.log_manager.directories():
        if directory.holds_only_metadata:
            continue
        if directory.offline:
            results.append(
                DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
            )
            continue
        topics: dict[str, DescribeLogDirsTopic] = {}
        for log in node.log_manager.logs_in(directory.path):
            if log.topic == METADATA_TOPIC:  # clients do not see this topic
                continue
            if requested is not None and (log.topic, log.partition) not in requested:
                continue
            topic = topics.setdefault(log.topic, DescribeLogDirsTopic(name=log.topic, partitions=[]))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=log.partition,
                    partition_size=log.size_bytes,
                    offset_lag=_offset_lag(node, log),
                    is_future_key=_is_future(node, log),
                )
            )
        total_bytes, usable_bytes = directory.volume_bytes()
        results.append(
            DescribeLogDirsResult(
                log_dir=directory.path,
                topics=list(topics.values()),
                total_bytes=total_bytes,
                usable_bytes=usable_bytes,
                is_cordoned=directory.cordoned,
            )
        )
    return DescribeLogDirsResponse(results=results)


def _is_future(node: BrokerRole, log: Log) -> bool:
    return node.log_manager.future_log(log.topic, log.partition) is log


def _offset_lag(node: BrokerRole, log: Log) -> int:
    """Return how many offsets a log's end is behind the log's high watermark; -1 if unknown.

    For a future replica, return how many offsets its end is behind the end of the current replica.
    """
    current = node.log_manager.get(log.topic, log.partition)
    if current is None or current.failure is not None:
        return UNKNOWN_LAG
    if current is log:
        return max(0, log.high_watermark - log.log_end_offset)
    return current.log_end_offset - log.log_end_offset


def alter_replica_log_dirs(
    node: BrokerRole, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Start to move replicas to other log directories. DescribeLogDirs shows the progress."""
    requested = {
        (topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for (name, index), path in requested.items():
        error = ErrorCode.NONE
        try:
            node.log_dirs.move(name, index, path)
        except ApiError as refusal:
            error = refusal.code
            node.host.logger("kwire.node").warning(
                "Rejecting the move of replica %s-%d to %s: %s", name, index, path, refusal
            )
        topic = results.setdefault(name, AlterReplicaLogDirTopicResult(topic_name=name, partitions=[]))
        topic.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error))
    return AlterReplicaLogDirsResponse(results=list(results.values()))
