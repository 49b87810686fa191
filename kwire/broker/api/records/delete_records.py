"""DeleteRecords v0–2: raise the log start offset; offset -1 means the high watermark. KIP-107.

The low watermark in the response is the lowest log start offset of all live replicas. A follower raises its
log start offset to the leader's, and reports it with its next Fetch. The response waits for that Fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.metadata.topic_names import is_internal
from kwire.host.host import Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole
    from kwire.broker.replication.partition import Partition
    from kwire.broker.replication.remote_replicas import RemoteReplicas

UP_TO_HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


def handle(
    node: BrokerRole, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Delayed:
    """Delete the records before each offset. Respond after all live replicas did so, or at the timeout."""
    # If a partition occurs twice, its last offset wins. A topic without partitions gets no result.
    offsets = {
        (topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    deletion = _DelayedDeleteRecords(node, context)
    topics: dict[str, DeleteRecordsTopicResult] = {}
    for (name, index), offset in offsets.items():
        partition_result = DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=INVALID_LOW_WATERMARK
        )
        try:
            partition = _to_delete_from(node, name, index)
            deletion.delete(partition, offset, partition_result)
        except ApiError as error:
            partition_result.error_code = error.code
        result = topics.setdefault(name, DeleteRecordsTopicResult(name=name, partitions=[]))
        result.partitions.append(partition_result)
    response = DeleteRecordsResponse(topics=list(topics.values()))
    return response if deletion.is_over else deletion.wait(response, request.timeout_ms)


class _DelayedDeleteRecords:
    """A DeleteRecords request as a delayed operation, which waits for followers."""

    def __init__(self, node: BrokerRole, context: RequestContext) -> None:
        self._host = node.host
        self._node = node
        self._context = context
        self._response: DeleteRecordsResponse | None = None
        self._timer: Timer | None = None
        self._deleted: list[tuple[Partition, RemoteReplicas, int, DeleteRecordsPartitionResult]] = []
        """The partitions whose followers have not reached the deletion offset yet.

        Each with its followers at the start, the deletion offset and the result.
        """

    @property
    def is_over(self) -> bool:
        """Whether the followers of all partitions have reached the deletion offset."""
        return not self._deleted

    def delete(
        self, partition: Partition, offset: int, partition_result: DeleteRecordsPartitionResult
    ) -> None:
        """Delete the records before the offset in this broker's replica.

        Raises ApiError OFFSET_OUT_OF_RANGE if the offset is beyond the high watermark, or below -1.
        """
        log = partition.log
        if offset == UP_TO_HIGH_WATERMARK:
            offset = partition.high_watermark
        if offset < 0 or offset > partition.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"Offset {offset} of {log.name} is beyond the high watermark."
            )
        if offset > log.log_start_offset:
            log.delete_records_before(offset)
            partition.log_start_offset_moved()
            partition.wake()
        partition_result.low_watermark = partition.low_watermark
        if partition_result.low_watermark < offset and partition.remote_replicas is not None:
            self._deleted.append((partition, partition.remote_replicas, offset, partition_result))

    def wait(self, response: DeleteRecordsResponse, timeout_ms: int) -> Delayed:
        """Delay the response until the followers have deleted the records, at most for `timeout_ms`."""
        self._response = response
        for _, led, _, _ in self._deleted:
            led.low_watermark_listeners[self._check] = None
        self._node.delayed_delete_records += 1
        self._timer = self._host.internode_clock.schedule(max(0, timeout_ms), self._timed_out)
        return DELAYED

    def _check(self) -> None:
        """Respond if no partition is pending, after a change of a low watermark or a leader."""
        if self._response is None:
            return
        left: list[tuple[Partition, RemoteReplicas, int, DeleteRecordsPartitionResult]] = []
        for partition, led, offset, partition_result in self._deleted:
            if partition.remote_replicas is not led:
                partition_result.error_code = partition.not_leader_error().code
                partition_result.low_watermark = INVALID_LOW_WATERMARK
            elif partition.low_watermark >= offset:
                partition_result.low_watermark = partition.low_watermark
            else:
                left.append((partition, led, offset, partition_result))
                continue
            led.low_watermark_listeners.pop(self._check, None)
        self._deleted = left
        if not left:
            self._complete()

    def _timed_out(self) -> None:
        for _, led, _, partition_result in self._deleted:
            led.low_watermark_listeners.pop(self._check, None)
            partition_result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._complete()

    def _complete(self) -> None:
        response, self._response = self._response, None
        assert response is not None
        assert self._timer is not None
        self._timer.cancel()
        self._node.delayed_delete_records -= 1
        self._context.complete(response)


def _to_delete_from(node: BrokerRole, topic: str, index: int) -> Partition:
    """Return a partition that this broker leads. Raises ApiError otherwise.

    Also raises ApiError for internal topics and for topics that are only compacted.
    """
    if is_internal(topic) and node.partition_exists(topic, index):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Records of the internal topic {topic} cannot be deleted."
        )
    partition = node.led_partition(topic, index)
    if "delete" not in partition.log.config.cleanup_policy:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"Records of {topic}-{index} cannot be deleted: it is compacted only."
        )
    return partition
