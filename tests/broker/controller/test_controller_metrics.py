"""The counts of leader elections in committed metadata."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.controller_metrics import ControllerMetrics
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import NO_LEADER, MetadataImage
from kwire.wire.primitives import ZERO_UUID, uuid_from_text
from kwire.wire.records.metadata import PartitionChangeRecord, PartitionRecord, TopicRecord
from tests.node_harness import NodeHarness

TOPIC_ID = uuid_from_text("AAAAAAAAAAAAAAAAAAAAAQ")
IN_SYNC: Any = {"replicas": [1, 2, 3], "isr": [1, 2], "leader": 1}
OFFLINE: Any = {"replicas": [1, 2, 3], "isr": [], "leader": NO_LEADER, "eligible_leader_replicas": [2]}


def counts(partition: dict[str, Any], *changes: dict[str, Any]) -> tuple[int, int]:
    """Return the unclean elections, and the elections of eligible leader replicas, in one delta."""
    created = MetadataDelta(MetadataImage())
    created.replay(TopicRecord(name="t", topic_id=TOPIC_ID))
    created.replay(
        PartitionRecord(partition_id=0, topic_id=TOPIC_ID, directories=[ZERO_UUID] * 3, **partition)
    )
    metrics = ControllerMetrics()
    image = created.apply(0, 0)
    metrics.image_changed(image, created)
    changed = MetadataDelta(image)
    for change in changes:
        changed.replay(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **change))
    metrics.image_changed(changed.apply(1, 0), changed)
    return metrics.unclean_elections, metrics.elr_elections


@pytest.mark.parametrize(
    ("partition", "changes", "expected"),
    [
        (IN_SYNC, [{"leader": 2}], (0, 0)),
        (IN_SYNC, [{"leader": 3, "isr": [3]}], (1, 0)),
        (IN_SYNC, [{"leader": NO_LEADER}], (0, 0)),
        (IN_SYNC, [{"isr": [1]}], (0, 0)),
        (OFFLINE, [{"leader": 2, "isr": [2]}], (0, 1)),
        (OFFLINE, [{"leader": 3, "isr": [3]}], (1, 0)),
        (IN_SYNC, [{"isr": [1, 2, 3]}, {"leader": 3}], (0, 0)),
        (IN_SYNC, [{"leader": 3, "isr": [3]}, {"isr": [1, 3]}, {"leader": 1}], (1, 0)),
    ],
    ids=["in sync", "unclean", "offline", "ISR", "eligible", "neither", "joined before", "and back"],
)
def test_elections_are_counted_by_the_isr_and_elr_before_them(
    partition: dict[str, Any], changes: list[dict[str, Any]], expected: tuple[int, int]
) -> None:
    assert counts(partition, *changes) == expected


def test_the_active_controller_counts_its_commands() -> None:
    harness = NodeHarness()
    assert harness.node.metadata.runtime is not None
    metrics = harness.node.metadata.runtime.metrics
    before = metrics.commands
    harness.create("t")
    assert metrics.commands > before
    assert len(metrics.processing_ms) == metrics.commands
