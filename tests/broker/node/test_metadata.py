"""What a node writes into the metadata log when it starts and ends, and in which order."""

from __future__ import annotations

from itertools import groupby

from kwire.broker.metadata.batches import decode_batches
from kwire.broker.node.broker_lifecycle import LifecycleStage
from tests.broker.raft.test_snapshots import DIRECTORY, MetadataHarness


def written(harness: MetadataHarness, from_offset: int) -> list[str]:
    """The kinds of the records from some offset on; those that repeat are told once."""
    kinds = []
    for name in sorted(harness.names(".log")):
        for batch in decode_batches(harness.disk.read(f"{DIRECTORY}/{name}")):
            if batch.base_offset >= from_offset:
                kinds += [type(record).__name__.removesuffix("Record") for record in batch.records]
    return [kind for kind, _ in groupby(kinds)]


def test_a_node_starts_and_ends_as_apache_kafka_does() -> None:
    harness = MetadataHarness()
    assert written(harness, 0) == [
        "BeginTransaction",
        "FeatureLevel",
        "Config",
        "EndTransaction",
        "RegisterController",
        "RegisterBroker",
        "BrokerRegistrationChange",
    ]
    harness.create("a", "b", partitions=3)
    end_offset = harness.quorum.log.end_offset
    harness.stop()
    assert harness.metadata.lifecycle.stage is LifecycleStage.STOPPED
    assert written(harness, end_offset) == [
        "BrokerRegistrationChange",  # it is about to end
        "PartitionChange",
        "BrokerRegistrationChange",  # it is fenced
    ]
    end_offset = harness.quorum.log.end_offset
    harness.start()
    assert harness.metadata.lifecycle.stage is LifecycleStage.UNFENCED
    assert written(harness, end_offset) == [
        "RegisterController",
        "RegisterBroker",
        "BrokerRegistrationChange",  # it is unfenced
        "PartitionChange",
        "BrokerRegistrationChange",  # nothing of it is cordoned
    ]


def test_a_node_that_was_killed_costs_its_partitions_what_it_may_have_lost() -> None:
    harness = MetadataHarness()
    harness.create("a", partitions=3)
    end_offset = harness.quorum.log.end_offset
    harness.crash()
    assert written(harness, end_offset) == [
        "RegisterController",
        "PartitionChange",
        "RegisterBroker",
        "BrokerRegistrationChange",
        "PartitionChange",
        "BrokerRegistrationChange",
    ]
    assert {partition.leader for partition in harness.image.topics["a"].partitions} == {1}


def test_a_registration_is_known_by_the_offset_at_which_it_was_written() -> None:
    harness = MetadataHarness()
    assert harness.image.brokers[1].broker_epoch == harness.metadata.lifecycle.broker_epoch
    first = harness.metadata.lifecycle.broker_epoch
    harness.stop()
    harness.start()
    assert harness.image.brokers[1].broker_epoch == harness.metadata.lifecycle.broker_epoch > first
    assert not harness.image.brokers[1].fenced
