"""The counts of leader elections in committed metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kwire.broker.controller.controller_metrics import ControllerMetrics
from kwire.broker.metadata.delta import TopicChange
from kwire.broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from kwire.wire.primitives import ZERO_UUID
from tests.node_harness import NodeHarness

BEFORE = PartitionImage((1, 2, 3), (1, 2), leader=1)


def counts(before: PartitionImage | None, after: PartitionImage | None) -> tuple[int, int]:
    """Return the unclean elections, and the elections of eligible leader replicas."""
    topics = [None if one is None else TopicImage("t", ZERO_UUID, (one,)) for one in (before, after)]
    delta: Any = SimpleNamespace(topic_changes=[TopicChange(*topics)])
    metrics = ControllerMetrics()
    metrics.image_changed(MetadataImage(), delta)
    return metrics.unclean_elections, metrics.elr_elections


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (BEFORE, BEFORE._replace(leader=2), (0, 0)),
        (BEFORE, BEFORE._replace(leader=3, isr=(3,)), (1, 0)),
        (BEFORE, BEFORE._replace(leader=NO_LEADER), (0, 0)),
        (BEFORE, BEFORE._replace(isr=(1,)), (0, 0)),
        (BEFORE._replace(leader=NO_LEADER, isr=(), elr=(2,)), BEFORE._replace(leader=2, isr=(2,)), (0, 1)),
        (BEFORE._replace(leader=NO_LEADER, isr=(), elr=(2,)), BEFORE._replace(leader=3, isr=(3,)), (1, 0)),
        (None, BEFORE, (0, 0)),
        (BEFORE, None, (0, 0)),
    ],
    ids=["in sync", "unclean", "offline", "ISR", "eligible", "neither", "created", "deleted"],
)
def test_elections_are_counted_by_the_isr_and_elr_before_them(
    before: PartitionImage | None, after: PartitionImage | None, expected: tuple[int, int]
) -> None:
    assert counts(before, after) == expected


def test_the_active_controller_counts_its_commands() -> None:
    harness = NodeHarness()
    assert harness.node.metadata.runtime is not None
    metrics = harness.node.metadata.runtime.metrics
    before = metrics.commands
    harness.create("t")
    assert metrics.commands > before
    assert len(metrics.processing_ms) == metrics.commands
