"""The metadata records that a node writes at start and shutdown, in order."""

from __future__ import annotations

from itertools import groupby

from kwire.broker.metadata.batches import decode_batches
from kwire.broker.node.broker_lifecycle import LifecycleStage
from tests.broker.raft.test_snapshots import DIRECTORY, MetadataHarness


def record_types(harness: MetadataHarness, from_offset: int) -> list[str]:
    """Return the record types from an offset on, without consecutive repetitions."""
    kinds = []
    for name in sorted(harness.names(".log")):
        for batch in decode_batches(harness.disk.read(f"{DIRECTORY}/{name}")):
            if batch.base_offset >= from_offset:
                kinds += [type(record).__name__.removesuffix("Record") for record in batch.records]
    return [kind for kind, _ in groupby(kinds)]


def test_start_and_shutdown_write_the_records_of_apache_kafka() -> None:
    harness = MetadataHarness()
    assert record_types(harness, 0) == [
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
    assert record_types(harness, end_offset) == [
        "BrokerRegistrationChange",  # controlled shutdown
        "PartitionChange",
        "BrokerRegistrationChange",  # fenced
    ]
    end_offset = harness.quorum.log.end_offset
    harness.start()
    assert harness.metadata.lifecycle.stage is LifecycleStage.UNFENCED  # type: ignore[comparison-overlap]
    assert record_types(harness, end_offset) == [
        "RegisterController",
        "RegisterBroker",
        "BrokerRegistrationChange",  # unfenced
        "PartitionChange",
        "BrokerRegistrationChange",  # no cordoned directories
    ]


def test_restart_after_a_crash_elects_leaders_again() -> None:
    harness = MetadataHarness()
    harness.create("a", partitions=3)
    end_offset = harness.quorum.log.end_offset
    harness.crash()
    assert record_types(harness, end_offset) == [
        "RegisterController",
        "PartitionChange",
        "RegisterBroker",
        "BrokerRegistrationChange",
        "PartitionChange",
        "BrokerRegistrationChange",
    ]
    assert {partition.leader for partition in harness.image.topics["a"].partitions} == {1}


def test_broker_epoch_is_the_offset_of_the_registration() -> None:
    harness = MetadataHarness()
    assert harness.image.brokers[1].broker_epoch == harness.metadata.lifecycle.broker_epoch
    first = harness.metadata.lifecycle.broker_epoch
    harness.stop()
    harness.start()
    assert harness.image.brokers[1].broker_epoch == harness.metadata.lifecycle.broker_epoch > first
    assert not harness.image.brokers[1].fenced
