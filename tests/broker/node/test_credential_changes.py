"""Inter-broker credentials that are wrong for a while."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from kwire.testing.simulated.node_sasl import LOGIN_MODULES
from kwire.wire.batch import build
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.node.test_cluster import CONTROLLER, VirtualCluster, broker

KEY = "listener.name.nodes.plain.sasl.jaas.config"
RIGHT = (
    f'{LOGIN_MODULES}.plain.PlainLoginModule required username="node" password="secret" user_node="secret";'
)
WRONG = f'{LOGIN_MODULES}.plain.PlainLoginModule required username="node" password="secret"'
FAULT = f"{KEY}: JAAS config entry not terminated by semi-colon"
HOSTS = {2: "two", 3: "three"}
SAID = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NODES:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "NODES",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": RIGHT,
    KEY: RIGHT,
}


class SaslCluster(VirtualCluster):
    """A controller and two brokers, 2 and 3, with SASL between the brokers."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        brokers = [broker(node_id, host) for node_id, host in HOSTS.items()]
        for each, host in zip(brokers, HOSTS.values(), strict=True):
            each["listeners"] += f",NODES://{host}:9094"
        super().__init__(*(each | SAID | dict(settings or {}) for each in (CONTROLLER, *brokers)))
        self.events.advance(2_000)

    def set_text(self, node_id: int, text: str) -> None:
        config = AlterableConfig(name=KEY, config_operation=0, value=text)
        resource = AlterConfigsResource(resource_type=4, resource_name=str(node_id), configs=[config])
        answer = self.request(HOSTS[node_id], 1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert [one.error_code for one in answer.responses] == [0]

    def offsets(self, partition: int) -> list[tuple[int, list[int]]]:
        """Return log end offset and ISR of each replica of a partition."""
        found = []
        for node_id in (2, 3):
            node = self.nodes[node_id].node
            log = node.partition("t", partition)
            assert log is not None
            in_sync = node.image.topics["t"].partitions[partition].isr
            found.append((log.log.log_end_offset, sorted(in_sync)))
        return found

    def produce(self) -> None:
        """Append to each partition through its leader."""
        for index, partition in enumerate(self.nodes[2].node.image.topics["t"].partitions):
            records = memoryview(build([(0, None, b"v", [])]))
            data = PartitionProduceData(index=index, records=records)
            topic = TopicProduceData(name="t", partition_data=[data])
            request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic])
            self.request(HOSTS[partition.leader], 12, request)


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_wrong_credentials_break_replication_until_they_are_corrected(
    restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    cluster = SaslCluster()
    for node_id in (2, 3):
        cluster.set_text(node_id, WRONG)
    cluster.create("t", by="two")
    if restarts:
        cluster.nodes[3].die()
        cluster.nodes[3].start()
        cluster.events.advance(12_000)
    cluster.produce()
    assert sorted(offset for index in (0, 1) for offset, _ in cluster.offsets(index)) == [0, 0, 1, 1]
    errors = [record.message for record in caplog.records if "configuration of this node" in record.message]
    assert errors
    assert all(text.endswith(FAULT) for text in errors)
    assert len(errors) <= 2 + restarts, "once per start"
    for node_id in (2, 3):
        cluster.set_text(node_id, RIGHT)
    cluster.events.advance(5_000)
    for index in (0, 1):
        assert cluster.offsets(index) == [(1, [2, 3])] * 2
    assert [node.fatal for node in cluster.nodes.values()] == [[]] * 3
