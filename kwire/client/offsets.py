"""Offset lookup: the first offset, the end, or the first offset at or after a timestamp."""

from __future__ import annotations

from collections.abc import Mapping

from kwire.client.cluster_client import ClusterClient, group_by_topic
from kwire.client.errors import raise_for_code
from kwire.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kwire.wire.primitives import TopicPartition


def find_offsets(
    cluster: ClusterClient, timestamps: Mapping[TopicPartition, int], *, committed: bool = False
) -> dict[TopicPartition, int]:
    """Return the first offset at or after each timestamp; NO_OFFSET if there is none.

    The timestamp EARLIEST stands for the log start offset, and LATEST for the high watermark, or with
    `committed` for the last stable offset. Raises ApiError, Disconnected, UnknownPartition.
    """
    found: dict[TopicPartition, int] = {}

    def attempt() -> None:
        missing = {partition: at for partition, at in timestamps.items() if partition not in found}
        for leader, led in cluster.leaders(missing).items():
            request = list_offsets_request({one: timestamps[one] for one in led}, committed=committed)
            for topic_answer in cluster.send_to_node(leader, request, ListOffsetsResponse).topics:
                for one in topic_answer.partitions:
                    name = topic_answer.name
                    raise_for_code(one.error_code, None, f"{name}-{one.partition_index}")
                    found[name, one.partition_index] = one.offset

    if timestamps:
        cluster.retry(attempt)
    return found


def list_offsets_request(
    timestamps: Mapping[TopicPartition, int], *, committed: bool = False
) -> ListOffsetsRequest:
    """Return the request for the offset of each timestamp. See `find_offsets` for the arguments."""
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=timestamps[topic, index])
                    for index in indexes
                ],
            )
            for topic, indexes in group_by_topic(timestamps)
        ],
    )
