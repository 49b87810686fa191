"""The faults of a proxy. The imported tests are those of the faults of a broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kwire.testing import Broker, Proxy
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import Uuid
from tests.testing.peer import Peer, produce_request
from tests.testing.test_faults import code_of
from tests.testing.test_faults import (
    test_failed_produce_with_acks_0_closes_the_connection as test_failed_produce_with_acks_0,
)
from tests.testing.test_faults import (
    test_faults_match_only_the_given_topic_partition_and_client as test_filters,
)
from tests.testing.test_faults import (
    test_fetch_error_is_returned_at_once_also_within_a_fetch_session as test_fetch_error,
)
from tests.testing.test_faults import (
    test_lost_or_truncated_response_does_not_undo_the_request as test_lost_or_truncated_response,
)
from tests.testing.test_faults import test_recorder_describes_random_faults as test_random_fault
from tests.testing.test_faults import (
    test_return_error_fails_the_given_number_of_requests as test_number_of_requests,
)
from tests.testing.test_recorder import (
    test_exchange_has_decoded_fields_and_a_text_form as test_text_form,
)
from tests.testing.test_recorder import (
    test_find_filters_by_client_topic_and_partition as test_find,
)

__all__ = [
    "test_failed_produce_with_acks_0",
    "test_fetch_error",
    "test_filters",
    "test_find",
    "test_lost_or_truncated_response",
    "test_number_of_requests",
    "test_random_fault",
    "test_text_form",
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Broker]:
    with Broker({"log.retention.hours": -1}) as broker:
        yield broker


@pytest.fixture(scope="module")
def shared(upstream: Broker) -> Iterator[Proxy]:
    with Proxy(upstream.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def broker(shared: Proxy) -> Iterator[Proxy]:
    shared.requests.clear()
    yield shared
    shared.faults.clear()


def test_delayed_request_and_those_after_it_reach_the_broker_later(broker: Proxy) -> None:
    topic = broker.new_topic()
    broker.faults.delay("Produce", 0.3)
    with Peer(broker) as peer, Peer(broker) as other:
        began = time.monotonic()
        peer.send(produce_request(topic, b"first"), 9)
        peer.send(produce_request(topic, b"second"), 9)
        broker.wait_until(lambda: broker.requests.find("Produce"))
        other.request(produce_request(topic, b"of another"), 9)
        assert [one.value for one in broker.records(topic)] == [b"of another"]
        for _ in range(2):
            assert code_of(peer.receive_response(produce_request(topic), 9)) is ErrorCode.NONE
        assert time.monotonic() - began >= 0.3
    assert [one.value for one in broker.records(topic)] == [b"of another", b"first", b"second"]


def test_ignored_request_does_not_reach_the_broker_or_delay_stop(upstream: Broker) -> None:
    began = time.monotonic()
    with Proxy(upstream.bootstrap_servers) as proxy:
        topic = proxy.new_topic()
        proxy.faults.ignore("Produce")
        with Peer(proxy) as peer:
            peer.send(produce_request(topic), 9)
            proxy.wait_until(lambda: proxy.requests.find("Produce"))
            peer.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                peer.receive(1)
            assert proxy.records(topic) == []
    assert time.monotonic() - began < 5, "stop waited for the client"


UNKNOWN_ID = Uuid((7).to_bytes(16, "big"))


def produce_by_id(topic_id: Uuid) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=build([(1, None, b"v", [])]))
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])]
    )


def test_topic_filter_applies_to_a_topic_id_that_no_response_has_named(
    upstream: Broker, broker: Proxy
) -> None:
    topic, other = broker.new_topic(), broker.new_topic()
    with Peer(upstream) as direct:
        found = direct.request(
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in (topic, other)]), 12
        )
        ids = {one.name: one.topic_id for one in found.topics}
    fault = broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=None)
    with Peer(broker) as peer:
        # Pipelined: the first request waits for the name, and the second one for the first.
        for name in (other, topic, topic):
            peer.send(produce_by_id(ids[name]), 13)
        codes = [code_of(peer.receive_response(produce_by_id(ids[topic]), 13)) for _ in range(3)]
        assert codes == [ErrorCode.NONE, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2]
        unknown = peer.request(produce_by_id(UNKNOWN_ID), 13)
        assert code_of(unknown) is ErrorCode.UNKNOWN_TOPIC_ID, "an id without a name is forwarded"
    assert fault.hits == 2
    assert len(broker.requests.find("Produce", topic=topic)) == 2
    assert not broker.requests.find("Metadata"), "the look-up is not a request of the client"


def test_fetch_session_with_topic_ids_gets_the_error_for_its_partitions(broker: Proxy) -> None:
    topic = broker.new_topic()
    broker.produce(topic, "x")
    with Peer(broker) as peer:
        metadata = peer.request(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
        [topic_id] = [one.topic_id for one in metadata.topics]
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=0,
            topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
        )
        session_id = peer.request(request, 17).session_id
        fault = broker.faults.return_error("Fetch", "OFFSET_OUT_OF_RANGE", topic=topic, partition=0)
        request.topics, request.session_id, request.session_epoch = [], session_id, 1
        [found] = peer.request(request, 17).responses
    assert (found.topic_id, found.partitions[0].error_code) == (topic_id, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert fault.hits == 1
