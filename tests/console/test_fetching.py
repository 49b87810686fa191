"""Fetches in front of a gap that ends at the last stable offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from kwire.cli.shared.command_client import CommandClient
from kwire.console.backwards import batches_before, messages_before
from kwire.console.fetching import BatchStatus, LogOffsets, fetch, fetch_messages
from kwire.wire.batch import build
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

T = TypeVar("T")
BOUNDS = LogOffsets(log_start=0, last_stable=100, high_watermark=102)


class CompactedLeader:
    """A leader with a message at offset 3, then a gap, and an open transaction at the last stable offset.

    As in Kafka, a read_committed fetch ends at the last stable offset.
    """

    def __init__(self) -> None:
        self._batches = {
            3: build([(0, b"k", b"kept", ())], base_offset=3),
            100: build(
                [(0, b"k", b"open", ()), (0, b"k", b"open", ())],
                base_offset=100,
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            ),
        }

    def leader(self, topic: str, partition: int) -> int:
        return 1

    def retry(self, attempt: Callable[[], T]) -> T:
        return attempt()

    def send_to_node(self, node_id: int, request: FetchRequest, response: type[Any]) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        end = BOUNDS.last_stable if request.isolation_level else BOUNDS.high_watermark
        found = PartitionData(
            partition_index=0,
            high_watermark=BOUNDS.high_watermark,
            last_stable_offset=BOUNDS.last_stable,
            log_start_offset=BOUNDS.log_start,
            aborted_transactions=[],
            records=b"".join(
                data for base, data in self._batches.items() if offset <= base + 1 and base < end
            ),
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[found])])


def test_open_transaction_behind_a_gap_is_fetched() -> None:
    cluster = cast("CommandClient", CompactedLeader())
    (batch,) = fetch(cluster, "t", 0, 50).batches
    assert (batch.header.base_offset, batch.status) == (100, BatchStatus.OPEN)
    found = fetch_messages(cluster, "t", 0, 0, 50)
    assert [message.record.offset for message in found.messages] == [3, 100, 101]
    newest = messages_before(cluster, "t", 0, 102, BOUNDS, 50)
    assert [message.record.offset for message in newest.messages] == [3, 100, 101]
    earlier = messages_before(cluster, "t", 0, 101, BOUNDS, 1)
    assert [message.record.offset for message in earlier.messages] == [100]
    batches = batches_before(cluster, "t", 0, 100, BOUNDS, 60)
    assert [one.header.base_offset for one in batches] == [3]
