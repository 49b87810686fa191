"""Several markers in one WriteTxnMarkers: whose is told of, where one partition gets more than one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario

TOPIC = "raw-several-markers"
FIRST_ID = 5_000_000
"""Of producers that nobody has asked for."""

KINDS: dict[str, tuple[int, int, int, list[int]]] = {
    "early": (0, 0, 0, [0]),
    "late": (0, 5, 0, [0, 1]),
    "of the epoch before": (0, 5, -2, [0]),
    "nonsense": (0, 0, -1, [1]),
    "nowhere": (0, 0, 0, [9]),
    "another's": (1, 0, 0, [0]),
    "without partitions": (0, 0, 0, []),
}
"""Which of two producers, the coordinator's epoch, the producer's, and the partitions."""


SKIPPED = {"nowhere", "without partitions"}


def is_answered(kinds: Sequence[str]) -> bool:
    """Apache Kafka never answers where what it passes over comes behind the last marker that it writes."""
    return "nonsense" in kinds or kinds[-1] not in SKIPPED or SKIPPED.issuperset(kinds)


@scenario()
def several(broker: Broker) -> Any:
    """In every order of two and three."""
    seen: dict[str, Any] = {}
    producer_id = FIRST_ID
    with RawClient(broker.bootstrap) as client:
        create_topic(client, TOPIC, 2)
        for version in (1, 2):
            for kinds in filter(is_answered, [*permutations(KINDS, 2), *permutations(KINDS, 3)]):
                producer_id += 2
                markers = [
                    {
                        "ProducerId": producer_id + which,
                        "ProducerEpoch": epoch,
                        "TransactionResult": True,
                        "Topics": [{"Name": TOPIC, "PartitionIndexes": partitions}] if partitions else [],
                        "CoordinatorEpoch": coordinator,
                    }
                    for which, coordinator, epoch, partitions in map(KINDS.__getitem__, kinds)
                ]
                answer = client.call("WriteTxnMarkers", version, Markers=markers)
                seen[f"v{version} {kinds}"] = sorted(
                    (
                        found["ProducerId"] - producer_id,
                        sorted(
                            (partition["PartitionIndex"], partition["ErrorCode"])
                            for topic in found["Topics"]
                            for partition in topic["Partitions"]
                        ),
                    )
                    for found in answer["Markers"]
                )
    return seen
