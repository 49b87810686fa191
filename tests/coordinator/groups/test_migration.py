"""Upgrade and downgrade of groups between the classic and the consumer protocol, and mixed groups."""

from __future__ import annotations

import struct

import pytest

from kwire.coordinator.groups.consumer.consumer_protocol import (
    MalformedProtocolError,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.join_group import JoinGroupResponse
from tests.coordinator.coordinator_harness import FakeTopics, Reply
from tests.coordinator.groups.consumer.script import GROUP, Script, topic_id

Owned = dict[str, list[int]]

NONE, REBALANCE, UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID


def metadata(*topics: str, owned: Owned | None = None) -> bytes:
    """Encode a subscription of version 1."""
    data = struct.pack(">hi", 1, len(topics))
    data += b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return data + b"\xff\xff\xff\xff" + encode_owned(owned or {})


def encode_owned(owned: Owned) -> bytes:
    data = struct.pack(">i", len(owned))
    for topic, partitions in owned.items():
        data += struct.pack(">h", len(topic)) + topic.encode()
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data


def assignment(owned: Owned) -> bytes:
    return b"\0\1" + encode_owned(owned) + b"\xff\xff\xff\xff"


class ClassicMember:
    """A consumer of the classic protocol that subscribes to topic t."""

    def __init__(self, script: Script, member: str = "", instance: str | None = None) -> None:
        self.harness = script.harness
        self.instance = instance
        self.owned: Owned = {}
        self.joined = JoinGroupResponse(member_id=member)

    def join(self) -> Reply:
        protocols = (("range", metadata("t", owned=self.owned)),)
        reply = self.harness.join(
            GROUP, self.joined.member_id, instance=self.instance, protocols=protocols, id_first=False
        )
        if not reply.pending and reply.error == NONE:
            self.joined = reply.value
        return reply

    def rejoin(self) -> Reply:
        """Join and sync."""
        reply = self.join()
        assert reply.error == NONE
        self.sync()
        return reply

    def sync(self, assigned: Owned | None = None) -> ErrorCode:
        assignments = None if assigned is None else {self.joined.member_id: assignment(assigned)}
        reply = self.harness.sync(self.joined, assignments, instance=self.instance)
        if reply.error == NONE:
            found = decode_assignment(reply.value.assignment, self.harness.topics)
            self.owned = {"t": sorted(found[topic_id("t")])} if found else {}
        return reply.error

    def heartbeat(self) -> ErrorCode:
        return self.harness.heartbeat(self.joined, instance=self.instance)

    def join_as_leader(self) -> None:
        """Join an empty group and assign all partitions to this member."""
        waiting = self.join()
        self.harness.advance(3_000)
        self.joined = waiting.value
        assert self.sync({"t": [0, 1, 2, 3]}) == NONE


def group_types(script: Script) -> list[str]:
    return [group.group_type for group in script.harness.service.list_groups((), ())]


@pytest.fixture
def script() -> Script:
    script = Script()
    script.run("topic t 4")
    return script


@pytest.fixture
def mixed_group(script: Script) -> tuple[Script, ClassicMember]:
    """Return a group of a classic member and a consumer member `new`, each with two partitions."""
    classic = ClassicMember(script)
    classic.join_as_leader()
    script.run("join new t")
    assert classic.heartbeat() == REBALANCE
    classic.rejoin()
    script.run("beat new owns=all")
    assert classic.heartbeat() == REBALANCE
    classic.rejoin()
    script.run("beat new owns=all")
    assert classic.owned == {"t": [0, 1]}
    assert script.clients["new"].assigned == {"t": [2, 3]}
    assert classic.heartbeat() == NONE
    return script, classic


def test_classic_group_is_upgraded_and_downgraded(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, classic = mixed_group
    assert group_types(script) == ["consumer"]
    script.run("leave new")
    assert group_types(script) == ["classic"]
    assert classic.heartbeat() == REBALANCE
    assert classic.join().value.leader == classic.joined.member_id
    assert classic.sync({"t": [0, 1, 2, 3]}) == NONE
    assert classic.heartbeat() == NONE


def test_upgrade_is_counted_as_a_rebalance_of_a_consumer_group(
    mixed_group: tuple[Script, ClassicMember],
) -> None:
    rebalances = mixed_group[0].harness.service.rebalances
    assert (rebalances.classic_completed, rebalances.consumer) == (1, 1)


def test_restart_of_the_coordinator_keeps_the_mixed_group(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, classic = mixed_group
    script.harness.restart()
    assert classic.heartbeat() == NONE
    assert script.run("beat new") == ["epoch 2"]
    script.run("leave new")
    script.harness.restart()
    assert group_types(script) == ["classic"]
    # The rebalance was not stored, but the assignment was.
    assert classic.heartbeat() == NONE
    assert classic.sync() == NONE
    assert classic.owned == {"t": [0, 1]}


def test_classic_member_is_removed_after_its_session_timeout(
    mixed_group: tuple[Script, ClassicMember],
) -> None:
    script, classic = mixed_group
    script.harness.advance(9_999)
    script.run("beat new")
    assert "old" not in script.run("describe")[0]
    assert len(script.run("describe")) == 3
    script.harness.advance(1)
    assert len(script.run("describe")) == 2
    assert classic.heartbeat() == UNKNOWN
    assert group_types(script) == ["consumer"]


def test_timeout_of_the_last_consumer_member_downgrades_the_group(
    mixed_group: tuple[Script, ClassicMember],
) -> None:
    script, classic = mixed_group
    for _ in range(5):
        script.harness.advance(9_000)
        classic.heartbeat()
    assert group_types(script) == ["classic"]
    assert classic.heartbeat() == REBALANCE


def test_classic_member_that_does_not_rejoin_is_removed(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, classic = mixed_group
    script.harness.advance(1_000)
    script.run("join third t")
    for _ in range(4):
        assert classic.heartbeat() == REBALANCE
        script.run("beat new")
        script.harness.advance(7_000)
    assert classic.heartbeat() == REBALANCE
    script.harness.advance(2_000)
    assert classic.heartbeat() == UNKNOWN


def test_classic_member_that_does_not_sync_is_removed(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, classic = mixed_group
    script.harness.advance(1_000)
    script.run("join third t")
    assert classic.heartbeat() == REBALANCE
    assert classic.join().error == NONE
    for _ in range(3):
        script.harness.advance(9_999)
        classic.heartbeat()
    script.harness.advance(3)
    assert classic.heartbeat() == UNKNOWN


def test_upgrade_fails_the_pending_joins_of_classic_members(script: Script) -> None:
    classic = ClassicMember(script)
    classic.join_as_leader()
    late = ClassicMember(script)
    waiting = late.join()
    assert waiting.pending
    assert classic.heartbeat() == REBALANCE
    script.run("join new t")
    assert waiting.error == REBALANCE
    late.joined.member_id = waiting.value.member_id
    assert late.join().error == NONE


def test_group_without_a_generation_cannot_be_upgraded(script: Script) -> None:
    waiting = ClassicMember(script).join()
    assert script.run("join new t") == ["UNKNOWN_SERVER_ERROR: None"]
    assert waiting.error == REBALANCE
    assert group_types(script) == ["classic"]


def test_pending_member_without_the_group_protocol_prevents_the_upgrade(script: Script) -> None:
    classic = ClassicMember(script)
    classic.join_as_leader()
    other = script.harness.join(GROUP, "", protocols=(("rr", metadata("t")),), id_first=True)
    assert other.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    mixed_group = (("range", metadata("t")), ("rr", metadata("t")))
    leader = script.harness.join(GROUP, classic.joined.member_id, protocols=mixed_group, id_first=False)
    assert leader.error == NONE
    pending = script.harness.join(GROUP, "", protocols=(("rr", metadata("t")),), id_first=False)
    assert pending.pending
    assert script.run("join new t") == ["UNKNOWN_SERVER_ERROR: None"]
    assert group_types(script) == ["classic"]


@pytest.mark.parametrize(
    ("policy", "upgraded", "joined", "after"),
    [
        ("bidirectional", True, True, "classic"),
        ("Upgrade", True, True, "consumer"),
        ("downgrade", False, True, "classic"),
        ("DISABLED", False, False, "consumer"),
    ],
)
def test_migration_policy(policy: str, upgraded: bool, joined: bool, after: str) -> None:
    script = Script()
    script.harness.config.group_consumer_migration_policy = policy
    script.run("topic t 4")
    classic = ClassicMember(script)
    classic.join_as_leader()
    script.run("join new t")
    assert group_types(script) == ["consumer" if upgraded else "classic"]

    script = Script()
    script.harness.config.group_consumer_migration_policy = policy
    script.run("topic t 4")
    script.run("join new t")
    expected = NONE if joined else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert ClassicMember(script, "old").join().error == expected
    script.run("leave new")
    assert group_types(script) == [after]


def test_group_above_the_maximum_size_is_not_migrated(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, _ = mixed_group
    assert ClassicMember(script, "other").join().error == NONE
    script.harness.config.group_max_size = 1
    script.run("leave new")
    assert group_types(script) == ["consumer"]

    script = Script()
    script.run("topic t 4")
    ClassicMember(script).join_as_leader()
    script.harness.config.group_consumer_max_size = 0
    (error,) = script.run("join new t")
    assert error.endswith("because the group size exceeds the consumer group maximum size.")


def test_downgrade_that_cannot_be_stored_is_undone(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, classic = mixed_group
    script.harness.ports.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert script.run("leave new") == ["COORDINATOR_NOT_AVAILABLE: None"]
    script.harness.ports.refuse = None
    assert group_types(script) == ["consumer"]
    assert classic.heartbeat() == NONE
    assert script.run("beat new") == ["epoch 2"]
    script.run("leave new")
    assert group_types(script) == ["classic"]


def test_join_that_cannot_be_stored_is_refused(script: Script) -> None:
    script.run("join new t")
    script.harness.ports.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert ClassicMember(script, "old").join().error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    script.harness.ports.refuse = None
    assert len(script.run("describe")) == 2


def test_static_member_keeps_its_assignment_across_protocols(script: Script) -> None:
    classic = ClassicMember(script, instance="i")
    classic.join_as_leader()
    assert script.run("join new t instance=i") == ["epoch 1, has t:0,1,2,3"]
    assert classic.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    back = ClassicMember(script, instance="i")
    back.rejoin()
    assert group_types(script) == ["classic"]
    assert back.owned == {"t": [0, 1, 2, 3]}
    assert back.heartbeat() == NONE
    (error,) = script.run("beat new")
    assert error.startswith("GROUP_ID_NOT_FOUND")


def test_member_is_replaced_only_by_its_current_instance_id(script: Script) -> None:
    script.run("join new t instance=i")
    script.run("join new t instance=j")
    members = script.run("describe")
    assert ClassicMember(script, instance="i").join().error == ErrorCode.INVALID_REQUEST
    assert group_types(script) == ["consumer"]
    assert script.run("describe") == members
    # Its current instance id replaces it.
    assert ClassicMember(script, instance="j").join().error == NONE
    assert group_types(script) == ["classic"]


@pytest.mark.parametrize("data", [b"", b"\xff\xff", metadata("t")[:8]])
def test_malformed_subscription_is_refused(script: Script, data: bytes) -> None:
    script.run("join new t")
    before = script.run("describe")
    refused = script.harness.join(GROUP, "", protocols=(("range", data),), id_first=False)
    assert refused.error == ErrorCode.INVALID_REQUEST
    assert script.run("describe") == before


@pytest.mark.parametrize("length", [5, 9])
def test_malformed_assignment_prevents_the_upgrade(script: Script, length: int) -> None:
    classic = ClassicMember(script)
    waiting = classic.join()
    script.harness.advance(3_000)
    classic.joined = waiting.value
    script.harness.sync(classic.joined, {classic.joined.member_id: assignment({"t": [0]})[:length]})
    (error,) = script.run("join new t")
    assert error.startswith("GROUP_ID_NOT_FOUND")
    assert "malformed" in error
    assert group_types(script) == ["classic"]


def test_list_groups_trims_state_filters(script: Script) -> None:
    script.run("join new t")
    encode_owned = script.harness.service.list_groups
    assert [group.group_id for group in encode_owned(("\tSTABLE\0 ",), ("Consumer",))] == [GROUP]
    assert encode_owned(("sta ble",), ()) == encode_owned(("\N{NO-BREAK SPACE}stable",), ()) == []
    assert encode_owned((), ("consumer ",)) == []


def test_leave_group_removes_members_of_both_protocols(mixed_group: tuple[Script, ClassicMember]) -> None:
    script, classic = mixed_group
    response = script.harness.leave(("nobody", None), (classic.joined.member_id, None))
    assert [member.error_code for member in response.members] == [UNKNOWN, NONE]
    assert len(script.run("describe")) == 2
    response = script.harness.leave(("new", None))
    assert group_types(script) == ["consumer"]
    assert script.run("describe") == ["Empty, epoch 4, assignment epoch 2, uniform"]


# The embedded consumer protocol: other versions and malformed data.


def test_assignment_versions() -> None:
    topics = FakeTopics()
    topics.put("t", 4)
    target: dict[bytes, frozenset[int]] = {
        topic_id("t"): frozenset({3, 1}),
        topic_id("gone"): frozenset({0}),
    }
    for version in range(4):
        data = encode_assignment(target, version, topics)
        assert decode_version(data) == version
        assert decode_assignment(data, topics) == {topic_id("t"): frozenset({1, 3})}
    assert decode_version(b"\x00\x09") == 3
    assert decode_subscription(b"\x00\x09" + metadata("t")[2:] + b"\xff\xff\xff\xff\xff\xff").topics == ["t"]


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", metadata("t")[:4], metadata("t")[:8]])
def test_malformed_subscription_raises(data: bytes) -> None:
    with pytest.raises(MalformedProtocolError):
        decode_subscription(data)
