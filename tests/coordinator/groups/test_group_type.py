"""A new type of group needs one entry in the registry, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kwire.broker.observe import metrics
from kwire.broker.observe.exposition import Exposition
from kwire.broker.observe.ports import ObservedBroker
from kwire.coordinator.groups import registry
from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.groups.group_type import Group, GroupRegistry, GroupsOfType, GroupType
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.partitioner import partition_of
from kwire.coordinator.state_machine import EMPTY_RESULT, CoordinatorRecord, CoordinatorResult, TimerHandle
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.wire.messages.list_groups import ListedGroup
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import decode_version_prefixed
from kwire.wire.schema import Int32, Message, Str, field, message
from tests.coordinator.coordinator_harness import PARTITIONS, CoordinatorHarness, Reply

SESSION_MS = 10_000
GROUP = "greeters"


@message(key=99, versions="0")
class HelloMemberKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=99, versions="0")
class HelloMemberValue(Message):
    greetings: Int32 = field()


class HelloDescription(NamedTuple):
    """A group in a response."""

    group_id: str
    error_code: int = 0
    error_message: str | None = None
    members: tuple[str, ...] = ()


class HelloState(Enum):
    EMPTY = "Empty"
    GREETING = "Greeting"


class HelloGroup(Group):
    """A group whose members send greetings, until they have been silent for too long."""

    protocol_type = "hello"

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.members: dict[str, int] = {}

    @property
    def state(self) -> HelloState:
        return HelloState.GREETING if self.members else HelloState.EMPTY

    def tombstones(self) -> list[CoordinatorRecord]:
        return [tombstone(self.id, member_id) for member_id in ("", *self.members)]


class HelloGroups(GroupsOfType[HelloGroup, HelloDescription]):
    def __init__(self, partition_groups: GroupRegistry) -> None:
        super().__init__(partition_groups)
        self._sessions: dict[tuple[str, str], TimerHandle] = {}
        self.replayed_offsets: list[int] = []

    def join(self, group_id: str, member_id: str) -> tuple[CoordinatorResult, str]:
        """Handle a request of a member. The first request makes it a member."""
        if group_id not in self.groups and self._registry.find(group_id) is not None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a hello group.")
        group = self.groups.get(group_id)
        greetings = 1 if group is None else group.members.get(member_id, 0) + 1
        self._start_session(group_id, member_id)
        records = [
            CoordinatorRecord(
                HelloMemberKey(group_id=group_id, member_id=name), HelloMemberValue(greetings=n)
            )
            for name, n in (("", 0), (member_id, greetings))
        ]
        return CoordinatorResult(records), f"hello {member_id} ({greetings})"

    def _start_session(self, group_id: str, member_id: str) -> None:
        known = self._sessions.pop((group_id, member_id), None)
        if known is not None:
            known.cancel()

        def over() -> CoordinatorResult:
            del self._sessions[group_id, member_id]
            return CoordinatorResult([tombstone(group_id, member_id)])

        self._sessions[group_id, member_id] = self._context.schedule(SESSION_MS, over)

    def replay(self, key: HelloMemberKey, value: HelloMemberValue | None, offset: int) -> None:
        self.replayed_offsets.append(offset)
        group = self.groups.get(key.group_id)
        if value is None:
            if group is not None:
                group.members.pop(key.member_id, None)
                if not key.member_id:
                    del self.groups[key.group_id]
            return
        if group is None:
            self._registry.release(key.group_id)
            group = self.groups[key.group_id] = HelloGroup(key.group_id)
        if key.member_id:
            group.members[key.member_id] = value.greetings

    def describe(self, group_id: str, *, only_committed: bool) -> HelloDescription | None:
        group = self.groups.get(group_id)
        return None if group is None else HelloDescription(group_id, members=tuple(group.members))

    def on_loaded(self) -> None:
        for group in self.groups.values():
            for member_id in group.members:
                self._start_session(group.id, member_id)

    def on_unloaded(self, code: ErrorCode) -> None:
        for session in self._sessions.values():
            session.cancel()


def tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(HelloMemberKey(group_id=group_id, member_id=member_id), None)


HELLO = GroupType(
    "hello", HelloGroups, {HelloMemberKey: HelloMemberValue}, HelloDescription, ("Empty", "Greeting")
)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorHarness]:
    """Return a coordinator that also serves groups of the type hello."""
    monkeypatch.setattr(registry, "GROUP_TYPES", (*registry.GROUP_TYPES, HELLO))
    harness = CoordinatorHarness()
    yield harness
    harness.service.shutdown()
    assert harness.host.timers == 0


def join(harness: CoordinatorHarness, member_id: str, group: str = GROUP) -> Any:
    reply = Reply()
    harness.service.run(HELLO, group, lambda groups: groups.join(group, member_id), reply)
    harness.host.run_pending()
    return reply.value


def describe(harness: CoordinatorHarness) -> HelloDescription:
    reply = Reply()
    harness.service.describe_committed(HELLO, GROUP, reply)
    harness.host.run_pending()
    description = reply.value
    assert isinstance(description, HelloDescription)
    return description


def listed(harness: CoordinatorHarness) -> list[tuple[str, str, str, str]]:
    groups: list[ListedGroup] = harness.service.list_groups((), ())
    return [(each.group_id, each.group_type, each.protocol_type, each.group_state) for each in groups]


def test_member_joins_with_one_request(harness: CoordinatorHarness) -> None:
    harness.ports.held = []
    reply = Reply()
    harness.service.run(HELLO, GROUP, lambda groups: groups.join(GROUP, "a"), reply)
    harness.host.run_pending()
    assert reply.pending, "the response waits until the records are committed"
    harness.ports.release()
    assert reply.value == "hello a (1)"
    assert join(harness, "a") == "hello a (2)"
    assert describe(harness) == HelloDescription(GROUP, members=("a",))


def test_group_is_described_and_listed(harness: CoordinatorHarness) -> None:
    harness.stable("workers")
    join(harness, "a")
    join(harness, "b")
    assert describe(harness).members == ("a", "b")
    assert harness.service.describe(HELLO, GROUP).members == ("a", "b")
    assert listed(harness) == [
        ("workers", "classic", "consumer", "Stable"),
        (GROUP, "hello", "hello", "Greeting"),
    ]
    assert [each.group_id for each in harness.service.list_groups(["greeting"], ["Hello"])] == [GROUP]
    assert harness.service.list_groups(["stable"], ["hello"]) == []


def test_describing_a_missing_group_and_a_group_of_another_type(harness: CoordinatorHarness) -> None:
    assert describe(harness) == HelloDescription(
        GROUP, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {GROUP} not found."
    )
    harness.commit(1, group=GROUP)
    assert describe(harness).error_message == f"Group {GROUP} is not a hello group."


def test_metrics_count_the_groups_by_type_and_state(harness: CoordinatorHarness) -> None:
    join(harness, "a")
    out = Exposition()
    metrics._groups(cast("ObservedBroker", SimpleNamespace(groups=harness.service)), out)
    prefix = "kafka_server_group_coordinator_metrics"
    assert f"{prefix}_protocol_hello_group_count 1\n" in out.text()
    assert f"{prefix}_state_empty_hello_group_count 0\n" in out.text()
    assert f"{prefix}_state_greeting_hello_group_count 1\n" in out.text()


def test_member_leaves_when_its_session_times_out(harness: CoordinatorHarness) -> None:
    join(harness, "a")
    harness.advance(SESSION_MS - 1)
    join(harness, "b")
    harness.advance(1)
    assert describe(harness).members == ("b",)


def test_loading_restores_the_groups_and_their_timers(harness: CoordinatorHarness) -> None:
    join(harness, "a")
    join(harness, "b")
    before = describe(harness)
    harness.restart()
    assert describe(harness) == before
    assert join(harness, "a") == "hello a (2)"
    harness.advance(SESSION_MS)
    assert listed(harness) == [(GROUP, "hello", "hello", "Empty")]
    harness.restart()
    assert listed(harness) == [(GROUP, "hello", "hello", "Empty")]


def test_replay_gets_offsets_when_running_and_when_loading(harness: CoordinatorHarness) -> None:
    def offsets() -> list[int]:
        shard = harness.service.shard_for(GROUP)
        return shard.machine.registry.of(HELLO).replayed_offsets

    join(harness, "a")
    join(harness, "b")
    assert offsets() == [0, 1, 2, 3]
    harness.restart()
    assert offsets() == [0, 1, 2, 3]


def test_deletion_writes_tombstones(harness: CoordinatorHarness) -> None:
    join(harness, "a")

    def delete() -> ErrorCode:
        reply = Reply()
        harness.service.delete_groups([GROUP], reply)
        harness.host.run_pending()
        code: ErrorCode = reply.value[GROUP]
        return code

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    harness.advance(SESSION_MS)
    assert delete() == ErrorCode.NONE
    assert listed(harness) == []
    keys = stored_keys(harness)
    assert keys[-2:] == [("a", False), ("", False)]
    harness.restart()
    assert listed(harness) == []
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND


def stored_keys(harness: CoordinatorHarness) -> list[tuple[str, bool]]:
    """Return the member id of each stored record, and whether the record has a value."""
    return [
        (decode_version_prefixed(HelloMemberKey, record.key or b"").member_id, record.value is not None)
        for data in harness.ports.logs[partition_of(GROUP, PARTITIONS)]
        for record in batch.records(data, 0, batch.read_header(data))
    ]


def test_empty_group_expires(harness: CoordinatorHarness) -> None:
    join(harness, "a")
    harness.advance(harness.config.offsets_retention_check_interval_ms)
    assert listed(harness) == []


def test_other_protocols_do_not_touch_the_group(harness: CoordinatorHarness) -> None:
    """A group id is that of one group."""
    join(harness, "a")
    assert harness.join(GROUP).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.service.heartbeat(GROUP, 1, "a", None) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.leave(("a", None), group=GROUP).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    reply = Reply()
    harness.service.consumer_heartbeat(
        ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="c",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        ClientIdentity("c", "/h"),
        1,
        reply,
    )
    harness.host.run_pending()
    assert reply.value.error_message == f"Group {GROUP} is not a consumer group."
    assert harness.commit(1, group=GROUP).value == ErrorCode.GROUP_ID_NOT_FOUND
    commit = OffsetCommit(GROUP, -1, "", None, [PartitionCommit("t", 0, 1, -1, "")], None, 0)
    transactional = Reply()
    harness.service.commit_offsets(commit, transactional, (7, 0))
    assert transactional.value == ErrorCode.GROUP_ID_NOT_FOUND
    fetched, deleted = Reply(), Reply()
    harness.service.fetch_offsets(GROUP, dict, fetched)
    harness.service.delete_offsets(GROUP, [("t", 0)], deleted)
    assert (fetched.value[0], deleted.value[0]) == (ErrorCode.GROUP_ID_NOT_FOUND,) * 2
    assert listed(harness) == [(GROUP, "hello", "hello", "Greeting")]


def test_member_cannot_join_a_group_of_another_type(harness: CoordinatorHarness) -> None:
    harness.stable(GROUP)
    error = join(harness, "a")
    assert isinstance(error, ApiError)
    assert error.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert harness.state(GROUP) == "Stable"


def test_unloading_fails_a_waiting_request(harness: CoordinatorHarness) -> None:
    harness.ports.held = []
    reply = Reply()
    harness.service.run(HELLO, GROUP, lambda groups: groups.join(GROUP, "a"), reply)
    harness.service.resigned(partition_of(GROUP, PARTITIONS), 0)
    assert reply.value.code is ErrorCode.NOT_COORDINATOR
    harness.service.shutdown()
    harness.service.run(HELLO, GROUP, lambda groups: (EMPTY_RESULT, ""), reply.values.append)
    assert reply.values[1].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
