"""Several markers in one WriteTxnMarkers: whose is told of, where one partition gets more than one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from interop.batches import Batch, walk
from interop.brokers import Broker
from interop.raw import create_topic, fetch, produce
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


@scenario()
def refused_and_rolled(broker: Broker) -> Any:
    """The segment is a week old that a marker comes for: it is rolled though the marker is refused."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for name, epoch, coordinator in (
            ("well", 3, 0),
            ("of the epoch before", 2, 0),
            ("from a coordinator of before", 3, -1),
        ):
            topic = f"raw-rolled-{name.replace(' ', '-')}"
            create_topic(client, topic, configs={"retention.ms": "-1"})
            # Of 2023, and so longer ago than segment.ms.
            batch = Batch(producer_id=FIRST_ID, producer_epoch=3, base_sequence=0).encode()
            produce(client, topic, batch)
            marker = {
                "ProducerId": FIRST_ID,
                "ProducerEpoch": epoch,
                "TransactionResult": True,
                "Topics": [{"Name": topic, "PartitionIndexes": [0]}],
                "CoordinatorEpoch": coordinator,
            }
            answer = client.call("WriteTxnMarkers", 1, Markers=[marker])["Markers"][0]
            produce(client, topic, Batch().encode())
            # A fetch ends with its segment.
            fetched = [fetch(client, topic, offset)["Responses"][0]["Partitions"][0] for offset in range(3)]
            seen[name] = [
                answer["Topics"][0]["Partitions"],
                [[found["base_offset"] for found in walk(part["Records"] or b"")] for part in fetched],
            ]
    return seen
