"""OffsetFetch requests for many partitions, which the broker handles in slices."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.groups import offsets
from kwire.broker.api.request.slices import LARGE_REQUEST_BYTES, SLICE_PARTITIONS, InSlices
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kwire.wire.primitives import Uuid
from kwire.wire.registry import RequestHeader, decode_response, encode_request
from tests.node_harness import NodeHarness

COMMITTED = 3
PARTITIONS = 10_000
FIRST_VERSION_WITH_STABLE = 7
FIRST_VERSION_WITH_GROUPS = 8


@pytest.fixture
def broker() -> NodeHarness:
    """Return a broker with the offsets 10, 11 and 12 of group g in topic a."""
    harness = NodeHarness()
    harness.create("a", "b", partitions=COMMITTED)
    for _ in range(2):  # the first call creates the topic of the group coordinator
        harness.call(3, FindCoordinatorRequest(key="g", key_type=0))
    commit(harness, *range(10, 10 + COMMITTED))
    return harness


def commit(broker: NodeHarness, *offsets: int) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in enumerate(offsets)
    ]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="a", partitions=partitions)],
    )
    response = broker.call(8, request)
    assert {one.error_code for one in response.topics[0].partitions} == {0}


def offset_fetch(broker: NodeHarness, version: int, *topics: tuple[str, range]) -> OffsetFetchRequest:
    if version < FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchRequest(
            group_id="g",
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=list(indexes))
                for name, indexes in topics
            ],
        )
    named = [
        OffsetFetchRequestTopics(name=name, topic_id=id_of(broker, name), partition_indexes=list(indexes))
        for name, indexes in topics
    ]
    groups = [
        OffsetFetchRequestGroup(group_id="g", topics=None),
        OffsetFetchRequestGroup(group_id="g", topics=named),
        OffsetFetchRequestGroup(group_id="no such group", topics=named[:1]),
    ]
    return OffsetFetchRequest(groups=groups)


def id_of(broker: NodeHarness, name: str) -> Uuid:
    topic = broker.node.image.topics.get(name)
    return Uuid(name.encode().ljust(16)) if topic is None else topic.topic_id


def begin(broker: NodeHarness, client: VirtualClient, version: int, request: Any) -> None:
    """Let the broker handle the first slice of a large request, without the other turns of its loop."""
    data = memoryview(bytearray(encode_request(request, version, 1, "me")))[4:]
    assert len(data) > LARGE_REQUEST_BYTES
    broker.node.handle_frame(client.channel, data)
    assert not client.channel.slots[-1].completed


def response_bytes(broker: NodeHarness, version: int, request: Any) -> bytes:
    client = broker.connect()
    client.send(version, request)
    broker.turn()  # with require_stable, the response waits for the end of a turn
    return client.take_bytes()


@pytest.mark.parametrize("has_coordinator", [True, False])
@pytest.mark.parametrize("require_stable", [False, True])
@pytest.mark.parametrize("version", [1, 2, 7, 8, 10])
def test_response_in_slices_is_the_response_at_once(
    broker: NodeHarness,
    version: int,
    require_stable: bool,
    has_coordinator: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_coordinator:
        broker = NodeHarness()
    topics = [("a", range(PARTITIONS)), ("b", range(0)), ("no such topic", range(5)), ("a", range(2))]
    request = offset_fetch(broker, version, *topics)
    request.require_stable = require_stable and version >= FIRST_VERSION_WITH_STABLE
    found = response_bytes(broker, version, request)
    monkeypatch.setattr("kwire.broker.api.request.slices.LARGE_REQUEST_BYTES", 1 << 30)
    assert found == response_bytes(broker, version, request)
    _, response = decode_response(OffsetFetchResponse, version, found[4:])
    group = response.groups[1] if response.groups else response
    partitions = [one for topic in group.topics for one in topic.partitions]
    if has_coordinator:
        assert [one.committed_offset for one in partitions[: COMMITTED + 1]] == [10, 11, 12, -1]
    else:
        codes = {group.error_code, *(one.error_code for one in partitions)} - {0}
        assert codes <= {ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_TOPIC_ID}


def test_commit_during_a_large_offset_fetch_does_not_change_its_response(broker: NodeHarness) -> None:
    client = broker.connect()
    version = 7
    begin(broker, client, version, offset_fetch(broker, version, ("a", range(PARTITIONS - 1, -1, -1))))
    while not client.channel.slots[-1].request:
        broker.host.events.soon.popleft()()
    broker.host.events.soon.popleft()()
    assert not client.channel.slots[-1].completed
    commit(broker, *range(20, 20 + COMMITTED))
    broker.turn()
    found = client.receive(version, OffsetFetchRequest).topics[0].partitions
    assert [one.committed_offset for one in found[-COMMITTED:]] == [12, 11, 10]


def test_groups_of_a_large_offset_fetch_are_in_several_slices(broker: NodeHarness) -> None:
    """The response has three entries for each group: the group, a topic and a partition."""
    groups = 1_000
    topics = [OffsetFetchRequestTopics(name="a", partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=f"g{number}", topics=topics) for number in range(groups)]
    )
    header = RequestHeader(ApiKey.OFFSET_FETCH, FIRST_VERSION_WITH_GROUPS, 1, "me")
    context = broker.connect().channel.open_slot(header, 0, LARGE_REQUEST_BYTES + 1)
    large = offsets.offset_fetch(broker.node, context, request)
    assert isinstance(large, InSlices)
    slices = sum(1 for _ in large.steps)
    assert slices == groups // SLICE_PARTITIONS + 3 * groups // SLICE_PARTITIONS
