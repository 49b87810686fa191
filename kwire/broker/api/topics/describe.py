"""DescribeTopicPartitions v0: topics by name in pages, with eligible leader replicas. KIP-966.

The limit for the partitions of a page is in the request, and at most `max.request.partition.size.limit`. The
cursor is the start of the next page.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.request.authorized_operations import authorized_operations
from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.slices import SLICE_PARTITIONS, handle_in_slices
from kwire.broker.api.topics.metadata import offline_replicas
from kwire.broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from kwire.broker.metadata.topic_names import is_internal, topic_name_fault
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole


def describe_topic_partitions(
    node: BrokerRole, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse | Delayed:
    """Return one page of topics. An empty list of topics means all topics.

    Raises ApiError INVALID_REQUEST for a cursor with a negative index or a topic that is not requested.
    """
    return handle_in_slices(context, _steps(node, context, request))


def _steps(
    node: BrokerRole, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    image = node.image
    everything = not request.topics
    cursor = request.cursor
    first = cursor.topic_name if cursor is not None else ""
    named = image.topics.keys() if everything else {topic.name for topic in request.topics}
    requested = {name for name in named if name >= first}
    if cursor is not None and (
        cursor.partition_index < 0 or (not everything and cursor.topic_name not in requested)
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    allowed = set()
    for number, name in enumerate(requested, 1):
        if node.gate.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            allowed.add(name)
        if not number % SLICE_PARTITIONS:
            yield
    names = sorted(allowed)
    left = max(1, min(node.config.max_request_partition_size_limit, request.response_partition_limit))
    operations = partial(authorized_operations, node.gate, context, ResourceType.TOPIC)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if left == 0:
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_missing(name, operations(name)))
            continue
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        end = min(len(topic.partitions), start + left)
        response.topics.append(_describe(image, topic, start, end, context.listener, operations(name)))
        if end < len(topic.partitions):
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=end)
            break
        left -= max(0, end - start)
    if not everything:
        response.topics += [
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
            for name in sorted(requested - allowed)
        ]
    return response


def _missing(name: str, operations: int) -> DescribeTopicPartitionsResponseTopic:
    known_name = topic_name_fault(name) is None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known_name else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=operations,
    )


def _describe(
    image: MetadataImage, topic: TopicImage, start: int, end: int, listener: str, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            _partition(image, index, topic.partitions[index], listener) for index in range(start, end)
        ],
        topic_authorized_operations=operations,
    )


def _partition(
    image: MetadataImage, index: int, partition: PartitionImage, listener: str
) -> DescribeTopicPartitionsResponsePartition:
    leader = image.brokers.get(partition.leader)
    is_reachable = leader is not None and listener in leader.endpoints
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if is_reachable else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=offline_replicas(image, partition, listener),
    )
