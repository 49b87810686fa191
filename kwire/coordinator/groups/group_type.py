"""The contract of a group type: the methods of a group, and of all groups of the type in one partition.

Offsets and their expiry, listing, describing and deletion are the same for all types. `state_machine`
implements them for the groups of `registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from kwire.broker.config import BrokerConfig
from kwire.coordinator.groups.classic_protocol import ClassicProtocol
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit
from kwire.coordinator.groups.rebalance_counts import RebalanceCounts
from kwire.coordinator.ports import GroupSettings, TopicsView
from kwire.coordinator.state_machine import CoordinatorContext, CoordinatorRecord
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message


class Group(ABC):
    """A group of any type. By default, as in a share group, its members do not commit offsets."""

    __slots__ = ()

    id: str
    protocol_type: str | None

    @property
    @abstractmethod
    def state(self) -> Enum:
        """The group's state, whose value is the name in responses. A group without members is `Empty`."""

    def is_subscribed(self, topic: str) -> bool:
        """Whether the committed offsets of this topic are in use."""
        return False

    @abstractmethod
    def tombstones(self) -> list[CoordinatorRecord]:
        """Return tombstones for all records of the group, without its offsets."""

    def check_commit(self, commit: OffsetCommit, *, is_transactional: bool) -> None:
        """Check the sender of a commit. Raises ApiError for the whole commit."""
        raise self.no_offsets()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check the sender of an OffsetFetch, which may have no member id. Raises ApiError."""
        raise self.no_offsets()

    def check_offset_deletion(self) -> None:
        """Check that offsets of topics without a subscription may be deleted. Raises ApiError."""
        raise self.no_offsets()

    def no_offsets(self) -> ApiError:
        """Return Kafka's error for a group that has no committed offsets."""
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.id} is not a consumer group.")

    def retention_start(self) -> Callable[[CommittedOffset], int] | None:
        """Return a function from an offset to the start of its retention in ms.

        Returns None if no offset may expire now.
        """
        return since_commit


G = TypeVar("G", bound=Group)
D = TypeVar("D")


class GroupsOfType(ABC, Generic[G, D]):
    """The groups of one type in one partition of `__consumer_offsets`. D describes a group in responses."""

    classic_protocol: ClassicProtocol | None = None
    """The handlers of the classic protocol, or None if these groups have no members with this protocol."""

    def __init__(self, registry: GroupRegistry) -> None:
        self.groups: dict[str, G] = {}
        self._registry = registry
        self._config = registry.config
        self._context = registry.context
        self._logger = registry.context.logger("kwire.groups")

    @abstractmethod
    def replay(self, key: Any, value: Any, offset: int) -> None:
        """Apply a record of one of the type's record types. A value of None is a tombstone.

        The first record of a new group removes a group of another type with the same id.
        """

    def record_pending(self, key: Any) -> None:
        """Remember the current state of this key for responses until the key's next record is committed."""

    def record_committed(self, key: Any) -> None:
        """Forget the oldest remembered state of this key."""

    def discard(self, group_id: str) -> None:
        """Remove a group from memory, since the log has a group of another type with this id."""
        del self.groups[group_id]

    def check_commit(self, group: G, commit: OffsetCommit, *, is_transactional: bool) -> None:
        """Check the sender of a commit. Raises the errors of `Group.check_commit`."""
        group.check_commit(commit, is_transactional=is_transactional)

    @abstractmethod
    def describe(self, group_id: str, *, only_committed: bool) -> D | None:
        """Describe a group, or return None if it is not of this type.

        With `only_committed`, changes whose records are not committed yet are omitted. Raises ApiError
        GROUP_ID_NOT_FOUND if the group itself is not committed.
        """

    def topics_changed(self, names: Iterable[str], *, created: bool) -> None:
        """Make the subscribed groups check these topics, which were created, deleted or changed."""

    def on_loaded(self) -> None:
        """Start the sessions of all members."""

    def on_unloaded(self, code: ErrorCode) -> None:
        """Complete all waiting requests with `code`, and stop all timers."""


T = TypeVar("T", bound=GroupsOfType[Any, Any])


class GroupType(NamedTuple, Generic[T, D]):
    """A type of group."""

    name: str
    """The name in ListGroups and in error messages."""
    make: Callable[[GroupRegistry], T]
    """Creates the groups of a partition. The registry has the groups of the types before this one."""
    record_types: Mapping[type[Message], type[Message]]
    """The value class of each record's key class."""
    described: Callable[..., D]
    """The class of a group in the response that describes it. It has a group id and an error."""
    states: Sequence[str] = ()
    """The states by which Kafka's metrics of the group coordinator count the groups of this type."""


class GroupRegistry:
    """The groups of one partition of `__consumer_offsets`. An id is that of one group, of any type."""

    def __init__(
        self,
        group_types: Sequence[GroupType[Any, Any]],
        config: BrokerConfig,
        context: CoordinatorContext,
        topics: TopicsView,
        settings: GroupSettings,
        rebalances: RebalanceCounts,
    ) -> None:
        self.config = config
        self.context = context
        self.topics = topics
        self.settings = settings
        self.rebalances = rebalances
        self.group_types = group_types
        self.by_name: dict[str, GroupsOfType[Any, Any]] = {}
        """The groups of each type, by the type's name."""
        for group_type in group_types:
            self.by_name[group_type.name] = group_type.make(self)

    def of(self, group_type: GroupType[T, Any]) -> T:
        """Return the groups of a type."""
        return cast("T", self.by_name[group_type.name])

    def owner(self, group_id: str) -> GroupsOfType[Any, Any] | None:
        """Return the groups that contain the group with this id, or None if there is no such group."""
        for groups in self.by_name.values():
            if group_id in groups.groups:
                return groups
        return None

    def find(self, group_id: str) -> Group | None:
        """Return the group with this id, or None."""
        owner = self.owner(group_id)
        return None if owner is None else owner.groups[group_id]

    def release(self, group_id: str) -> None:
        """Remove the group with this id from memory, if there is one."""
        owner = self.owner(group_id)
        if owner is not None:
            owner.discard(group_id)

    def __iter__(self) -> Iterator[Group]:
        for groups in self.by_name.values():
            yield from groups.groups.values()


def since_commit(committed: CommittedOffset) -> int:
    """Return the time in ms at which an offset was committed."""
    return committed.commit_timestamp
