"""Rebalances of classic groups: join, sync, heartbeat, leave and timeouts."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.registry import CLASSIC
from kwire.wire.errors import ApiError, ErrorCode
from tests.coordinator.coordinator_harness import RANGE, Config, CoordinatorHarness, subscription


def test_single_dynamic_member_gets_an_id_and_becomes_leader(harness: CoordinatorHarness) -> None:
    refused = harness.join(client="me")
    assert refused.error == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.value.member_id.startswith("me-")
    joining = harness.join(member=refused.value.member_id)
    assert joining.pending
    harness.advance(2_999)
    assert joining.pending
    harness.advance(1)
    joined = joining.value
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == refused.value.member_id
    assert [member.member_id for member in joined.members] == [joined.member_id]
    synced = harness.sync(joined, {joined.member_id: b"mine"}).value
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    assert harness.state() == "Stable"
    assert harness.heartbeat(joined) == ErrorCode.NONE


def test_old_clients_join_without_an_id(harness: CoordinatorHarness) -> None:
    joining = harness.join(id_first=False)
    harness.advance(3_000)
    assert joining.error == ErrorCode.NONE


def test_members_joining_during_the_initial_delay_extend_it(harness: CoordinatorHarness) -> None:
    first = harness.new_member()[1]
    harness.advance(2_000)
    second = harness.new_member()[1]
    harness.advance(3_999)
    assert first.pending
    assert second.pending
    harness.advance(1)
    assert first.value.generation_id == second.value.generation_id == 1
    assert len(first.value.members) == 2
    assert second.value.members == []


def test_initial_delay_ends_at_the_rebalance_timeout(harness: CoordinatorHarness) -> None:
    first = harness.new_member(rebalance_ms=7_000)[1]
    for _ in range(6):
        harness.advance(1_000)
        harness.new_member(rebalance_ms=7_000)
    assert first.pending
    harness.advance(1_000)
    assert not first.pending


def test_sync_waits_for_the_assignments_of_the_leader(harness: CoordinatorHarness) -> None:
    replies = [harness.new_member()[1] for _ in range(2)]
    while replies[0].pending:
        harness.advance(1_000)
    leader, follower = replies[0].value, replies[1].value
    waiting = harness.sync(follower)
    assert waiting.pending
    harness.sync(leader, {follower.member_id: b"f"})
    assert waiting.value.assignment == b"f"
    # A repeated SyncGroup in a stable group returns the same assignment.
    assert harness.sync(follower).value.assignment == b"f"
    assert harness.sync(leader).value.assignment == b""


def test_new_member_starts_a_rebalance(harness: CoordinatorHarness) -> None:
    (old,) = harness.stable()
    newcomer, joining = harness.new_member()
    assert harness.state() == "PreparingRebalance"
    assert harness.heartbeat(old) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.sync(old).error == ErrorCode.REBALANCE_IN_PROGRESS
    again = harness.join(member=old.member_id)
    assert again.value.generation_id == joining.value.generation_id == 2
    assert again.value.leader == old.member_id
    assert joining.value.member_id == newcomer
    assert harness.heartbeat(old) == ErrorCode.ILLEGAL_GENERATION
    assert harness.sync(old).error == ErrorCode.ILLEGAL_GENERATION


def test_member_that_does_not_rejoin_is_removed_after_the_rebalance_timeout(
    harness: CoordinatorHarness,
) -> None:
    (old,) = harness.stable(session_ms=100_000)
    joining = harness.new_member()[1]
    harness.advance(29_999)
    assert joining.pending
    harness.advance(1)
    assert joining.value.leader == joining.value.member_id
    assert harness.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID


def test_join_during_the_sync_fails_waiting_syncs(harness: CoordinatorHarness) -> None:
    replies = [harness.new_member()[1] for _ in range(2)]
    while replies[0].pending:
        harness.advance(1_000)
    waiting = harness.sync(replies[1].value)
    harness.new_member()
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.state() == "PreparingRebalance"


def test_member_that_does_not_sync_is_removed_after_the_rebalance_timeout(
    harness: CoordinatorHarness,
) -> None:
    replies = [harness.new_member(session_ms=100_000)[1] for _ in range(2)]
    while replies[0].pending:
        harness.advance(1_000)
    leader, follower = replies[0].value, replies[1].value
    harness.sync(leader, {})
    assert harness.state() == "Stable"
    harness.advance(30_000)
    assert harness.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeat_extends_the_session(harness: CoordinatorHarness) -> None:
    (member,) = harness.stable()
    for _ in range(3):
        harness.advance(9_999)
        assert harness.heartbeat(member) == ErrorCode.NONE
    harness.advance(10_000)
    assert harness.heartbeat(member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.state() == "Empty"


def test_commit_extends_the_session(harness: CoordinatorHarness) -> None:
    (member,) = harness.stable()
    for _ in range(3):
        harness.advance(9_999)
        assert harness.commit(1, generation=1, member=member.member_id).value == ErrorCode.NONE
    assert harness.heartbeat(member) == ErrorCode.NONE


def test_unused_member_id_expires(harness: CoordinatorHarness) -> None:
    member = harness.join().value.member_id
    harness.advance(10_000)
    assert harness.join(member=member).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_removes_the_member_at_once(harness: CoordinatorHarness) -> None:
    first, second = harness.stable(count=2)
    response = harness.leave((second.member_id, None), ("stranger", None))
    assert [one.error_code for one in response.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert harness.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.join(member=first.member_id).value.generation_id == 2
    harness.leave((first.member_id, None))
    assert harness.state() == "Empty"
    response = harness.leave((first.member_id, None), group="no such group")
    assert response.error_code == 0
    assert response.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_protocol_is_the_most_preferred_one_that_all_members_support(harness: CoordinatorHarness) -> None:
    replies = [
        harness.new_member(protocols=protocols)[1]
        for protocols in (
            (("own", b""), ("a", b"1"), ("b", b"1")),
            (("b", b"2"), ("a", b"2")),
            (("b", b"3"), ("a", b"3")),
        )
    ]
    while replies[0].pending:
        harness.advance(1_000)
    assert {reply.value.protocol_name for reply in replies} == {"b"}
    assert [member.metadata for member in replies[0].value.members] == [b"1", b"2", b"3"]
    assert harness.join(protocols=(("own", b""),)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    joined = replies[0].value
    assert harness.sync(joined, protocol="a").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_tied_protocol_vote_is_decided_by_the_first_member(harness: CoordinatorHarness) -> None:
    orders = [("sticky", "range"), ("range", "sticky")]
    replies = [harness.new_member(protocols=tuple((name, b"") for name in order))[1] for order in orders]
    while replies[0].pending:
        harness.advance(1_000)
    assert replies[0].value.protocol_name == "sticky"


def test_invalid_join_is_refused(harness: CoordinatorHarness) -> None:
    assert harness.join(group="").error == ErrorCode.INVALID_GROUP_ID
    assert harness.join(session_ms=5_999).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert harness.join(session_ms=1_800_001).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert harness.join(member="stranger").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join(protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join(member="mine", session_ms=0).value.member_id == "mine"


def test_pending_dynamic_member_id_is_refused_for_a_static_member(harness: CoordinatorHarness) -> None:
    member = harness.join().value.member_id
    refused = harness.join(member=member, instance="i")
    assert refused.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join(member=member).pending


def test_join_to_a_full_group_is_refused() -> None:
    harness = CoordinatorHarness(Config(group_max_size=1))
    (member,) = harness.stable()
    assert harness.join().error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.heartbeat(member) == ErrorCode.NONE


def test_unchanged_join_rebalances_only_from_the_leader(harness: CoordinatorHarness) -> None:
    leader, follower = harness.stable(count=2)
    assert harness.join(member=follower.member_id).value.generation_id == 1
    assert harness.state() == "Stable"
    assert harness.join(member=leader.member_id).pending
    assert harness.state() == "PreparingRebalance"


def test_returning_static_member_keeps_its_assignment_without_a_rebalance(
    harness: CoordinatorHarness,
) -> None:
    joining = harness.join(instance="i", session_ms=60_000)
    harness.advance(3_000)
    old = joining.value
    harness.sync(old, {old.member_id: b"kept"}, instance="i")
    back = harness.join(instance="i", session_ms=60_000).value
    assert back.member_id != old.member_id
    assert (back.generation_id, back.leader, back.skip_assignment) == (1, back.member_id, True)
    assert harness.sync(back, instance="i").value.assignment == b"kept"
    assert harness.heartbeat(old, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert harness.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join(instance="i", member=old.member_id).error == ErrorCode.FENCED_INSTANCE_ID


def test_returning_static_leader_before_v9_gets_its_old_id_as_leader(harness: CoordinatorHarness) -> None:
    joining = harness.join(instance="i")
    harness.advance(3_000)
    old = joining.value
    harness.sync(old, {old.member_id: b"kept"}, instance="i")
    back = harness.join(instance="i", can_skip=False).value
    assert (back.leader, back.members, back.skip_assignment) == (old.member_id, [], False)


def test_returning_static_member_fences_its_pending_join(harness: CoordinatorHarness) -> None:
    first = harness.join(instance="i")
    second = harness.join(instance="i")
    assert first.error == ErrorCode.FENCED_INSTANCE_ID
    harness.advance(3_000)
    assert second.error == ErrorCode.NONE


def test_static_member_stays_in_the_group_until_its_session_times_out(harness: CoordinatorHarness) -> None:
    joining = harness.join(instance="i", session_ms=60_000)
    other = harness.new_member(session_ms=60_000)[1]
    while joining.pending:
        harness.advance(1_000)
    static, dynamic = joining.value, other.value
    harness.sync(static, {}, instance="i")
    harness.sync(dynamic)
    changed = harness.join(member=dynamic.member_id, protocols=(("range", b"new"),))
    harness.advance(30_000)
    assert changed.value.leader == dynamic.member_id
    assert {member.group_instance_id for member in changed.value.members} == {"i", None}


def test_static_member_is_removed_by_its_instance_id(harness: CoordinatorHarness) -> None:
    joining = harness.join(instance="i")
    harness.advance(3_000)
    harness.sync(joining.value, {}, instance="i")
    response = harness.leave(("", "i"), ("", "other"))
    assert [one.error_code for one in response.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert harness.state() == "Empty"


def test_groups_are_listed_by_state_and_type(harness: CoordinatorHarness) -> None:
    harness.stable("one")
    harness.commit(1, group="two")
    listed = harness.service.list_groups
    assert {group.group_id: group.group_state for group in listed([], [])} == {
        "one": "Stable",
        "two": "Empty",
    }
    assert [group.group_id for group in listed(["empty"], [])] == ["two"]
    assert [group.group_id for group in listed(["STABLE"], ["Classic"])] == ["one"]
    assert listed([], ["consumer"]) == []
    assert {group.protocol_type for group in listed([], [])} == {"consumer", ""}


def test_member_metadata_is_described_only_for_stable_groups(harness: CoordinatorHarness) -> None:
    protocols = (("range", subscription("t")),)
    (member,) = harness.stable(protocols=protocols)
    described = harness.service.describe(CLASSIC, "g")
    assert described is not None
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    assert described.members[0].member_metadata == subscription("t")
    assert described.members[0].member_assignment == b"a"
    assert described.members[0].client_host == "/127.0.0.1"
    harness.join(protocols=protocols, id_first=False)
    described = harness.service.describe(CLASSIC, "g")
    assert described is not None
    assert described.protocol_data == ""
    assert {one.member_metadata for one in described.members} == {b""}
    with pytest.raises(ApiError, match="Group nobody not found"):
        harness.service.describe(CLASSIC, "nobody")
    assert member.protocol_name == RANGE[0][0]
