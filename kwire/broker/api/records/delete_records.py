"""DeleteRecords v0–2. KIP-107: raise the log start offset; -1 means up to the high watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.broker.metadata.names import is_internal
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from kwire.broker.api.ports import BrokerRole

UP_TO_HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


def handle(node: BrokerRole, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete what lies before each offset; the low watermark is the new log start offset."""
    # What is named twice has one answer, to what was asked last; a topic without partitions has none.
    asked = {
        (topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    topics: dict[str, DeleteRecordsTopicResult] = {}
    for (name, index), offset in asked.items():
        answer = DeleteRecordsPartitionResult(partition_index=index, low_watermark=INVALID_LOW_WATERMARK)
        try:
            answer.low_watermark = _delete(node, name, index, offset)
        except ApiError as error:
            answer.error_code = error.code
        result = topics.setdefault(name, DeleteRecordsTopicResult(name=name, partitions=[]))
        result.partitions.append(answer)
    return DeleteRecordsResponse(topics=list(topics.values()))


def _delete(node: BrokerRole, topic: str, index: int, offset: int) -> int:
    if not node.partition_exists(topic, index):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if is_internal(topic):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Records of the internal topic {topic} cannot be deleted."
        )
    partition = node.led_partition(topic, index)
    log = partition.log
    if "delete" not in log.config.cleanup_policy:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"Records of {topic}-{index} cannot be deleted: it is compacted only."
        )
    if offset == UP_TO_HIGH_WATERMARK:
        offset = partition.high_watermark
    if offset < 0 or offset > partition.high_watermark:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"Offset {offset} of {topic}-{index} is beyond the high watermark."
        )
    if offset > log.log_start_offset:
        log.delete_records_before(offset)
        partition.wake()
    return log.log_start_offset
