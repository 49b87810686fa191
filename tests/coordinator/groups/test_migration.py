"""Members of both protocols in one group, and groups that change their kind."""

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
from tests.coordinator.groups.consumer.script import GROUP, Script, topic_id
from tests.coordinator.scripting import FakeTopics, Reply

Owned = dict[str, list[int]]

NONE, REBALANCE, UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID


def metadata(*topics: str, owned: Owned | None = None) -> bytes:
    """A subscription of version 1."""
    data = struct.pack(">hi", 1, len(topics))
    data += b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return data + b"\xff\xff\xff\xff" + listed(owned or {})


def listed(owned: Owned) -> bytes:
    data = struct.pack(">i", len(owned))
    for topic, partitions in owned.items():
        data += struct.pack(">h", len(topic)) + topic.encode()
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data


def assignment(owned: Owned) -> bytes:
    return b"\0\1" + listed(owned) + b"\xff\xff\xff\xff"


class Old:
    """A consumer of the classic protocol that subscribes to topic t."""

    def __init__(self, script: Script, member: str = "", instance: str | None = None) -> None:
        self.cluster = script.cluster
        self.instance = instance
        self.owned: Owned = {}
        self.joined = JoinGroupResponse(member_id=member)

    def join(self) -> Reply:
        protocols = (("range", metadata("t", owned=self.owned)),)
        reply = self.cluster.join(
            GROUP, self.joined.member_id, instance=self.instance, protocols=protocols, id_first=False
        )
        if not reply.pending and reply.error == NONE:
            self.joined = reply.value
        return reply

    def rejoin(self) -> Reply:
        """Join, and have what SyncGroup gives."""
        reply = self.join()
        assert reply.error == NONE
        self.sync()
        return reply

    def sync(self, given: Owned | None = None) -> ErrorCode:
        assignments = None if given is None else {self.joined.member_id: assignment(given)}
        reply = self.cluster.sync(self.joined, assignments, instance=self.instance)
        if reply.error == NONE:
            found = decode_assignment(reply.value.assignment, self.cluster.topics)
            self.owned = {"t": sorted(found[topic_id("t")])} if found else {}
        return reply.error

    def heartbeat(self) -> ErrorCode:
        return self.cluster.heartbeat(self.joined, instance=self.instance)

    def lead(self) -> None:
        """Join an empty group, and take all of it."""
        waiting = self.join()
        self.cluster.advance(3_000)
        self.joined = waiting.value
        assert self.sync({"t": [0, 1, 2, 3]}) == NONE


def kinds(script: Script) -> list[str]:
    return [group.group_type for group in script.cluster.service.list_groups((), ())]


@pytest.fixture
def script() -> Script:
    made = Script()
    made.run("topic t 4")
    return made


@pytest.fixture
def both(script: Script) -> tuple[Script, Old]:
    """A group of two: `old` speaks the classic protocol, `new` the other; each has half."""
    old = Old(script)
    old.lead()
    script.run("join new t")
    assert old.heartbeat() == REBALANCE
    old.rejoin()
    script.run("beat new owns=all")
    assert old.heartbeat() == REBALANCE
    old.rejoin()
    script.run("beat new owns=all")
    assert old.owned == {"t": [0, 1]}
    assert script.clients["new"].assigned == {"t": [2, 3]}
    assert old.heartbeat() == NONE
    return script, old


def test_a_classic_group_is_upgraded_and_downgraded(both: tuple[Script, Old]) -> None:
    script, old = both
    assert kinds(script) == ["consumer"]
    script.run("leave new")
    assert kinds(script) == ["classic"]
    assert old.heartbeat() == REBALANCE
    assert old.join().value.leader == old.joined.member_id
    assert old.sync({"t": [0, 1, 2, 3]}) == NONE
    assert old.heartbeat() == NONE


def test_a_restart_in_between_changes_nothing(both: tuple[Script, Old]) -> None:
    script, old = both
    script.cluster.restart()
    assert old.heartbeat() == NONE
    assert script.run("beat new") == ["epoch 2"]
    script.run("leave new")
    script.cluster.restart()
    assert kinds(script) == ["classic"]
    # The rebalance was not stored, and the assignment was.
    assert old.heartbeat() == NONE
    assert old.sync() == NONE
    assert old.owned == {"t": [0, 1]}


def test_a_classic_member_that_falls_silent_is_out(both: tuple[Script, Old]) -> None:
    script, old = both
    script.cluster.advance(9_999)
    script.run("beat new")
    assert "old" not in script.run("describe")[0]
    assert len(script.run("describe")) == 3
    script.cluster.advance(1)
    assert len(script.run("describe")) == 2
    assert old.heartbeat() == UNKNOWN
    assert kinds(script) == ["consumer"]


def test_the_last_new_member_that_falls_silent_leaves_a_classic_group(both: tuple[Script, Old]) -> None:
    script, old = both
    for _ in range(5):
        script.cluster.advance(9_000)
        old.heartbeat()
    assert kinds(script) == ["classic"]
    assert old.heartbeat() == REBALANCE


def test_who_is_called_to_join_and_does_not_is_out(both: tuple[Script, Old]) -> None:
    script, old = both
    script.cluster.advance(1_000)
    script.run("join third t")
    for _ in range(4):
        assert old.heartbeat() == REBALANCE
        script.run("beat new")
        script.cluster.advance(7_000)
    assert old.heartbeat() == REBALANCE
    script.cluster.advance(2_000)
    assert old.heartbeat() == UNKNOWN


def test_who_joins_and_does_not_sync_is_out(both: tuple[Script, Old]) -> None:
    script, old = both
    script.cluster.advance(1_000)
    script.run("join third t")
    assert old.heartbeat() == REBALANCE
    assert old.join().error == NONE
    for _ in range(3):
        script.cluster.advance(9_999)
        old.heartbeat()
    script.cluster.advance(3)
    assert old.heartbeat() == UNKNOWN


def test_waiting_members_of_a_classic_group_are_told_of_its_upgrade(script: Script) -> None:
    old = Old(script)
    old.lead()
    late = Old(script)
    waiting = late.join()
    assert waiting.pending
    assert old.heartbeat() == REBALANCE
    script.run("join new t")
    assert waiting.error == REBALANCE
    late.joined.member_id = waiting.value.member_id
    assert late.join().error == NONE


def test_the_generation_of_nobody_cannot_be_upgraded(script: Script) -> None:
    waiting = Old(script).join()
    assert script.run("join new t") == ["UNKNOWN_SERVER_ERROR: None"]
    assert waiting.error == REBALANCE
    assert kinds(script) == ["classic"]


def test_who_joins_without_the_groups_protocol_stops_the_upgrade(script: Script) -> None:
    old = Old(script)
    old.lead()
    other = script.cluster.join(GROUP, "", protocols=(("rr", metadata("t")),), id_first=True)
    assert other.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    both = (("range", metadata("t")), ("rr", metadata("t")))
    leader = script.cluster.join(GROUP, old.joined.member_id, protocols=both, id_first=False)
    assert leader.error == NONE
    pending = script.cluster.join(GROUP, "", protocols=(("rr", metadata("t")),), id_first=False)
    assert pending.pending
    assert script.run("join new t") == ["UNKNOWN_SERVER_ERROR: None"]
    assert kinds(script) == ["classic"]


@pytest.mark.parametrize(
    ("policy", "upgraded", "joined", "after"),
    [
        ("bidirectional", True, True, "classic"),
        ("Upgrade", True, True, "consumer"),
        ("downgrade", False, True, "classic"),
        ("DISABLED", False, False, "consumer"),
    ],
)
def test_what_the_policy_allows(policy: str, upgraded: bool, joined: bool, after: str) -> None:
    script = Script()
    script.cluster.config.group_consumer_migration_policy = policy
    script.run("topic t 4")
    old = Old(script)
    old.lead()
    script.run("join new t")
    assert kinds(script) == ["consumer" if upgraded else "classic"]

    script = Script()
    script.cluster.config.group_consumer_migration_policy = policy
    script.run("topic t 4")
    script.run("join new t")
    expected = NONE if joined else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert Old(script, "old").join().error == expected
    script.run("leave new")
    assert kinds(script) == [after]


def test_groups_over_their_greatest_size_keep_their_kind(both: tuple[Script, Old]) -> None:
    script, _ = both
    assert Old(script, "other").join().error == NONE
    script.cluster.config.group_max_size = 1
    script.run("leave new")
    assert kinds(script) == ["consumer"]

    script = Script()
    script.run("topic t 4")
    Old(script).lead()
    script.cluster.config.group_consumer_max_size = 0
    (answer,) = script.run("join new t")
    assert answer.endswith("because the group size exceeds the consumer group maximum size.")


def test_a_downgrade_that_cannot_be_stored_did_not_happen(both: tuple[Script, Old]) -> None:
    script, old = both
    script.cluster.ports.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert script.run("leave new") == ["COORDINATOR_NOT_AVAILABLE: None"]
    script.cluster.ports.refuse = None
    assert kinds(script) == ["consumer"]
    assert old.heartbeat() == NONE
    assert script.run("beat new") == ["epoch 2"]
    script.run("leave new")
    assert kinds(script) == ["classic"]


def test_a_join_that_cannot_be_stored_is_told_so(script: Script) -> None:
    script.run("join new t")
    script.cluster.ports.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert Old(script, "old").join().error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    script.cluster.ports.refuse = None
    assert len(script.run("describe")) == 2


def test_a_static_member_takes_its_target_to_the_other_protocol(script: Script) -> None:
    old = Old(script, instance="i")
    old.lead()
    assert script.run("join new t instance=i") == ["epoch 1, has t:0,1,2,3"]
    assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    back = Old(script, instance="i")
    back.rejoin()
    assert kinds(script) == ["classic"]
    assert back.owned == {"t": [0, 1, 2, 3]}
    assert back.heartbeat() == NONE
    (answer,) = script.run("beat new")
    assert answer.startswith("GROUP_ID_NOT_FOUND")


def test_who_had_an_instance_id_and_took_another_is_not_replaced(script: Script) -> None:
    script.run("join new t instance=i")
    script.run("join new t instance=j")
    members = script.run("describe")
    assert Old(script, instance="i").join().error == ErrorCode.INVALID_REQUEST
    assert kinds(script) == ["consumer"]
    assert script.run("describe") == members
    # By the other one it is.
    assert Old(script, instance="j").join().error == NONE
    assert kinds(script) == ["classic"]


@pytest.mark.parametrize("data", [b"", b"\xff\xff", metadata("t")[:8]])
def test_who_joins_with_a_malformed_subscription_is_refused(script: Script, data: bytes) -> None:
    script.run("join new t")
    before = script.run("describe")
    refused = script.cluster.join(GROUP, "", protocols=(("range", data),), id_first=False)
    assert refused.error == ErrorCode.INVALID_REQUEST
    assert script.run("describe") == before


@pytest.mark.parametrize("cut", [5, 9])
def test_a_malformed_assignment_stops_the_upgrade(script: Script, cut: int) -> None:
    old = Old(script)
    waiting = old.join()
    script.cluster.advance(3_000)
    old.joined = waiting.value
    script.cluster.sync(old.joined, {old.joined.member_id: assignment({"t": [0]})[:cut]})
    (answer,) = script.run("join new t")
    assert answer.startswith("GROUP_ID_NOT_FOUND")
    assert "malformed" in answer
    assert kinds(script) == ["classic"]


def test_groups_are_listed_by_states_without_blanks_around_them(script: Script) -> None:
    script.run("join new t")
    listed = script.cluster.service.list_groups
    assert [group.group_id for group in listed(("\tSTABLE\0 ",), ("Consumer",))] == [GROUP]
    assert listed(("sta ble",), ()) == listed(("\N{NO-BREAK SPACE}stable",), ()) == []
    assert listed((), ("consumer ",)) == []


def test_members_leave_by_the_classic_request(both: tuple[Script, Old]) -> None:
    script, old = both
    response = script.cluster.leave(("nobody", None), (old.joined.member_id, None))
    assert [member.error_code for member in response.members] == [UNKNOWN, NONE]
    assert len(script.run("describe")) == 2
    response = script.cluster.leave(("new", None))
    assert kinds(script) == ["consumer"]
    assert script.run("describe") == ["Empty, epoch 4, assignment epoch 2, uniform"]


# What the classic protocol carries without the coordinator's knowing, in other versions and broken.


def test_versions() -> None:
    topics = FakeTopics()
    topics.put("t", 4)
    target = {topic_id("t"): frozenset({3, 1}), topic_id("gone"): frozenset({0})}
    for version in range(4):
        data = encode_assignment(target, version, topics)
        assert decode_version(data) == version
        assert decode_assignment(data, topics) == {topic_id("t"): frozenset({1, 3})}
    assert decode_version(b"\x00\x09") == 3
    assert decode_subscription(b"\x00\x09" + metadata("t")[2:] + b"\xff\xff\xff\xff\xff\xff").topics == ["t"]


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", metadata("t")[:4], metadata("t")[:8]])
def test_malformed(data: bytes) -> None:
    with pytest.raises(MalformedProtocolError):
        decode_subscription(data)
