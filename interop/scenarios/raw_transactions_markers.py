"""WriteTxnMarkers and segment rolls."""

from __future__ import annotations

from typing import Any

from interop.batches import Batch, walk
from interop.brokers import Broker
from interop.raw import create_topic, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario

FIRST_ID = 5_000_000
"""A producer id that no other producer uses."""


@scenario()
def rejected_marker_rolls_segment(broker: Broker) -> Any:
    """Send a marker to a segment older than segment.ms. Even a rejected marker must roll the segment."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for name, epoch, coordinator in (
            ("well", 3, 0),
            ("of the epoch before", 2, 0),
            ("from a coordinator of before", 3, -1),
        ):
            topic = f"raw-rolled-{name.replace(' ', '-')}"
            create_topic(client, topic)
            # The timestamp of the batch is in 2023, so the segment is older than segment.ms.
            batch = Batch(producer_id=FIRST_ID, producer_epoch=3, base_sequence=0).encode()
            produce(client, topic, batch)
            marker = {
                "ProducerId": FIRST_ID,
                "ProducerEpoch": epoch,
                "TransactionResult": True,
                "Topics": [{"Name": topic, "PartitionIndexes": [0]}],
                "CoordinatorEpoch": coordinator,
            }
            response = client.call("WriteTxnMarkers", 1, Markers=[marker])["Markers"][0]
            produce(client, topic, Batch().encode())
            # A fetch response ends at the end of a segment, so the responses show the segments.
            fetched = [fetch(client, topic, offset)["Responses"][0]["Partitions"][0] for offset in range(3)]
            seen[name] = [
                response["Topics"][0]["Partitions"],
                [[found["base_offset"] for found in walk(part["Records"] or b"")] for part in fetched],
            ]
    return seen
