"""Subscriptions of consumer groups by name and by regular expression, and changes of their topics.

A group stores a hash of its topics (KIP-1101). A changed subscription or a changed hash bumps the group
epoch. A new regular expression is matched against all topics after the request that contains it, since the
match may take long. Regular expressions are matched again when topics are created, and at an interval.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from functools import partial
from typing import Final

from kwire.coordinator.groups.consumer import regex
from kwire.coordinator.groups.consumer.group import (
    ConsumerGroup,
    ResolvedRegex,
    SubscriptionCounts,
    is_homogeneous,
)
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.groups.consumer.requests import MayDescribe
from kwire.coordinator.groups.consumer.topic_hash import group_hash, topic_hash
from kwire.coordinator.groups.group_type import GroupRegistry
from kwire.coordinator.ports import Topic
from kwire.coordinator.state_machine import EMPTY_RESULT, CoordinatorRecord, CoordinatorResult
from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple

MIN_RESOLVE_INTERVAL_MS: Final = 10_000
"""The minimum time between two resolutions of a group's regular expressions; Kafka's constant."""

SLICE_TOPICS: Final = 512
"""The number of topics that are matched in one turn of the event loop, which takes about 4 ms."""

REFRESH_INTERVAL_MS: Final = 2**31 - 1
"""The interval at which a group's topics are checked without a metadata change; Kafka's constant."""


class SubscriptionChange(NamedTuple):
    """The effect of a request on a member's subscription."""

    subscription: bool
    """Whether the subscription changed."""
    raises_epoch: bool
    """Whether the group epoch must be bumped now. A new regular expression bumps it when it is resolved."""


class Subscriptions:
    """The subscriptions of the consumer groups of one partition of `__consumer_offsets`."""

    def __init__(self, registry: GroupRegistry, groups: Mapping[str, ConsumerGroup]) -> None:
        self._config = registry.config
        self._context = registry.context
        self._logger = registry.context.logger("kwire.groups")
        self._topics = registry.topics
        self._rebalances = registry.rebalances
        self._groups = groups
        self._hashes: dict[Topic, int] = {}
        self._resolving: set[str] = set()
        """Groups whose regular expressions are about to be resolved."""
        self._new_topics_version = registry.topics.version
        """The latest metadata version that created a topic."""

    # --- a member's request

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        records: list[CoordinatorRecord],
        may_describe: MayDescribe | None,
    ) -> SubscriptionChange:
        """Add the records of a request that changes `member` to `updated`, and return the change.

        Regular expressions are resolved to topics that the sender may describe. If `may_describe` is None,
        another request resolves them. Raises ApiError INVALID_REGULAR_EXPRESSION.
        """
        names_changed = False
        if updated != member:
            records.append(updated.metadata_record(group.id))
            names_changed = updated.subscribed != member.subscribed
        if member.regex == updated.regex and not group.regex_counts:
            return SubscriptionChange(names_changed, names_changed)
        regex_changed, resolved = self._update_regex(group, member, updated, records, may_describe)
        return SubscriptionChange(names_changed or regex_changed, names_changed or resolved)

    def _update_regex(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        records: list[CoordinatorRecord],
        may_describe: MayDescribe | None,
    ) -> tuple[bool, bool]:
        """Return whether the member's regular expression changed, and whether the change takes effect now.

        A new expression takes effect only after it was resolved.
        """
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
        if may_describe is not None and (must_resolve or group.regex_counts):
            expressions = group.regex_counts_after(member, updated)
            self._resolve_if_due(group, expressions, may_describe, now=must_resolve)
        return changed, resolved

    def resolve_again_if_due(self, group: ConsumerGroup, may_describe: MayDescribe) -> None:
        """Resolve the group's regular expressions again if that is due. Keep-alives call this method."""
        self._resolve_if_due(group, group.regex_counts, may_describe, now=False)

    def _resolve_if_due(
        self,
        group: ConsumerGroup,
        expressions: Collection[str],
        may_describe: MayDescribe,
        *,
        now: bool,
    ) -> None:
        if group.id in self._resolving:
            return
        last = next(iter(group.resolved.values()), None)
        # If another broker's clock was ahead, the stored time is in the future, and is ignored.
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
            self._context.schedule(0, lambda: self._resolve(group.id, wanted, may_describe))

    def refresh(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        records: list[CoordinatorRecord],
        *,
        raise_epoch: bool,
    ) -> tuple[int, bool]:
        """Return the group epoch, and whether all members have the same subscription.

        The epoch is bumped if `raise_epoch` is set or the hash of the subscribed topics has changed.
        """
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
            self._rebalances.consumer += 1
        group.refresh_at_ms = self._context.monotonic_ms() + REFRESH_INTERVAL_MS
        group.refresh_epoch = epoch
        if group.has_partition_metadata:
            records.append(group.partition_metadata_tombstone())
        return epoch, homogeneous

    def removal_records(
        self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]
    ) -> list[CoordinatorRecord]:
        """Return the records for the removal of members: the next group epoch, and tombstones.

        The tombstones are those of regular expressions that no other member uses.
        """
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

    # --- regular expressions

    def _resolve(
        self, group_id: str, expressions: Collection[str], may_describe: MayDescribe
    ) -> CoordinatorResult:
        """Match a group's regular expressions against topics. Changed matches bump the group epoch.

        As in Apache Kafka, the group keeps only topics that the member may describe whose request is the
        cause.
        """
        return self._resolve_in_slices(group_id, self._resolved(group_id, expressions, may_describe))

    def _resolve_in_slices(
        self, group_id: str, steps: Generator[None, None, dict[str, ResolvedRegex]]
    ) -> CoordinatorResult:
        """Match a slice of the topics. If topics are left, continue in another turn of the event loop."""
        try:
            next(steps)
        except StopIteration as end:
            return self._apply_resolved(group_id, end.value)
        self._context.schedule(0, partial(self._resolve_in_slices, group_id, steps))
        return EMPTY_RESULT

    def _resolved(
        self, group_id: str, expressions: Collection[str], may_describe: MayDescribe
    ) -> Generator[None, None, dict[str, ResolvedRegex]]:
        """Return the matches of regular expressions. Topics that are created meanwhile are not among them."""
        version, now_ms = self._topics.version, self._context.now_ms()
        found = {}
        matched_names = 0
        try:
            names = list(self._topics.names())
            for expression in expressions:
                group = self._groups.get(group_id)
                if group is None or expression not in group.regex_counts:
                    continue
                matches: set[str] = set()
                if self._is_valid(group_id, expression):
                    for start in range(0, len(names), SLICE_TOPICS):
                        matched = regex.matching(expression, names[start : start + SLICE_TOPICS])
                        matches.update(filter(may_describe, matched))
                        matched_names += min(len(names), SLICE_TOPICS)
                        if matched_names >= SLICE_TOPICS:
                            matched_names = 0
                            yield
                found[expression] = ResolvedRegex(frozenset(matches), version, now_ms)
        finally:
            self._resolving.discard(group_id)
        return found

    def _apply_resolved(self, group_id: str, resolved: Mapping[str, ResolvedRegex]) -> CoordinatorResult:
        """Return the records of resolved regular expressions that the group still has."""
        group = self._groups.get(group_id)
        if group is None:
            return EMPTY_RESULT
        found = {name: one for name, one in resolved.items() if name in group.regex_counts}
        records = [group.regex_record(expression, resolved) for expression, resolved in found.items()]
        metadata_hash = self.metadata_hash(group.counts_resolved(found))
        if metadata_hash != group.metadata_hash or any(
            group.matched(expression) != resolved.topics for expression, resolved in found.items()
        ):
            records.append(group.epoch_record(group.epoch + 1, metadata_hash))
            self._rebalances.consumer += 1
            group.refresh_at_ms = self._context.monotonic_ms() + REFRESH_INTERVAL_MS
            group.refresh_epoch = group.epoch + 1
        return CoordinatorResult(records)

    # --- topics

    def metadata_hash(self, counts: SubscriptionCounts) -> int:
        """Return the hash of the existing topics in a group's subscription. KIP-1101."""
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
        """Make the subscribed groups check these topics, which were created, deleted or changed."""
        if created:
            self._new_topics_version = self._topics.version
        gone = set(names)
        for topic in [topic for topic in self._hashes if topic.name in gone]:
            del self._hashes[topic]
        for group in self._groups.values():
            if not gone.isdisjoint(group.counts):
                group.request_refresh()

    def _is_valid(self, group_id: str, expression: str) -> bool:
        """Return whether a stored regular expression is valid. Log it if it is not."""
        try:
            regex.check(expression)
        except ApiError as error:
            # The broker that stored the expression may have had other rules.
            self._logger.error(
                "Group %s: a stored regular expression is invalid and matches no topics: %s", group_id, error
            )
            return False
        return True
