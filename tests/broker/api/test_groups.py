"""Requests of groups in old versions, as frames against a whole node: what other versions put elsewhere."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from kwire.broker.api.context import Channel
from kwire.broker.config import load
from kwire.broker.node.node import Node
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual import VirtualHost
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.delete_groups import DeleteGroupsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kwire.wire.messages.leave_group import LeaveGroupRequest
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kwire.wire.primitives import Uuid
from kwire.wire.registry import decode_response, encode_request

PROPERTIES = {
    "log.dirs": "/data",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "3000",
}

DELAY_MS = 3_000
"""group.initial.rebalance.delay.ms, as it is by default where there is a properties file."""

PROTOCOLS = [JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")]


class Client:
    """A connection to a node on virtual time: to one of its own, or to that of another client."""

    def __init__(self, other: Client | None = None) -> None:
        self.host: VirtualHost = VirtualHost(seed=1) if other is None else other.host
        self.node: Node = self._start() if other is None else other.node
        self._channel = Channel(
            1, peer_host="127.0.0.1", listener="PLAINTEXT", on_ready=lambda _channel: None
        )
        self._ids = count(1)

    def _start(self) -> Node:
        config = load(None, {}, PROPERTIES)
        node = Node(config, self.host, MemoryDisk())
        self.host.end_turn = node.end_turn
        node.start()
        return node

    def send(self, version: int, request: Any) -> None:
        """Send a request, and let everything happen that takes no time."""
        frame = encode_request(request.API_KEY, version, next(self._ids), "me", request)
        self.node.handle_frame(self._channel, memoryview(frame)[4:])
        self.node.end_turn()
        self.host.run_pending()

    def receive(self, version: int, request_class: Any) -> Any:
        """The answer to the request that was sent; None while there is none."""
        frame = b"".join(bytes(piece) for piece in self._channel.take_ready())  # type: ignore[arg-type]
        return decode_response(request_class.API_KEY, version, frame[4:])[1] if frame else None

    def call(self, version: int, request: Any) -> Any:
        self.send(version, request)
        answer = self.receive(version, type(request))
        assert answer is not None
        return answer


@pytest.fixture
def stranger() -> Client:
    """A client of a cluster that has no offsets topic yet."""
    return Client()


@pytest.fixture
def client(stranger: Client) -> Client:
    """A client of a cluster that has the topic `t` with two partitions, and coordinates groups."""
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    assert stranger.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1)).topics[0].error_code == 0
    find(stranger, 0)
    assert find(stranger, 0).error_code == 0
    return stranger


def find(client: Client, version: int, key_type: int = 0) -> Any:
    if version >= 4:
        return client.call(version, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]))
    return client.call(version, FindCoordinatorRequest(key="g", key_type=key_type))


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        # Ignored in version 0.
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=PROTOCOLS,
    )


def join(client: Client, version: int) -> Any:
    """Join an empty group in a version that needs no id first."""
    client.send(version, join_request())
    assert client.receive(version, JoinGroupRequest) is None
    client.host.advance(DELAY_MS)
    return client.receive(version, JoinGroupRequest)


def commit(client: Client, version: int, offsets: dict[str, list[int]], **fields: Any) -> dict[str, Any]:
    """Commit offset 7 for partitions of topics: the error of each, in the order of the answer."""
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=7, committed_metadata="m"
                )
                for index in indexes
            ],
        )
        for name, indexes in offsets.items()
    ]
    request = OffsetCommitRequest(**{"group_id": "g", "member_id": "", "topics": topics, **fields})
    answer = client.call(version, request)
    return {
        topic.name: [(one.partition_index, one.error_code) for one in topic.partitions]
        for topic in answer.topics
    }


def fetch_one(client: Client, version: int, index: int) -> Any:
    """OffsetFetch of one partition of `t`, before v8."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[index])]
    answer = client.call(version, OffsetFetchRequest(group_id="g", topics=topics))
    return answer, answer.topics[0].partitions[0] if answer.topics else None


@pytest.mark.parametrize("version", range(4))
def test_find_coordinator_before_v4(stranger: Client, version: int) -> None:
    # The first question makes the topic, the next one is answered.
    assert find(stranger, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    found = find(stranger, version)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9092)
    assert found.error_message == ("NONE" if version else "")


@pytest.mark.parametrize("version", range(1, 4))
def test_find_coordinator_of_what_is_not_coordinated(client: Client, version: int) -> None:
    answers = [find(client, version, kind) for kind in (1, 2, 9)]
    assert [answer.error_code for answer in answers] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answers[0].error_message == "The coordinator is not available."
    assert answers[1].error_message.startswith("This most likely occurs because of a request being malformed")
    assert {(answer.node_id, answer.host, answer.port) for answer in answers} == {(-1, "", -1)}


def test_find_coordinator_of_many_keys_has_a_message_only_for_kinds_that_nobody_knows(client: Client) -> None:
    messages = {kind: find(client, 4, kind).coordinators[0].error_message for kind in (0, 1, 2, 9)}
    assert [bool(message) for message in messages.values()] == [False, False, False, True]


@pytest.mark.parametrize("version", range(4))
def test_join_group_before_v4_needs_no_member_id_first(client: Client, version: int) -> None:
    joined = join(client, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("me-")
    assert [bytes(member.metadata) for member in joined.members] == [PROTOCOLS[0].metadata]


def test_join_group_v0_rebalances_within_the_session_timeout(client: Client) -> None:
    join(client, 0)
    second = Client(client)
    second.send(0, join_request())
    client.host.advance(9_999)
    assert second.receive(0, JoinGroupRequest) is None
    client.host.advance(1)
    assert second.receive(0, JoinGroupRequest).generation_id == 2


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_a_refused_join_names_no_protocol(client: Client, version: int, name: str | None) -> None:
    assert client.call(version, join_request()).protocol_name == name
    assert client.call(version, join_request("stranger")).protocol_name == name


def test_one_member_in_the_first_versions(client: Client) -> None:
    joined = join(client, 0)
    member = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    given = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    assert bytes(client.call(0, SyncGroupRequest(**member, assignments=given)).assignment) == b"all"
    assert client.call(0, HeartbeatRequest(**member)).error_code == 0
    leave = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
    assert [client.call(0, leave).error_code for _ in range(2)] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert client.call(0, DescribeGroupsRequest(groups=["g"])).groups[0].group_state == "Empty"
    assert client.call(0, DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
    assert client.call(0, DescribeGroupsRequest(groups=["g"])).groups[0].group_state == "Dead"


def test_offset_fetch_v1_tells_what_is_wrong_at_the_partitions(stranger: Client) -> None:
    assert fetch_one(stranger, 1, 0)[1].error_code == ErrorCode.NOT_COORDINATOR
    answer, partition = fetch_one(stranger, 2, 0)
    assert (answer.error_code, partition) == (ErrorCode.NOT_COORDINATOR, None)


def test_offset_commit_v2_and_offset_fetch_v1(client: Client) -> None:
    assert commit(client, 2, {"t": [0]}) == {"t": [(0, 0)]}
    committed, nothing = (fetch_one(client, 1, index)[1] for index in (0, 1))
    assert (committed.committed_offset, committed.metadata, committed.error_code) == (7, "m", 0)
    assert (nothing.committed_offset, nothing.metadata, nothing.error_code) == (-1, "", 0)


def test_offset_commit_v2_keeps_offsets_as_long_as_it_was_asked_to(client: Client) -> None:
    commit(client, 2, {"t": [0]}, retention_time_ms=1_000)
    commit(client, 2, {"t": [1]})
    client.host.advance(client.node.config.offsets_retention_check_interval_ms)
    assert [fetch_one(client, 1, index)[1].committed_offset for index in (0, 1)] == [-1, 7]


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("m" * 4096, ErrorCode.NONE),
        ("m" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4096, ErrorCode.NONE),
        ("\U0001d11e" * 2048, ErrorCode.NONE),
        ("\U0001d11e" * 2048 + "m", ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_the_metadata_of_an_offset_is_measured_as_java_does(
    client: Client, metadata: str, code: ErrorCode
) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=metadata
    )
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = client.call(8, OffsetCommitRequest(group_id="g", member_id="", topics=topics))
    assert answer.topics[0].partitions[0].error_code == code


def test_what_does_not_exist_is_told_in_its_place_in_the_answer_to_a_commit(client: Client) -> None:
    assert commit(client, 2, {"t": [0, 9, 1], "nowhere": [0], "empty": []}) == {
        "t": [(0, 0), (9, 3), (1, 0)],
        "nowhere": [(0, 3)],
        "empty": [],
    }
    assert commit(client, 2, {"t": []}) == {"t": []}
    # The group's own error is told of those partitions only that exist.
    refused = commit(client, 2, {"t": [0, 9]}, group_id="unknown", generation_id_or_member_epoch=1)
    assert refused == {"t": [(0, ErrorCode.ILLEGAL_GENERATION), (9, 3)]}


def test_what_does_not_exist_is_told_in_the_answer_to_a_deletion(client: Client) -> None:
    commit(client, 2, {"t": [0]})
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=one) for one in indexes]
        )
        for name, indexes in (("t", [0, 9]), ("nowhere", [1]))
    ]
    answer = client.call(0, OffsetDeleteRequest(group_id="g", topics=topics))
    assert [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in answer.topics
    ] == [("t", [(0, 0), (9, 3)]), ("nowhere", [(1, 3)])]


def test_topics_that_no_id_names_are_told_in_the_answer_to_a_fetch(client: Client) -> None:
    known, unknown = client.node.image.topics["t"].topic_id, Uuid(bytes(15) + b"\7")
    topics = [OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in (unknown, known)]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
    answer = client.call(10, OffsetFetchRequest(groups=groups)).groups[0]
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in answer.topics] == [
        (unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        (known, 0),
    ]
