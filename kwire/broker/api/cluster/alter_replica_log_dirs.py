"""AlterReplicaLogDirs v1–2: partitions move between this broker's log directories. KIP-113.

Checked in this order: the length of the name, the directory, the replica. Of a partition that is asked into
two directories the last one counts. What is not there yet is remembered, and made in that directory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

logger = logging.getLogger("kwire.node")


def handle(
    node: Node, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin the moves. They go on long after the answer: DescribeLogDirs tells how far they are."""
    wanted = {
        (topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for (name, index), path in wanted.items():
        error = ErrorCode.NONE
        try:
            node.directories.move(name, index, path)
        except ApiError as refusal:
            error = refusal.code
            logger.warning("%s-%d does not move to %s: %s", name, index, path, refusal)
        topic = results.setdefault(name, AlterReplicaLogDirTopicResult(topic_name=name, partitions=[]))
        topic.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error))
    return AlterReplicaLogDirsResponse(results=list(results.values()))
