"""Heartbeats that come in the same words each time: what they do and get, by the short way and the long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.repeated_request import MAX_REPEATED_BYTES, RepeatedRequest
from kwire.broker.node.node import Node
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

GROUP_RESOURCE = 32


class Beating:
    """A member that sends the same heartbeat each time, and how often the broker looked at it closely."""

    def __init__(self, client: Client, version: int, request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self._version = version
        self.request = request
        self.looks = 0
        groups = client.node.groups
        monkeypatch.setattr(groups, "heartbeat", self._counted(groups.heartbeat))
        monkeypatch.setattr(groups, "consumer_heartbeat", self._counted(groups.consumer_heartbeat))

    def _counted(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        def handled(*arguments: Any) -> Any:
            self.looks += 1
            return handle(*arguments)

        return handled

    def beat(self) -> tuple[Any, bool]:
        """The answer, and whether it took a close look."""
        before = self.looks
        return self.client.call(self._version, self.request), self.looks > before


def joining(member_id: str, **subscribed: Any) -> ConsumerGroupHeartbeatRequest:
    """The first heartbeat of a member of the group `g`, which owns nothing yet. KIP-848."""
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
def classic(client: Client, monkeypatch: pytest.MonkeyPatch) -> Beating:
    """The one member of a group, with a session of ten seconds."""
    member_id = join(client, 3).member_id
    given = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")]
    member = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    assert client.call(3, SyncGroupRequest(**member, assignments=given)).error_code == 0
    beating = Beating(client, 3, HeartbeatRequest(**member), monkeypatch)
    assert [beating.beat()[1] for _ in range(3)] == [True, False, False]
    return beating


@pytest.fixture
def consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> Beating:
    """The one member of a group of KIP-848, with a session of 45 seconds."""
    joined = client.call(1, joining("m", subscribed_topic_names=["t"]))
    has = [
        RequestTopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
        for topic in joined.assignment.topic_partitions
    ]
    told = {"group_id": "g", "member_id": "m", "member_epoch": joined.member_epoch}
    assert client.call(1, ConsumerGroupHeartbeatRequest(**told, topic_partitions=has)).error_code == 0
    beating = Beating(client, 1, ConsumerGroupHeartbeatRequest(**told), monkeypatch)
    assert [beating.beat()[1] for _ in range(3)] == [True, False, False]
    return beating


@pytest.mark.parametrize(("kind", "step_ms"), [("classic", 9_999), ("consumer", 44_999)])
def test_they_keep_the_session_alive_and_get_the_same_answer(
    kind: str, step_ms: int, request: pytest.FixtureRequest
) -> None:
    beating: Beating = request.getfixturevalue(kind)
    answers = []
    for _ in range(20):
        beating.client.host.advance(step_ms)
        answer, looked = beating.beat()
        assert not looked
        answers.append(answer)
    assert answers[0].error_code == ErrorCode.NONE
    assert all(answer == answers[0] for answer in answers)
    beating.client.host.advance(step_ms + 1)
    assert beating.beat()[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_they_learn_of_a_rebalance(classic: Beating) -> None:
    second = Client(classic.client)
    second.send(3, join_request())
    assert classic.beat()[0].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    # One that is told to do something is looked at each time.
    answer, looked = classic.beat()
    assert (answer.error_code, looked) == (ErrorCode.REBALANCE_IN_PROGRESS, True)
    classic.client.send(3, join_request(classic.request.member_id))
    assert classic.client.receive(3, JoinGroupRequest).generation_id == 2
    assert classic.beat()[0].error_code == ErrorCode.ILLEGAL_GENERATION


def test_they_learn_of_a_rebalance_that_is_over_already(classic: Beating) -> None:
    member_id = classic.request.member_id
    assert classic.client.call(3, join_request(member_id)).generation_id == 2
    given = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")]
    sync = SyncGroupRequest(group_id="g", member_id=member_id, generation_id=2, assignments=given)
    assert classic.client.call(3, sync).error_code == ErrorCode.NONE
    answer, looked = classic.beat()
    assert (answer.error_code, looked) == (ErrorCode.ILLEGAL_GENERATION, True)


def test_they_learn_that_somebody_else_took_them_out(classic: Beating) -> None:
    leave = LeaveGroupRequest(group_id="g", member_id=classic.request.member_id)
    assert Client(classic.client).call(0, leave).error_code == ErrorCode.NONE
    assert classic.beat()[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_they_learn_that_the_coordinator_is_elsewhere(kind: str, request: pytest.FixtureRequest) -> None:
    beating: Beating = request.getfixturevalue(kind)
    for index in range(2):
        beating.client.node.groups.resigned(index, 0)
    assert beating.beat()[0].error_code == ErrorCode.NOT_COORDINATOR
    # Nothing of the coordinator that was is kept alive.
    assert beating.client.channel.repeated_request is None


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_other_words_are_other_requests(kind: str, request: pytest.FixtureRequest) -> None:
    beating: Beating = request.getfixturevalue(kind)
    known = beating.request
    field = "generation_id" if kind == "classic" else "member_epoch"
    beating.request = type(known)(group_id="g", member_id=known.member_id, **{field: 77})
    expected = ErrorCode.ILLEGAL_GENERATION if kind == "classic" else ErrorCode.FENCED_MEMBER_EPOCH
    assert beating.beat() == (beating.beat()[0], True)
    assert beating.beat()[0].error_code == expected
    # What was refused is not what is remembered.
    beating.request = known
    answer, looked = beating.beat()
    assert (answer.error_code, looked) == (ErrorCode.NONE, False)


def test_they_learn_of_more_partitions(consumer: Beating) -> None:
    topics = [CreatePartitionsTopic(name="t", count=3, assignments=None)]
    Client(consumer.client).call(3, CreatePartitionsRequest(topics=topics, timeout_ms=1_000))
    consumer.client.host.advance(1_000)
    answer, looked = consumer.beat()
    assert looked
    assert answer.member_epoch == consumer.request.member_epoch + 1
    assert [topic.partitions for topic in answer.assignment.topic_partitions] == [[0, 1, 2]]


def test_they_learn_of_another_member(consumer: Beating) -> None:
    second = Client(consumer.client)
    consumer.client.host.advance(1_000)
    assert second.call(1, joining("n", subscribed_topic_names=["t"])).error_code == ErrorCode.NONE
    answer, looked = consumer.beat()
    assert looked
    assert sum(len(topic.partitions) for topic in answer.assignment.topic_partitions) == 1


def test_they_wait_until_what_was_decided_before_is_stored(consumer: Beating) -> None:
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


def test_where_expressions_are_looked_at_again_each_heartbeat_is(consumer: Beating) -> None:
    second = Client(consumer.client)
    assert second.call(1, joining("n", subscribed_topic_regex="nothing.*")).error_code == ErrorCode.NONE
    for _ in range(5):
        consumer.client.host.advance(1_000)
        answer, looked = consumer.beat()
        assert (answer.error_code, looked) == (ErrorCode.NONE, True)
        told = {"group_id": "g", "member_id": "m", "member_epoch": answer.member_epoch}
        consumer.request = ConsumerGroupHeartbeatRequest(**told)


def test_the_group_s_settings_hold_at_once(consumer: Beating) -> None:
    config = AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=0, value="7000")
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name="g", configs=[config])
    altered = Client(consumer.client).call(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert altered.responses[0].error_code == ErrorCode.NONE
    answer, looked = consumer.beat()
    assert (answer.heartbeat_interval_ms, looked) == (7_000, True)
    assert [beat.heartbeat_interval_ms for beat, _ in (consumer.beat(), consumer.beat())] == [7_000, 7_000]


def test_they_wait_for_their_turn_behind_a_long_poll(classic: Beating) -> None:
    client = classic.client
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0)])]
    poll = FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=1 << 20, topics=topics)
    client.send(4, poll)
    client.send(3, classic.request)
    # The poll was ended by what came behind it, and is answered first.
    frames = b"".join(bytes(piece) for piece in client.channel.take_ready())  # type: ignore[arg-type]
    size = int.from_bytes(frames[:4], "big")
    ids = [int.from_bytes(frames[at : at + 4], "big") for at in (4, 4 + size + 4)]
    assert ids[1] == ids[0] + 1
    assert classic.beat() == (classic.beat()[0], False)


def test_an_administrator_sees_the_group_as_before(classic: Beating) -> None:
    described = classic.client.call(0, DescribeGroupsRequest(groups=["g"])).groups[0]
    assert described.group_state == "Stable"
    assert classic.beat()[1] is False


def test_a_frame_that_differs_anywhere_is_another_one() -> None:
    request = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    frame = bytes(encode_request(request, 3, 5, "me"))[4:]
    done = 0

    def again() -> bool:
        nonlocal done
        done += 1
        return True

    repeated = RepeatedRequest(
        RequestHeader(ApiKey.HEARTBEAT, 3, 5, "me"), frame, b"\0\0\0\x0a\0\0\0\5answer", again
    )
    assert repeated.respond(memoryview(frame)) == b"\0\0\0\x0a\0\0\0\5answer"
    other_id = frame[:4] + b"\1\2\3\4" + frame[8:]
    assert repeated.respond(memoryview(other_id)) == b"\0\0\0\x0a\1\2\3\4answer"
    assert done == 2
    for at in (*range(4), *range(8, len(frame))):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        assert repeated.respond(memoryview(changed)) is None
    for other in (frame + b"\0", frame[:-1], frame[:7], b""):
        assert repeated.respond(memoryview(other)) is None
    assert done == 2


def test_what_is_long_is_not_remembered(classic: Beating) -> None:
    def send(tag_bytes: int) -> int:
        frame = bytearray(encode_request(classic.request, 4, 9, "me"))[4:]
        # Header and body each end with their tags, of which there are none: a tag of the body, then.
        assert frame[-1] == 0
        frame[-1:] = b"\1\7" + bytes([0x80 | tag_bytes & 0x7F, tag_bytes >> 7]) + bytes(tag_bytes)
        classic.client.node.handle_frame(classic.client.channel, memoryview(frame))
        assert classic.client.receive(4, HeartbeatRequest).error_code == ErrorCode.NONE
        return len(frame)

    for tag_bytes, looks in ((MAX_REPEATED_BYTES, 2), (MAX_REPEATED_BYTES // 2, 1)):
        before = classic.looks
        sizes = {send(tag_bytes) for _ in range(2)}
        assert (min(sizes) > MAX_REPEATED_BYTES) == (looks == 2)
        assert classic.looks - before == looks


def test_a_closed_channel_keeps_none(classic: Beating) -> None:
    channel: Channel = classic.client.channel
    node: Node = classic.client.node
    assert channel.repeated_request is not None
    node.channel_closed(channel)
    assert channel.repeated_request is None
