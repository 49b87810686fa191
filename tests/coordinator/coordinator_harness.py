"""A group coordinator with virtual time and a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kwire.broker.config import BrokerConfig
from kwire.coordinator.groups.classic_protocol import JoinRequest, SyncRequest
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.groups.record_serde import record_types, stored_records
from kwire.coordinator.groups.registry import CLASSIC, GROUP_TYPES
from kwire.coordinator.groups.service import GroupCoordinatorService
from kwire.coordinator.partitioner import partition_of
from kwire.coordinator.ports import Topic
from kwire.coordinator.state_machine import DecodedRecord
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import read_header, stamp
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity
from kwire.wire.schema import Message

PARTITIONS = 4


@dataclass
class Config:
    """The configuration keys of the group coordinator, with Kafka's defaults."""

    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_assignors: list[str] = field(default_factory=lambda: ["uniform", "range"])
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_consumer_session_timeout_ms: int = 45_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_min_session_timeout_ms: int = 6_000
    offsets_commit_timeout_ms: int = 5_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 10_080
    offsets_topic_num_partitions: int = 50


class BrokerSettings:
    """Configurations of groups that all default to the broker's configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def session_timeout_ms(self, _group_id: str) -> int:
        return self._config.group_consumer_session_timeout_ms

    def heartbeat_interval_ms(self, _group_id: str) -> int:
        return self._config.group_consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, _group_id: str) -> int:
        return self._config.group_consumer_assignment_interval_ms


class FakePorts:
    """The offsets topic as lists of batches. Appends are committed in the next turn, unless `held` is set."""

    def __init__(self, host: VirtualHost) -> None:
        self.host = host
        self.partitions: int | None = PARTITIONS
        self.logs: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
        self.held: list[Callable[[ApiError | None], None]] | None = None
        self.refuse: ErrorCode | None = None
        self.max_bytes = 1 << 20
        self.creations = 0

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> int:
        if self.refuse is not None:
            raise ApiError(self.refuse)
        if len(data) > self.max_bytes:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        offset = self.log_end_offset(index)
        stamp(data, 0, offset, 0)
        self.logs[index].append(bytes(data))
        if self.held is not None:
            self.held.append(on_committed)
        else:
            self.host.call_soon(lambda: on_committed(None))
        return offset

    def log_end_offset(self, index: int) -> int:
        return read_header(self.logs[index][-1]).next_offset if self.logs[index] else 0

    def delete_records_before(self, index: int, offset: int) -> None:
        raise AssertionError("groups need all records")

    def max_batch_bytes(self, _index: int) -> int:
        if self.refuse is not None:
            raise ApiError(self.refuse)
        return self.max_bytes

    def release(self, error: ErrorCode | None = None) -> None:
        """Commit the held appends, or fail them with `error`."""
        held, self.held = self.held or [], None
        for on_committed in held:
            on_committed(None if error is None else ApiError(error))

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        for data in list(self.logs[index]):
            yield memoryview(data)

    def when_committed(self, _index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        if self.held is None:
            on_committed(None)
        else:
            self.held.append(on_committed)

    def partition_count(self) -> int | None:
        return self.partitions

    def leader(self, _index: int) -> int | None:
        return 1

    def create_topic(self) -> None:
        self.creations += 1


class FakeTopics:
    """The topics of the cluster. A topic id is its name, padded with zeros; recreated topics use `name#2`."""

    def __init__(self) -> None:
        self.version = 1
        self.topics: dict[str, Topic] = {}
        self.racks_of: dict[str, list[list[str]]] = {}
        self._generations: dict[str, int] = {}

    def put(self, name: str, partition_count: int) -> None:
        """Create a topic, or change its partition count."""
        self.version += 1
        if name not in self.topics:
            self._generations[name] = self._generations.get(name, 0) + 1
        text = name if self._generations[name] == 1 else f"{name}#{self._generations[name]}"
        self.topics[name] = Topic(text.encode().ljust(16, b"\0"), name, partition_count)

    def remove(self, name: str) -> None:
        self.version += 1
        del self.topics[name]

    def by_name(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return self.topics

    def racks(self, topic: Topic) -> Sequence[Sequence[str]]:
        return self.racks_of.get(topic.name, [[]] * topic.partition_count)


def decoded(data: bytes) -> Iterator[DecodedRecord]:
    """Decode the records of a stored batch."""
    return stored_records(record_types(GROUP_TYPES), memoryview(data))


class Reply:
    """A response that may still be pending."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, *values: Any) -> None:
        self.values.append(values[0] if len(values) == 1 else values)

    @property
    def pending(self) -> bool:
        return not self.values

    @property
    def value(self) -> Any:
        assert len(self.values) == 1, f"{len(self.values)} responses"
        return self.values[0]

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.value.error_code)


RANGE = (("range", b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"),)


def subscription(*topics: str) -> bytes:
    """Return the member metadata of a consumer of these topics (version 0, no user data)."""
    data = b"\x00\x00" + len(topics).to_bytes(4, "big")
    for topic in topics:
        data += len(topic).to_bytes(2, "big") + topic.encode()
    return data + b"\xff\xff\xff\xff"


class CoordinatorHarness:
    """Sends requests to a group coordinator and advances its time."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.host = VirtualHost(seed=1)
        self.ports = FakePorts(self.host)
        self.topics = FakeTopics()
        self.service = self._start()

    def _start(self) -> GroupCoordinatorService:
        service = GroupCoordinatorService(
            cast("BrokerConfig", self.config), self.host, self.ports, self.topics, BrokerSettings(self.config)
        )
        for index in range(PARTITIONS):
            service.elected(index, 0)
        return service

    def restart(self) -> None:
        """Restart the coordinator, which loads the same log."""
        self.host.run_pending()
        self.service.shutdown()
        self.service = self._start()

    def advance(self, delay_ms: int) -> None:
        self.host.advance(delay_ms)
        self.host.run_pending()

    def join(
        self,
        group: str = "g",
        member: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        client: str = "c",
        id_first: bool = True,
        can_skip: bool = True,
    ) -> Reply:
        reply = Reply()
        self.service.join(
            JoinRequest(
                group_id=group,
                member_id=member,
                instance_id=instance,
                client_id=client,
                client_host="/127.0.0.1",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=protocols,
                requires_member_id=id_first,
                can_skip_assignment=can_skip,
            ),
            reply,
        )
        self.host.run_pending()
        return reply

    def new_member(self, group: str = "g", **options: Any) -> tuple[str, Reply]:
        """Get a member id and join with it; return the id and the response to the second JoinGroup."""
        member = self.join(group, **options).value.member_id
        return member, self.join(group, member, **options)

    def sync(
        self,
        joined: JoinGroupResponse,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        generation: int | None = None,
        protocol: str | None = None,
    ) -> Reply:
        reply = Reply()
        self.service.sync(
            SyncRequest(
                group,
                joined.generation_id if generation is None else generation,
                joined.member_id,
                instance,
                joined.protocol_type,
                protocol or joined.protocol_name,
                list((assignments or {}).items()),
            ),
            reply,
        )
        self.host.run_pending()
        return reply

    def stable(self, group: str = "g", count: int = 1, **options: Any) -> list[JoinGroupResponse]:
        """Create a stable group of `count` members, the leader first, with the assignments a, b, c."""
        replies = [self.new_member(group, **options)[1] for _ in range(count)]
        while replies[0].pending:
            self.advance(1_000)
        joined = [reply.value for reply in replies]
        assignments = {one.member_id: bytes([97 + at]) for at, one in enumerate(joined)}
        syncs = [self.sync(one, group=group) for one in joined[1:]]
        syncs.insert(0, self.sync(joined[0], assignments, group=group))
        assert [sync.value.assignment for sync in syncs] == list(assignments.values())
        return joined

    def heartbeat(
        self, joined: JoinGroupResponse, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        return self.service.heartbeat(group, joined.generation_id, joined.member_id, instance)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> LeaveGroupResponse:
        reply = Reply()
        self.service.leave(
            group,
            [MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members],
            reply,
        )
        self.host.run_pending()
        response = reply.value
        assert isinstance(response, LeaveGroupResponse)
        return response

    def commit(
        self,
        offset: int,
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        generation: int = -1,
        member: str = "",
        retention_ms: int | None = None,
        version: int = 9,
    ) -> Reply:
        reply = Reply()
        commits = [PartitionCommit(topic, partition, offset, -1, "")]
        self.service.commit_offsets(
            OffsetCommit(group, generation, member, None, commits, retention_ms, version), reply
        )
        self.host.run_pending()
        return reply

    def offsets(self, group: str = "g") -> dict[tuple[str, int], int]:
        """Return all committed offsets of a group, after pending appends."""
        self.host.run_pending()
        reply = Reply()

        def read(stored: Any) -> dict[tuple[str, int], int]:
            return {
                (topic, index): one.offset for topic, all_ in stored.items() for index, one in all_.items()
            }

        self.service.fetch_offsets(group, read, reply)
        self.host.run_pending()
        code, entries = reply.value
        assert code == ErrorCode.NONE
        return dict(entries)

    def state(self, group: str = "g") -> str | None:
        try:
            return self.service.describe(CLASSIC, group).group_state
        except ApiError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None

    def records(self, group: str = "g") -> list[tuple[Message, Message | None]]:
        """Return all stored records of a group."""
        log = self.ports.logs[partition_of(group, PARTITIONS)]
        entries = [entry[:2] for data in log for entry in decoded(data)]
        return [
            (key, value)
            for key, value in entries
            if group in (getattr(key, "group", None), getattr(key, "group_id", None))
        ]
