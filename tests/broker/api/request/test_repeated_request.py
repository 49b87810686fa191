"""Identical heartbeats: the shortcut and the full handling have the same effects and responses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.api.request.audit_log import AuditLog
from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.repeated_request import MAX_REPEATED_BYTES, RepeatedRequest
from kwire.broker.node.node import Node
from kwire.host.loggers import AUDIT_LOGGER
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, RequestTopicPartitions
from kwire.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.join_group import JoinGroupRequest
from kwire.wire.messages.leave_group import LeaveGroupRequest
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kwire.wire.registry import RequestHeader, encode_request
from tests.broker.api.groups.client import Client, join, join_request
from tests.node_harness import NodeHarness

GROUP_RESOURCE = 32


class HeartbeatingMember:
    """A member that repeats one heartbeat, and the number of heartbeats with full handling."""

    def __init__(self, client: Client, version: int, request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self._version = version
        self.request = request
        self.full_requests = 0
        groups = client.node.groups
        monkeypatch.setattr(groups, "heartbeat", self._counted(groups.heartbeat))
        monkeypatch.setattr(groups, "consumer_heartbeat", self._counted(groups.consumer_heartbeat))

    def _counted(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        def handled(*arguments: Any) -> Any:
            self.full_requests += 1
            return handle(*arguments)

        return handled

    def heartbeat(self) -> tuple[Any, bool]:
        """Return the response, and whether the broker handled the request fully."""
        before = self.full_requests
        return self.client.call(self._version, self.request), self.full_requests > before


def join_heartbeat(member_id: str, **subscribed: Any) -> ConsumerGroupHeartbeatRequest:
    """Return the first heartbeat of a member of group `g`, which owns nothing yet. KIP-848."""
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topic_partitions=[],
        **subscribed,
    )


@pytest.fixture
def client() -> Client:
    client = Client()
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    client.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1))
    for _ in range(2):
        client.call(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        client.host.advance(1_000)
    return client


@pytest.fixture
def classic(client: Client, monkeypatch: pytest.MonkeyPatch) -> HeartbeatingMember:
    """Return the only member of a group, with a session timeout of ten seconds."""
    member_id = join(client, 3).member_id
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")]
    fields = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    assert client.call(3, SyncGroupRequest(**fields, assignments=assignments)).error_code == 0
    member = HeartbeatingMember(client, 3, HeartbeatRequest(**fields), monkeypatch)
    assert [member.heartbeat()[1] for _ in range(3)] == [True, False, False]
    return member


@pytest.fixture
def consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> HeartbeatingMember:
    """Return the only member of a consumer group (KIP-848), with a session timeout of 45 seconds."""
    joined = client.call(1, join_heartbeat("m", subscribed_topic_names=["t"]))
    owned = [
        RequestTopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
        for topic in joined.assignment.topic_partitions
    ]
    fields = {"group_id": "g", "member_id": "m", "member_epoch": joined.member_epoch}
    assert client.call(1, ConsumerGroupHeartbeatRequest(**fields, topic_partitions=owned)).error_code == 0
    member = HeartbeatingMember(client, 1, ConsumerGroupHeartbeatRequest(**fields), monkeypatch)
    assert [member.heartbeat()[1] for _ in range(3)] == [True, False, False]
    return member


@pytest.mark.parametrize(("kind", "step_ms"), [("classic", 9_999), ("consumer", 44_999)])
def test_repeated_heartbeats_keep_the_session_and_get_the_same_response(
    kind: str, step_ms: int, request: pytest.FixtureRequest
) -> None:
    member: HeartbeatingMember = request.getfixturevalue(kind)
    responses = []
    for _ in range(20):
        member.client.host.advance(step_ms)
        response, was_full = member.heartbeat()
        assert not was_full
        responses.append(response)
    assert responses[0].error_code == ErrorCode.NONE
    assert all(response == responses[0] for response in responses)
    member.client.host.advance(step_ms + 1)
    assert member.heartbeat()[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_repeated_heartbeat_returns_rebalance_in_progress(classic: HeartbeatingMember) -> None:
    second = Client(classic.client)
    second.send(3, join_request())
    assert classic.heartbeat()[0].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    # A heartbeat that returned an error is never repeated by the shortcut.
    response, was_full = classic.heartbeat()
    assert (response.error_code, was_full) == (ErrorCode.REBALANCE_IN_PROGRESS, True)
    classic.client.send(3, join_request(classic.request.member_id))
    assert classic.client.receive(3, JoinGroupRequest).generation_id == 2
    assert classic.heartbeat()[0].error_code == ErrorCode.ILLEGAL_GENERATION


def test_a_repeated_heartbeat_returns_illegal_generation(classic: HeartbeatingMember) -> None:
    member_id = classic.request.member_id
    assert classic.client.call(3, join_request(member_id)).generation_id == 2
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")]
    sync = SyncGroupRequest(group_id="g", member_id=member_id, generation_id=2, assignments=assignments)
    assert classic.client.call(3, sync).error_code == ErrorCode.NONE
    response, was_full = classic.heartbeat()
    assert (response.error_code, was_full) == (ErrorCode.ILLEGAL_GENERATION, True)


def test_a_repeated_heartbeat_of_a_removed_member_is_an_error(classic: HeartbeatingMember) -> None:
    leave = LeaveGroupRequest(group_id="g", member_id=classic.request.member_id)
    assert Client(classic.client).call(0, leave).error_code == ErrorCode.NONE
    assert classic.heartbeat()[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_repeated_heartbeat_returns_not_coordinator(kind: str, request: pytest.FixtureRequest) -> None:
    member: HeartbeatingMember = request.getfixturevalue(kind)
    for index in range(2):
        member.client.node.groups.resigned(index, 0)
    assert member.heartbeat()[0].error_code == ErrorCode.NOT_COORDINATOR
    # The channel holds no reference to the former coordinator.
    assert member.client.channel.repeated_request is None


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_changed_heartbeat_is_a_full_request(kind: str, request: pytest.FixtureRequest) -> None:
    member: HeartbeatingMember = request.getfixturevalue(kind)
    original = member.request
    field = "generation_id" if kind == "classic" else "member_epoch"
    member.request = type(original)(group_id="g", member_id=original.member_id, **{field: 77})
    expected = ErrorCode.ILLEGAL_GENERATION if kind == "classic" else ErrorCode.FENCED_MEMBER_EPOCH
    assert member.heartbeat() == (member.heartbeat()[0], True)
    assert member.heartbeat()[0].error_code == expected
    # A request that failed does not replace the remembered one.
    member.request = original
    response, was_full = member.heartbeat()
    assert (response.error_code, was_full) == (ErrorCode.NONE, False)


def test_a_repeated_heartbeat_returns_new_partitions(consumer: HeartbeatingMember) -> None:
    topics = [CreatePartitionsTopic(name="t", count=3, assignments=None)]
    Client(consumer.client).call(3, CreatePartitionsRequest(topics=topics, timeout_ms=1_000))
    consumer.client.host.advance(1_000)
    response, was_full = consumer.heartbeat()
    assert was_full
    assert response.member_epoch == consumer.request.member_epoch + 1
    assert [topic.partitions for topic in response.assignment.topic_partitions] == [[0, 1, 2]]


def test_a_repeated_heartbeat_returns_a_new_assignment(consumer: HeartbeatingMember) -> None:
    second = Client(consumer.client)
    consumer.client.host.advance(1_000)
    assert second.call(1, join_heartbeat("n", subscribed_topic_names=["t"])).error_code == ErrorCode.NONE
    response, was_full = consumer.heartbeat()
    assert was_full
    assert sum(len(topic.partitions) for topic in response.assignment.topic_partitions) == 1


def test_a_repeated_heartbeat_waits_for_pending_group_writes(consumer: HeartbeatingMember) -> None:
    client, node = consumer.client, consumer.client.node
    other = Client(client)
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    commit = OffsetCommitRequest(
        group_id="g",
        member_id="m",
        generation_id_or_member_epoch=consumer.request.member_epoch,
        topics=topics,
    )
    node.handle_frame(other.channel, memoryview(encode_request(commit, 9, 1, "me"))[4:])
    frame = encode_request(consumer.request, 1, 2, "me")
    node.handle_frame(client.channel, memoryview(frame)[4:])
    assert client.receive(1, ConsumerGroupHeartbeatRequest) is None
    node.end_turn()
    client.host.run_pending()
    assert client.receive(1, ConsumerGroupHeartbeatRequest).error_code == ErrorCode.NONE
    assert other.receive(9, OffsetCommitRequest).topics[0].partitions[0].error_code == ErrorCode.NONE


def test_heartbeats_are_full_requests_in_a_group_with_a_regex(consumer: HeartbeatingMember) -> None:
    second = Client(consumer.client)
    assert (
        second.call(1, join_heartbeat("n", subscribed_topic_regex="nothing.*")).error_code == ErrorCode.NONE
    )
    for _ in range(5):
        consumer.client.host.advance(1_000)
        response, was_full = consumer.heartbeat()
        assert (response.error_code, was_full) == (ErrorCode.NONE, True)
        fields = {"group_id": "g", "member_id": "m", "member_epoch": response.member_epoch}
        consumer.request = ConsumerGroupHeartbeatRequest(**fields)


def test_changed_group_settings_apply_at_once(consumer: HeartbeatingMember) -> None:
    config = AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=0, value="7000")
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name="g", configs=[config])
    altered = Client(consumer.client).call(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert altered.responses[0].error_code == ErrorCode.NONE
    response, was_full = consumer.heartbeat()
    assert (response.heartbeat_interval_ms, was_full) == (7_000, True)
    assert [
        heartbeat.heartbeat_interval_ms for heartbeat, _ in (consumer.heartbeat(), consumer.heartbeat())
    ] == [7_000, 7_000]


def test_a_repeated_heartbeat_is_answered_after_a_long_poll(classic: HeartbeatingMember) -> None:
    client = classic.client
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0)])]
    poll = FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=1 << 20, topics=topics)
    client.send(4, poll)
    client.send(3, classic.request)
    # The heartbeat completed the waiting fetch, whose response comes first.
    frames = b"".join(bytes(piece) for piece in client.channel.take_ready())  # type: ignore[arg-type]
    size = int.from_bytes(frames[:4], "big")
    ids = [int.from_bytes(frames[at : at + 4], "big") for at in (4, 4 + size + 4)]
    assert ids[1] == ids[0] + 1
    assert classic.heartbeat() == (classic.heartbeat()[0], False)


def test_describing_the_group_keeps_the_heartbeat_repeatable(classic: HeartbeatingMember) -> None:
    described = classic.client.call(0, DescribeGroupsRequest(groups=["g"])).groups[0]
    assert described.group_state == "Stable"
    assert classic.heartbeat()[1] is False


def test_a_frame_with_any_difference_is_not_a_repetition() -> None:
    request = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    frame = bytes(encode_request(request, 3, 5, "me"))[4:]
    calls = 0

    def again() -> bool:
        nonlocal calls
        calls += 1
        return True

    response = b"\0\0\0\x0a\0\0\0\5answer"
    header = RequestHeader(ApiKey.HEARTBEAT, 3, 5, "me")
    repeated = RepeatedRequest(header, frame, response, again, NodeHarness().node.gate)
    assert repeated.respond(memoryview(frame)) == b"\0\0\0\x0a\0\0\0\5answer"
    other_id = frame[:4] + b"\1\2\3\4" + frame[8:]
    assert repeated.respond(memoryview(other_id)) == b"\0\0\0\x0a\1\2\3\4answer"
    assert calls == 2
    for at in (*range(4), *range(8, len(frame))):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        assert repeated.respond(memoryview(changed)) is None
    for other in (frame + b"\0", frame[:-1], frame[:7], b""):
        assert repeated.respond(memoryview(other)) is None
    assert calls == 2


def test_the_audit_log_has_repeated_requests(caplog: pytest.LogCaptureFixture) -> None:
    request = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    frame = bytes(encode_request(request, 3, 5, "me"))[4:]
    header = RequestHeader(ApiKey.HEARTBEAT, 3, 5, "me")
    harness = NodeHarness()
    audit_log = harness.node.gate.audit_log = AuditLog(harness.host)
    response = b"\0\0\0\x0a\0\0\0\5answer"
    repeated = RepeatedRequest(header, frame, response, lambda: True, harness.node.gate, checks=2)
    assert repeated.respond(memoryview(frame)) == response
    assert audit_log.recorded == 2
    caplog.set_level(logging.DEBUG, AUDIT_LOGGER)
    assert repeated.respond(memoryview(frame)) == b"", "the request is handled, and so logged"


def test_long_requests_are_not_remembered(classic: HeartbeatingMember) -> None:
    def send(tag_bytes: int) -> int:
        frame = bytearray(encode_request(classic.request, 4, 9, "me"))[4:]
        # The header and the body each end with their number of tagged fields, 0. Add one to the body.
        assert frame[-1] == 0
        frame[-1:] = b"\1\7" + bytes([0x80 | tag_bytes & 0x7F, tag_bytes >> 7]) + bytes(tag_bytes)
        classic.client.node.handle_frame(classic.client.channel, memoryview(frame))
        assert classic.client.receive(4, HeartbeatRequest).error_code == ErrorCode.NONE
        return len(frame)

    for tag_bytes, full_requests in ((MAX_REPEATED_BYTES, 2), (MAX_REPEATED_BYTES // 2, 1)):
        before = classic.full_requests
        sizes = {send(tag_bytes) for _ in range(2)}
        assert (min(sizes) > MAX_REPEATED_BYTES) == (full_requests == 2)
        assert classic.full_requests - before == full_requests


def test_a_closed_channel_drops_its_repeated_request(classic: HeartbeatingMember) -> None:
    channel: Channel = classic.client.channel
    node: Node = classic.client.node
    assert channel.repeated_request is not None
    node.channel_closed(channel)
    assert channel.repeated_request is None
