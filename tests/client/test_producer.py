"""Retries of a producer."""

from __future__ import annotations

import pytest

from kwire.client.producer import TopicProducer
from kwire.testing import Broker
from tests.client.clients import connect_cluster


@pytest.mark.parametrize("idempotent", [True, False])
def test_lost_response_duplicates_records_only_without_a_producer_id(
    broker: Broker, idempotent: bool
) -> None:
    topic = broker.new_topic()
    with connect_cluster(broker.bootstrap_servers) as cluster:
        sending = TopicProducer(cluster, topic, idempotent=idempotent)
        broker.faults.drop_response("Produce", topic=topic)
        sending.send({0: [(1, None, b"first", [])]})
        sending.send({0: [(1, None, b"then", [])]})
    times = 1 if idempotent else 2
    assert [one.value for one in broker.records(topic)] == [b"first"] * times + [b"then"]
