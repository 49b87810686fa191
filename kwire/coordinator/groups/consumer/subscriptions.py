"""What consumer groups subscribe to: by name, by regular expression, and how their topics change.

A group's topics are known to it by a hash (KIP-1101). A member that subscribes anew, or a hash that is not
the stored one, raises the group epoch. Expressions are matched with all topics apart from the request that
brings them, since that may take long, and again when topics are created, or after a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from kwire.coordinator.groups.consumer import regex
from kwire.coordinator.groups.consumer.group import (
    ConsumerGroup,
    ResolvedRegex,
    SubscriptionCounts,
    is_homogeneous,
)
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.groups.consumer.topic_hash import group_hash, topic_hash
from kwire.coordinator.ports import Topic, TopicsView
from kwire.coordinator.state_machine import CoordinatorContext, CoordinatorRecord, CoordinatorResult
from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple

MIN_RESOLVE_INTERVAL_MS: Final = 10_000
"""How long at least lies between two matchings of one group's expressions; Kafka's constant."""

REFRESH_INTERVAL_MS: Final = 2**31 - 1
"""When a group's topics are looked at again though nobody said that they changed; Kafka's constant."""


class SubscriptionConfig(Protocol):
    """The configuration keys that subscriptions need."""

    @property
    def group_consumer_regex_refresh_interval_ms(self) -> int: ...


class SubscriptionChange(NamedTuple):
    """What a request changed of a member's subscription."""

    subscription: bool
    raises_epoch: bool
    """Not so while an expression that nobody used before is not matched yet."""


class Subscriptions:
    """The subscriptions of the consumer groups of one partition of the offsets topic."""

    def __init__(
        self,
        config: SubscriptionConfig,
        context: CoordinatorContext,
        topics: TopicsView,
        groups: Mapping[str, ConsumerGroup],
    ) -> None:
        self._config = config
        self._context = context
        self._logger = context.logger("kwire.groups")
        self._topics = topics
        self._groups = groups
        self._hashes: dict[Topic, int] = {}
        self._resolving: set[str] = set()
        """Groups whose expressions are about to be matched."""
        self._new_topics_version = topics.version
        """The version of the metadata that brought the newest topic, as far as that was told here."""

    # --- a member's request

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        records: list[CoordinatorRecord],
    ) -> SubscriptionChange:
        """Store what changed of a member. ApiError INVALID_REGULAR_EXPRESSION."""
        names_changed = False
        if updated != member:
            records.append(updated.metadata_record(group.id))
            names_changed = updated.subscribed != member.subscribed
        if member.regex == updated.regex and not group.regex_counts:
            return SubscriptionChange(names_changed, names_changed)
        regex_changed, resolved = self._update_regex(group, member, updated, records)
        return SubscriptionChange(names_changed or regex_changed, names_changed or resolved)

    def _update_regex(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        records: list[CoordinatorRecord],
    ) -> tuple[bool, bool]:
        """Whether the member's expression changed, and whether what the new one matches is known."""
        old, new = member.regex, updated.regex
        changed = old != new
        resolved = must_resolve = False
        if changed:
            if old and group.regex_counts.get(old) == 1:
                records.append(group.regex_record(old, None))
            if new:
                if new not in group.regex_counts:
                    regex.check(new)
                    must_resolve = True
                elif new in group.resolved:
                    resolved = True
            elif old:
                resolved = True
        if must_resolve or group.regex_counts:
            self._resolve_if_due(group, group.regex_counts_after(member, updated), now=must_resolve)
        return changed, resolved

    def resolve_again_if_due(self, group: ConsumerGroup) -> None:
        """A member was heard of that has not changed: see whether to match its group's expressions again."""
        self._resolve_if_due(group, group.regex_counts, now=False)

    def _resolve_if_due(self, group: ConsumerGroup, expressions: Collection[str], *, now: bool) -> None:
        if group.id in self._resolving:
            return
        last = next(iter(group.resolved.values()), None)
        # The time of a match is stored. One to come is of a clock that was ahead: nobody is to wait for that.
        age_ms = 0 if last is None else self._context.now_ms() - last.timestamp_ms
        if last is not None and 0 <= age_ms <= MIN_RESOLVE_INTERVAL_MS:
            return
        if not expressions:
            return
        if (
            now
            or last is None
            or len(expressions) != len(group.resolved)
            or last.version < self._new_topics_version
            or not 0 <= age_ms <= self._config.group_consumer_regex_refresh_interval_ms
        ):
            self._resolving.add(group.id)
            wanted = tuple(expressions)
            self._context.schedule(0, lambda: self._resolve(group.id, wanted))

    def refresh(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        records: list[CoordinatorRecord],
        *,
        raise_epoch: bool,
    ) -> tuple[int, bool]:
        """Look at the topics: the group epoch from now on, and whether all members want the same."""
        counts = group.counts_after(member, updated)
        members = len(group.members)
        if updated.id not in group.members and (updated.instance_id or "") not in group.static_member_ids:
            members += 1
        homogeneous = is_homogeneous(group.regex_counts_after(member, updated), counts, members)
        metadata_hash = self.metadata_hash(counts)
        epoch = group.epoch
        if raise_epoch or metadata_hash != group.metadata_hash:
            epoch += 1
            records.append(group.epoch_record(epoch, metadata_hash))
        group.refresh_at_ms = self._context.monotonic_ms() + REFRESH_INTERVAL_MS
        group.refresh_epoch = epoch
        if group.has_partition_metadata:
            records.append(group.partition_metadata_tombstone())
        return epoch, homogeneous

    def removal_records(
        self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]
    ) -> list[CoordinatorRecord]:
        """What to store when members go: their expressions, and the next group epoch."""
        leaving: dict[str, int] = {}
        for member in members:
            if member.regex:
                leaving[member.regex] = leaving.get(member.regex, 0) + 1
        unused = [name for name, count in leaving.items() if group.regex_counts.get(name) == count]
        metadata_hash = self.metadata_hash(group.counts_without(members, unused))
        return [
            *(group.regex_record(expression, None) for expression in unused),
            group.epoch_record(group.epoch + 1, metadata_hash),
        ]

    # --- expressions

    def _resolve(self, group_id: str, expressions: Collection[str]) -> CoordinatorResult:
        """Match a group's expressions with all topics. Another topic among them raises the group epoch."""
        self._resolving.discard(group_id)
        group = self._groups.get(group_id)
        if group is None:
            return CoordinatorResult()
        version, now_ms = self._topics.version, self._context.now_ms()
        names = list(self._topics.names())
        found = {
            expression: ResolvedRegex(self._matching(expression, names), version, now_ms)
            for expression in expressions
            if expression in group.regex_counts
        }
        records = [group.regex_record(expression, resolved) for expression, resolved in found.items()]
        metadata_hash = self.metadata_hash(group.counts_resolved(found))
        if metadata_hash != group.metadata_hash or any(
            group.matched(expression) != resolved.topics for expression, resolved in found.items()
        ):
            records.append(group.epoch_record(group.epoch + 1, metadata_hash))
            group.refresh_at_ms = self._context.monotonic_ms() + REFRESH_INTERVAL_MS
            group.refresh_epoch = group.epoch + 1
        return CoordinatorResult(records)

    # --- topics

    def metadata_hash(self, counts: SubscriptionCounts) -> int:
        """The hash of the topics that a group subscribes to and that exist. KIP-1101."""
        found = {}
        for name in counts:
            topic = self._topics.by_name(name)
            if topic is not None:
                found[name] = self._hash(topic)
        return group_hash(found)

    def _hash(self, topic: Topic) -> int:
        known = self._hashes.get(topic)
        if known is None:
            known = topic_hash(topic.topic_id, topic.name, self._topics.racks(topic))
            self._hashes[topic] = known
        return known

    def topics_changed(self, names: Iterable[str], *, created: bool) -> None:
        """These topics are new, gone, or have changed: groups that subscribe to them must look again."""
        if created:
            self._new_topics_version = self._topics.version
        gone = set(names)
        for topic in [topic for topic in self._hashes if topic.name in gone]:
            del self._hashes[topic]
        for group in self._groups.values():
            if not gone.isdisjoint(group.counts):
                group.request_refresh()

    def _matching(self, expression: str, names: Collection[str]) -> frozenset[str]:
        try:
            regex.check(expression)
        except ApiError as error:
            # It was stored by another broker, which had other rules.
            self._logger.error("%s: it matches nothing", error)
            return frozenset()
        return regex.matching(expression, names)
