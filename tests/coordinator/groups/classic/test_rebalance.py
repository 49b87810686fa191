"""Scripts of members that join, stay, leave and time out."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ApiError, ErrorCode
from tests.coordinator.scripting import RANGE, Cluster, Config, subscription


def test_a_dynamic_member_is_given_an_id_first_and_leads_the_group_it_is_alone_in(cluster: Cluster) -> None:
    refused = cluster.join(client="me")
    assert refused.error == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.value.member_id.startswith("me-")
    joining = cluster.join(member=refused.value.member_id)
    assert joining.pending
    cluster.advance(2_999)
    assert joining.pending
    cluster.advance(1)
    joined = joining.value
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == refused.value.member_id
    assert [member.member_id for member in joined.members] == [joined.member_id]
    synced = cluster.sync(joined, {joined.member_id: b"mine"}).value
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    assert cluster.state() == "Stable"
    assert cluster.heartbeat(joined) == ErrorCode.NONE


def test_old_clients_join_without_an_id(cluster: Cluster) -> None:
    joining = cluster.join(id_first=False)
    cluster.advance(3_000)
    assert joining.error == ErrorCode.NONE


def test_members_that_come_during_the_initial_delay_prolong_it(cluster: Cluster) -> None:
    first = cluster.new_member()[1]
    cluster.advance(2_000)
    second = cluster.new_member()[1]
    cluster.advance(3_999)
    assert first.pending
    assert second.pending
    cluster.advance(1)
    assert first.value.generation_id == second.value.generation_id == 1
    assert len(first.value.members) == 2
    assert second.value.members == []


def test_the_initial_delay_ends_with_the_rebalance_timeout(cluster: Cluster) -> None:
    first = cluster.new_member(rebalance_ms=7_000)[1]
    for _ in range(6):
        cluster.advance(1_000)
        cluster.new_member(rebalance_ms=7_000)
    assert first.pending
    cluster.advance(1_000)
    assert not first.pending


def test_the_sync_barrier_waits_for_the_leader(cluster: Cluster) -> None:
    replies = [cluster.new_member()[1] for _ in range(2)]
    while replies[0].pending:
        cluster.advance(1_000)
    leader, follower = replies[0].value, replies[1].value
    waiting = cluster.sync(follower)
    assert waiting.pending
    cluster.sync(leader, {follower.member_id: b"f"})
    assert waiting.value.assignment == b"f"
    # Stable: whoever asks again gets the same.
    assert cluster.sync(follower).value.assignment == b"f"
    assert cluster.sync(leader).value.assignment == b""


def test_a_new_member_makes_the_others_join_again(cluster: Cluster) -> None:
    (old,) = cluster.stable()
    newcomer, joining = cluster.new_member()
    assert cluster.state() == "PreparingRebalance"
    assert cluster.heartbeat(old) == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.sync(old).error == ErrorCode.REBALANCE_IN_PROGRESS
    again = cluster.join(member=old.member_id)
    assert again.value.generation_id == joining.value.generation_id == 2
    assert again.value.leader == old.member_id
    assert joining.value.member_id == newcomer
    assert cluster.heartbeat(old) == ErrorCode.ILLEGAL_GENERATION
    assert cluster.sync(old).error == ErrorCode.ILLEGAL_GENERATION


def test_whoever_does_not_come_back_is_out_after_the_rebalance_timeout(cluster: Cluster) -> None:
    (old,) = cluster.stable(session_ms=100_000)
    joining = cluster.new_member()[1]
    cluster.advance(29_999)
    assert joining.pending
    cluster.advance(1)
    assert joining.value.leader == joining.value.member_id
    assert cluster.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_during_the_sync_sends_the_waiting_back_to_the_join(cluster: Cluster) -> None:
    replies = [cluster.new_member()[1] for _ in range(2)]
    while replies[0].pending:
        cluster.advance(1_000)
    waiting = cluster.sync(replies[1].value)
    cluster.new_member()
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.state() == "PreparingRebalance"


def test_members_that_do_not_sync_are_out_after_the_rebalance_timeout(cluster: Cluster) -> None:
    replies = [cluster.new_member(session_ms=100_000)[1] for _ in range(2)]
    while replies[0].pending:
        cluster.advance(1_000)
    leader, follower = replies[0].value, replies[1].value
    cluster.sync(leader, {})
    assert cluster.state() == "Stable"
    cluster.advance(30_000)
    assert cluster.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_session_lasts_from_heartbeat_to_heartbeat(cluster: Cluster) -> None:
    (member,) = cluster.stable()
    for _ in range(3):
        cluster.advance(9_999)
        assert cluster.heartbeat(member) == ErrorCode.NONE
    cluster.advance(10_000)
    assert cluster.heartbeat(member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.state() == "Empty"


def test_a_commit_keeps_the_session_alive(cluster: Cluster) -> None:
    (member,) = cluster.stable()
    for _ in range(3):
        cluster.advance(9_999)
        assert cluster.commit(1, generation=1, member=member.member_id).value == ErrorCode.NONE
    assert cluster.heartbeat(member) == ErrorCode.NONE


def test_a_member_id_that_is_not_used_is_taken_back(cluster: Cluster) -> None:
    member = cluster.join().value.member_id
    cluster.advance(10_000)
    assert cluster.join(member=member).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_takes_effect_at_once(cluster: Cluster) -> None:
    first, second = cluster.stable(count=2)
    answer = cluster.leave((second.member_id, None), ("stranger", None))
    assert [one.error_code for one in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert cluster.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.join(member=first.member_id).value.generation_id == 2
    cluster.leave((first.member_id, None))
    assert cluster.state() == "Empty"
    answer = cluster.leave((first.member_id, None), group="no such group")
    assert answer.error_code == 0
    assert answer.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_protocol_is_the_one_most_members_prefer_of_those_all_have(cluster: Cluster) -> None:
    replies = [
        cluster.new_member(protocols=protocols)[1]
        for protocols in (
            (("own", b""), ("a", b"1"), ("b", b"1")),
            (("b", b"2"), ("a", b"2")),
            (("b", b"3"), ("a", b"3")),
        )
    ]
    while replies[0].pending:
        cluster.advance(1_000)
    assert {reply.value.protocol_name for reply in replies} == {"b"}
    assert [member.metadata for member in replies[0].value.members] == [b"1", b"2", b"3"]
    assert cluster.join(protocols=(("own", b""),)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert cluster.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    joined = replies[0].value
    assert cluster.sync(joined, protocol="a").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_of_protocols_with_as_many_votes_it_is_the_one_of_who_came_first(cluster: Cluster) -> None:
    orders = [("sticky", "range"), ("range", "sticky")]
    replies = [cluster.new_member(protocols=tuple((name, b"") for name in order))[1] for order in orders]
    while replies[0].pending:
        cluster.advance(1_000)
    assert replies[0].value.protocol_name == "sticky"


def test_what_cannot_be_joined(cluster: Cluster) -> None:
    assert cluster.join(group="").error == ErrorCode.INVALID_GROUP_ID
    assert cluster.join(session_ms=5_999).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert cluster.join(session_ms=1_800_001).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert cluster.join(member="stranger").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.join(protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert cluster.join(member="mine", session_ms=0).value.member_id == "mine"


def test_an_id_that_was_given_to_a_dynamic_member_is_not_for_a_static_one(cluster: Cluster) -> None:
    member = cluster.join().value.member_id
    refused = cluster.join(member=member, instance="i")
    assert refused.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.join(member=member).pending


def test_a_full_group() -> None:
    cluster = Cluster(Config(group_max_size=1))
    (member,) = cluster.stable()
    assert cluster.join().error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert cluster.heartbeat(member) == ErrorCode.NONE


def test_only_the_leader_of_a_stable_group_makes_it_rebalance_by_joining_unchanged(cluster: Cluster) -> None:
    leader, follower = cluster.stable(count=2)
    assert cluster.join(member=follower.member_id).value.generation_id == 1
    assert cluster.state() == "Stable"
    assert cluster.join(member=leader.member_id).pending
    assert cluster.state() == "PreparingRebalance"


def test_a_static_member_that_comes_back_keeps_its_place_without_a_rebalance(cluster: Cluster) -> None:
    joining = cluster.join(instance="i", session_ms=60_000)
    cluster.advance(3_000)
    old = joining.value
    cluster.sync(old, {old.member_id: b"kept"}, instance="i")
    back = cluster.join(instance="i", session_ms=60_000).value
    assert back.member_id != old.member_id
    assert (back.generation_id, back.leader, back.skip_assignment) == (1, back.member_id, True)
    assert cluster.sync(back, instance="i").value.assignment == b"kept"
    assert cluster.heartbeat(old, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert cluster.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.join(instance="i", member=old.member_id).error == ErrorCode.FENCED_INSTANCE_ID


def test_before_v9_a_returning_static_leader_is_told_of_its_old_self(cluster: Cluster) -> None:
    joining = cluster.join(instance="i")
    cluster.advance(3_000)
    old = joining.value
    cluster.sync(old, {old.member_id: b"kept"}, instance="i")
    back = cluster.join(instance="i", can_skip=False).value
    assert (back.leader, back.members, back.skip_assignment) == (old.member_id, [], False)


def test_a_static_member_that_comes_back_during_the_join_fences_its_old_request(cluster: Cluster) -> None:
    first = cluster.join(instance="i")
    second = cluster.join(instance="i")
    assert first.error == ErrorCode.FENCED_INSTANCE_ID
    cluster.advance(3_000)
    assert second.error == ErrorCode.NONE


def test_a_static_member_is_missed_until_its_session_ends(cluster: Cluster) -> None:
    joining = cluster.join(instance="i", session_ms=60_000)
    other = cluster.new_member(session_ms=60_000)[1]
    while joining.pending:
        cluster.advance(1_000)
    static, dynamic = joining.value, other.value
    cluster.sync(static, {}, instance="i")
    cluster.sync(dynamic)
    changed = cluster.join(member=dynamic.member_id, protocols=(("range", b"new"),))
    cluster.advance(30_000)
    assert changed.value.leader == dynamic.member_id
    assert {member.group_instance_id for member in changed.value.members} == {"i", None}


def test_an_administrator_removes_a_static_member_by_its_instance_id(cluster: Cluster) -> None:
    joining = cluster.join(instance="i")
    cluster.advance(3_000)
    cluster.sync(joining.value, {}, instance="i")
    answer = cluster.leave(("", "i"), ("", "other"))
    assert [one.error_code for one in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert cluster.state() == "Empty"


def test_groups_are_listed_by_state_and_type(cluster: Cluster) -> None:
    cluster.stable("one")
    cluster.commit(1, group="two")
    listed = cluster.service.list_groups
    assert {group.group_id: group.group_state for group in listed([], [])} == {
        "one": "Stable",
        "two": "Empty",
    }
    assert [group.group_id for group in listed(["empty"], [])] == ["two"]
    assert [group.group_id for group in listed(["STABLE"], ["Classic"])] == ["one"]
    assert listed([], ["consumer"]) == []
    assert {group.protocol_type for group in listed([], [])} == {"consumer", ""}


def test_metadata_is_described_only_of_stable_groups(cluster: Cluster) -> None:
    protocols = (("range", subscription("t")),)
    (member,) = cluster.stable(protocols=protocols)
    described = cluster.service.describe("g")
    assert described is not None
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    assert described.members[0].member_metadata == subscription("t")
    assert described.members[0].member_assignment == b"a"
    assert described.members[0].client_host == "/127.0.0.1"
    cluster.join(protocols=protocols, id_first=False)
    described = cluster.service.describe("g")
    assert described is not None
    assert described.protocol_data == ""
    assert {one.member_metadata for one in described.members} == {b""}
    with pytest.raises(ApiError, match="Group nobody not found"):
        cluster.service.describe("nobody")
    assert member.protocol_name == RANGE[0][0]
