"""Properties that hold for every assignment."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.coordinator.groups.assignors import ASSIGNORS
from kwire.coordinator.groups.assignors.spec import Assignment, GroupSpec, MemberSpec
from kwire.wire.errors import ApiError, ErrorCode

TOPICS = [bytes([number]) * 16 for number in range(1, 7)]


@dataclass(frozen=True)
class Group:
    """The members of a group and their subscriptions."""

    subscribed: dict[str, frozenset[bytes]]
    counts: dict[bytes, int]
    static: frozenset[str]

    def spec(self, assigned: Assignment) -> GroupSpec:
        return GroupSpec(
            members={
                member_id: MemberSpec(
                    subscribed=topics,
                    instance_id=f"static {member_id}" if member_id in self.static else None,
                    rack_id=None,
                    assigned=assigned.get(member_id, {}),
                )
                for member_id, topics in self.subscribed.items()
            },
            homogeneous=len(set(self.subscribed.values())) <= 1,
            partition_counts=self.counts,
        )

    def without(self, member_id: str) -> Group:
        subscribed = {other: topics for other, topics in self.subscribed.items() if other != member_id}
        return Group(subscribed, self.counts, self.static)


@st.composite
def groups(draw: st.DrawFn, homogeneous: bool | None = None) -> Group:
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 20), min_size=1))
    members = draw(st.lists(st.text(max_size=3), min_size=1, max_size=8, unique=True))
    some = st.frozensets(st.sampled_from(sorted(counts)), min_size=1)
    if homogeneous if homogeneous is not None else draw(st.booleans()):
        topics = draw(some)
        subscribed = dict.fromkeys(members, topics)
    else:
        subscribed = {member_id: draw(some) for member_id in members}
    return Group(subscribed, counts, draw(st.frozensets(st.sampled_from(members))))


def owners(assignment: Assignment) -> dict[tuple[bytes, int], str]:
    """Return the owner of each partition; fail if a partition has two."""
    result: dict[tuple[bytes, int], str] = {}
    for member_id, topics in assignment.items():
        for topic_id, partitions in topics.items():
            assert partitions
            for partition in partitions:
                assert (topic_id, partition) not in result
                result[topic_id, partition] = member_id
    return result


def sizes(assignment: Assignment) -> dict[str, int]:
    return {member_id: sum(map(len, topics.values())) for member_id, topics in assignment.items()}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_every_partition_is_assigned_to_one_subscribed_member(name: str, group: Group) -> None:
    assigned = owners(ASSIGNORS[name](group.spec({})))
    subscribed = frozenset[bytes]().union(*group.subscribed.values())
    assert assigned.keys() == {
        (topic_id, at) for topic_id in subscribed for at in range(group.counts[topic_id])
    }
    assert all(topic_id in group.subscribed[member_id] for (topic_id, _), member_id in assigned.items())


@given(group=groups(homogeneous=True))
def test_uniform_is_balanced_for_a_homogeneous_group(group: Group) -> None:
    result = sizes(ASSIGNORS["uniform"](group.spec({}))).values()
    assert max(result) - min(result) <= 1


@given(group=groups(homogeneous=False))
def test_uniform_balances_each_topic(group: Group) -> None:
    assignment = ASSIGNORS["uniform"](group.spec({}))
    size = sizes(assignment)
    for (topic_id, _), owner in owners(assignment).items():
        fewest = min(size[member_id] for member_id, topics in group.subscribed.items() if topic_id in topics)
        assert size[owner] - fewest <= 1


@given(group=groups())
def test_uniform_does_not_change_a_balanced_assignment(group: Group) -> None:
    first = ASSIGNORS["uniform"](group.spec({}))
    assert ASSIGNORS["uniform"](group.spec(first)) == first


@given(group=groups(homogeneous=True), data=st.data())
def test_uniform_revokes_nothing_from_remaining_members_after_a_leave(
    group: Group, data: st.DataObject
) -> None:
    before = ASSIGNORS["uniform"](group.spec({}))
    remaining = group.without(data.draw(st.sampled_from(sorted(group.subscribed))))
    after = ASSIGNORS["uniform"](remaining.spec(before))
    for member_id, topics in after.items():
        for topic_id, partitions in before[member_id].items():
            assert partitions <= topics.get(topic_id, frozenset())


@given(group=groups(homogeneous=True))
def test_range_assigns_equal_ranges_of_topics_of_equal_size(group: Group) -> None:
    homogeneous = Group(group.subscribed, dict.fromkeys(group.counts, 7), group.static)
    for topics in ASSIGNORS["range"](homogeneous.spec({})).values():
        assert len(set(topics.values())) <= 1
        for partitions in topics.values():
            assert sorted(partitions) == list(range(min(partitions), max(partitions) + 1))


def test_range_gives_a_returning_static_member_its_ranges() -> None:
    topic = TOPICS[0]

    def assign(**members: str) -> Assignment:
        return ASSIGNORS["range"](
            GroupSpec(
                {
                    member_id: MemberSpec(frozenset({topic}), instance_id, None, {})
                    for member_id, instance_id in members.items()
                },
                homogeneous=True,
                partition_counts={topic: 3},
            )
        )

    assert assign(a="one", b="two") == {"a": {topic: frozenset({0, 1})}, "b": {topic: frozenset({2})}}
    assert assign(a="two", b="one") == {"b": {topic: frozenset({0, 1})}, "a": {topic: frozenset({2})}}


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("is_homogeneous", [True, False])
def test_missing_topic_is_an_error(name: str, is_homogeneous: bool) -> None:
    members = {"a": MemberSpec(frozenset({TOPICS[0]}), None, None, {})}
    with pytest.raises(ApiError) as raised:
        ASSIGNORS[name](GroupSpec(members, is_homogeneous, {TOPICS[1]: 1}))
    assert raised.value.code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("is_homogeneous", [True, False])
def test_empty_group_or_subscription_gets_no_partitions(name: str, is_homogeneous: bool) -> None:
    assert ASSIGNORS[name](GroupSpec({}, is_homogeneous, {})) == {}
    members = {"a": MemberSpec(frozenset(), None, None, {TOPICS[0]: frozenset({0})})}
    assert not ASSIGNORS[name](GroupSpec(members, is_homogeneous, {TOPICS[0]: 1})).get("a")
