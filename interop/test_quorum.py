"""A controller of one kind and a broker of the other: restarts, snapshots and identical metadata logs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.cluster.nodes import FEATURES, format_node, wait_until
from interop.raw_client import RawClient
from interop.wire import Fields

SMALL_SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "30000"}
EXPECTED = re.compile(
    # Apache Kafka logs these lines during a normal start and while the other node is down.
    r"Performing controller activation|already been closed|could not be established|Node may not be available"
    r"|Disconnecting from node|Error in response for fetch request|java.io.IOException: Connection to"
    # A broker that starts reports the directories of its replicas before its registration has completed.
    r"|assignments failed; global error: Response-level error: STALE_BROKER_EPOCH"
)


def controller_of(kind: type[Broker]) -> Broker:
    """Create and format a combined node without the features that kwire does not support."""
    return format_node(kind(SMALL_SNAPSHOTS), *FEATURES)


def broker_of(kind: type[Broker], controller: Broker, node_id: int) -> Broker:
    """Create a broker that uses the node `controller` as its controller."""
    broker = kind(
        {
            **SMALL_SNAPSHOTS,
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": controller.properties["controller.quorum.voters"],
            "controller.quorum.fetch.snapshot.max.bytes": "5000",
        }
    )
    broker.properties["listeners"] = broker.properties["advertised.listeners"]
    return format_node(broker)


def home(broker: Broker) -> Path:
    return broker.log_dir / "__cluster_metadata-0"


def log_of(broker: Broker) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(home(broker).glob("*.log")))


def create(broker: Broker, prefix: str, count: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    for number in range(count):
        admin.create_topics([NewTopic(f"{prefix}{number}", num_partitions=20, replication_factor=1)])
    admin.close()


def quorum(port: int) -> Fields:
    requested = [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]
    with RawClient(f"127.0.0.1:{port}") as client:
        answer = client.call("DescribeQuorum", 2, Topics=requested)
    partition: Fields = answer["Topics"][0]["Partitions"][0]
    return partition


def follows(broker: Broker, controller: Broker) -> bool:
    """Return whether one of the two metadata logs contains the last 300 bytes of the other."""
    own, its = log_of(broker), log_of(controller)
    return bool(own) and (its[-300:] in own or own[-300:] in its)


def is_the_same(broker: Broker, controller: Broker) -> None:
    wait_until(lambda: follows(broker, controller), "the broker does not follow")
    own = log_of(broker)
    wait_until(lambda: own in log_of(controller), "the broker has another log")


@pytest.mark.parametrize("kinds", [(Kwire, ApacheKafka), (ApacheKafka, Kwire), (Kwire, Kwire)], ids=str)
def test_broker_replicates_the_metadata_log(kinds: tuple[type[Broker], type[Broker]]) -> None:
    controller = controller_of(kinds[0])
    broker = broker_of(kinds[1], controller, 2)
    try:
        controller.start()
        broker.start()
        create(controller, "a", 3)
        is_the_same(broker, controller)
        for port in (controller.controller_port, controller.port, broker.port):
            described = quorum(port)
            assert (described["LeaderId"], described["LeaderEpoch"]) == (1, 1)
            assert [replica["ReplicaId"] for replica in described["CurrentVoters"]] == [1]
            [observer] = described["Observers"]
            assert observer["ReplicaId"] == 2
            assert 0 < observer["LogEndOffset"] <= described["HighWatermark"]

        controller.restart()
        create(controller, "b", 3)
        is_the_same(broker, controller)
        wait_until(lambda: b'"leaderEpoch":2' in (home(broker) / "quorum-state").read_bytes(), "epoch 2")
        assert (home(broker) / "quorum-state").read_bytes() == (
            home(controller) / "quorum-state"
        ).read_bytes()

        broker.stop()
        create(controller, "c", 30)
        wait_until(lambda: any(home(controller).glob("*.checkpoint")), "the controller takes no snapshot")
        shutil.rmtree(broker.log_dir)
        format_node(broker)
        broker.start()
        is_the_same(broker, controller)
        # The broker fetched its first snapshot from the controller. It may have written a later snapshot
        # itself, with the records in another order.
        [snapshot, *_] = sorted(home(broker).glob("*.checkpoint"))
        assert log_of(broker) != log_of(controller), "it begins behind the snapshot"
        assert snapshot.read_bytes() == (home(controller) / snapshot.name).read_bytes()
        for node in (controller, broker):
            complaints = [line for line in node.log_text().splitlines() if re.search(r" (WARN|ERROR) ", line)]
            if isinstance(node, ApacheKafka):
                assert not [line for line in complaints if not EXPECTED.search(line)]
            else:
                assert not [line for line in complaints if " ERROR " in line]
    finally:
        broker.discard()
        controller.discard()
