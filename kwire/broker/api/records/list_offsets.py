"""ListOffsets v1–11. KIP-79, KIP-207, KIP-320, KIP-405 (tiered offsets), KIP-734 (max timestamp), KIP-1005.

A negative timestamp requests a special offset: the latest, the earliest, the offset of the record with the
maximum timestamp, or a limit of the local or tiered log. A client does not get offsets that it may not fetch
yet.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from kwire.broker.api.records.fetch_isolation import (
    CONSUMER,
    DEBUGGING_OFFSETS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    REPLICA_OFFSETS,
    find_replica,
)
from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.slices import SLICE_PARTITIONS, handle_in_slices, slices_of
from kwire.broker.storage.log.worker_reads import MAX_PENDING, ReadPending, WorkerReads
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from kwire.broker.api.request.ports import BrokerRole

MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
FIRST_VERSION_WITH_NOT_AVAILABLE = 5
FIRST_VERSION_WITH_LEADER_EPOCH = 4


def handle(
    node: BrokerRole, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Delayed:
    """Return one result per partition. A partition that occurs twice gets INVALID_REQUEST.

    Raises ApiError INVALID_REQUEST for an unknown isolation level.
    """
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return handle_in_slices(context, _steps(node, context, request))


def _steps(
    node: BrokerRole, context: RequestContext, request: ListOffsetsRequest
) -> Generator[WorkerReads | None, None, ListOffsetsResponse]:
    counts: Counter[tuple[str, int]] = Counter()
    left: deque[tuple[str, ListOffsetsPartition]] = deque()
    for topic in request.topics:
        for some in slices_of(topic.partitions):
            counts.update((topic.name, partition.partition_index) for partition in some)
            left.extend((topic.name, partition) for partition in some)
            yield None
    results: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
    reads = WorkerReads()
    while left:
        pending: list[tuple[str, ListOffsetsPartition]] = []
        while left and len(pending) < MAX_PENDING:
            if not len(left) % SLICE_PARTITIONS:
                yield None
            name, partition = left.popleft()
            key = (name, partition.partition_index)
            if counts[key] > 1 and key in results:
                continue
            try:
                if counts[key] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                results[key] = _find_offset(node, context.api_version, request, name, partition, reads)
            except ReadPending:
                results[key] = ListOffsetsPartitionResponse()  # it keeps its place in the response
                pending.append((name, partition))
            except ApiError as error:
                code = error.code
                if (
                    code == ErrorCode.OFFSET_NOT_AVAILABLE
                    and context.api_version < FIRST_VERSION_WITH_NOT_AVAILABLE
                ):
                    code = ErrorCode.LEADER_NOT_AVAILABLE
                results[key] = ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index, error_code=code, timestamp=-1, offset=-1
                )
        if pending:
            left.extendleft(reversed(pending))
            yield reads
    by_topic: dict[str, list[ListOffsetsPartitionResponse]] = {}
    for number, ((name, _), result) in enumerate(results.items(), 1):
        by_topic.setdefault(name, []).append(result)
        if not number % SLICE_PARTITIONS:
            yield None
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
    )


def _find_offset(
    node: BrokerRole,
    version: int,
    request: ListOffsetsRequest,
    topic: str,
    requested: ListOffsetsPartition,
    reads: WorkerReads,
) -> ListOffsetsPartitionResponse:
    timestamp = requested.timestamp
    if timestamp < 0 and version < SINCE_VERSION.get(timestamp, 1 << 15):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    is_client = request.replica_id == CONSUMER_REPLICA_ID
    if is_client:
        isolation = CONSUMER[request.isolation_level, True]
    else:
        isolation = DEBUGGING_OFFSETS if request.replica_id == DEBUGGING_REPLICA_ID else REPLICA_OFFSETS
    partition = find_replica(node, topic, requested.partition_index)
    end_offset = isolation.readable_end(partition, requested.current_leader_epoch)
    log = partition.log
    # KIP-207: a new leader's high watermark may be too low, but returned offsets must not go backwards.
    is_behind = is_client and partition.is_high_watermark_stale
    result = ListOffsetsPartitionResponse(partition_index=requested.partition_index, timestamp=-1, offset=-1)
    if timestamp == LATEST:
        if is_behind:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        result.offset = end_offset
        result.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = log.log_start_offset if timestamp == EARLIEST else log.local_log_start_offset
        epoch = log.epoch_at(result.offset)
        if epoch is not None:
            result.leader_epoch = epoch
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # kwire has no tiered storage, so these offsets do not exist: offset -1, leader epoch -1.
        pass
    else:
        is_max = timestamp == MAX_TIMESTAMP
        found = log.max_timestamp() if is_max else log.offset_for_timestamp(timestamp, reads)
        if found is not None and found.offset < end_offset:
            result.timestamp = found.timestamp
            result.offset = found.offset
            if found.leader_epoch >= 0:
                result.leader_epoch = found.leader_epoch
        elif is_behind:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    if version < FIRST_VERSION_WITH_LEADER_EPOCH:
        result.leader_epoch = -1
    return result
