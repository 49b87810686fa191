"""What a node writes into the metadata log when it starts and ends, and in which order."""

from __future__ import annotations

from itertools import groupby

from kwire.broker.metadata.batches import decode_batches
from kwire.broker.node.broker_lifecycle import LifecycleStage
from tests.broker.raft.test_snapshots import DIRECTORY, Bench


def written(bench: Bench, from_offset: int) -> list[str]:
    """The kinds of the records from some offset on; those that repeat are told once."""
    kinds = []
    for name in sorted(bench.names(".log")):
        for batch in decode_batches(bench.disk.read(f"{DIRECTORY}/{name}")):
            if batch.base_offset >= from_offset:
                kinds += [type(record).__name__.removesuffix("Record") for record in batch.records]
    return [kind for kind, _ in groupby(kinds)]


def test_a_node_starts_and_ends_as_apache_kafka_does() -> None:
    bench = Bench()
    assert written(bench, 0) == [
        "BeginTransaction",
        "FeatureLevel",
        "Config",
        "EndTransaction",
        "RegisterController",
        "RegisterBroker",
        "BrokerRegistrationChange",
    ]
    bench.create("a", "b", partitions=3)
    end_offset = bench.quorum.log.end_offset
    bench.stop()
    assert bench.metadata.lifecycle.stage is LifecycleStage.STOPPED
    assert written(bench, end_offset) == [
        "BrokerRegistrationChange",  # it is about to end
        "PartitionChange",
        "BrokerRegistrationChange",  # it is fenced
    ]
    end_offset = bench.quorum.log.end_offset
    bench.start()
    assert bench.metadata.lifecycle.stage is LifecycleStage.UNFENCED
    assert written(bench, end_offset) == [
        "RegisterController",
        "RegisterBroker",
        "BrokerRegistrationChange",  # it is unfenced
        "PartitionChange",
        "BrokerRegistrationChange",  # nothing of it is cordoned
    ]


def test_a_node_that_was_killed_costs_its_partitions_what_it_may_have_lost() -> None:
    bench = Bench()
    bench.create("a", partitions=3)
    end_offset = bench.quorum.log.end_offset
    bench.crash()
    assert written(bench, end_offset) == [
        "RegisterController",
        "PartitionChange",
        "RegisterBroker",
        "BrokerRegistrationChange",
        "PartitionChange",
        "BrokerRegistrationChange",
    ]
    assert {partition.leader for partition in bench.image.topics["a"].partitions} == {1}


def test_a_registration_is_known_by_the_offset_at_which_it_was_written() -> None:
    bench = Bench()
    assert bench.image.brokers[1].broker_epoch == bench.metadata.lifecycle.broker_epoch
    first = bench.metadata.lifecycle.broker_epoch
    bench.stop()
    bench.start()
    assert bench.image.brokers[1].broker_epoch == bench.metadata.lifecycle.broker_epoch > first
    assert not bench.image.brokers[1].fenced
