"""The contents of a cluster for the report of a failed test: topics with their last records, and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kwire.client.groups import list_groups
from kwire.client.offsets import find_offsets
from kwire.host.system_time import monotonic
from kwire.testing.exchange import format_value
from kwire.wire.errors import ApiError
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from kwire.client.cluster_client import ClusterClient
    from kwire.testing.results import Group, Record

MAX_TOPICS: Final = 20
MAX_PARTITIONS: Final = 20
MAX_GROUPS: Final = 20
MAX_MEMBERS: Final = 20
MAX_RECORDS: Final = 10
"""The maximum number of topics, partitions of each topic, groups, members of each group, and last records of
each topic in a report."""
MAX_VALUE: Final = 60
"""The maximum number of characters of a key or value."""


class StateReader:
    """A reader of topics and groups that stops when its time is up."""

    def __init__(self, client: Any, cluster: ClusterClient, timeout_s: float) -> None:
        self._client, self._cluster, self._deadline = client, cluster, monotonic() + timeout_s

    def topics(self, names: Sequence[str] | None) -> str:
        """Describe these topics as far as they exist, or all topics except internal ones."""
        existing = self._client.topics()
        found = existing if names is None else [name for name in existing if name in names]
        lines = list(self._until_deadline(found[:MAX_TOPICS], self._topic))
        return joined(lines, len(found) - MAX_TOPICS, "topic")

    def groups(self, names: Sequence[str] | None) -> str:
        """Describe these groups as far as they exist, or all groups."""
        existing = list(list_groups(self._cluster))
        found = existing if names is None else [name for name in existing if name in names]
        lines = list(self._until_deadline(found[:MAX_GROUPS], self._group))
        return joined(lines, len(found) - MAX_GROUPS, "group")

    def _until_deadline(self, names: Sequence[str], describe: object) -> Iterator[str]:
        assert callable(describe)
        for number, name in enumerate(names):
            if monotonic() >= self._deadline:
                yield f"and {len(names) - number} more, which would take too long to read"
                return
            try:
                yield from describe(name)
            except (ApiError, OSError, LookupError) as error:
                yield f"{name}: not available: {error}"

    def _topic(self, topic: str) -> Iterator[str]:
        ends = self._client.end_offsets(topic)
        stable = self._client.end_offsets(topic, committed=True)
        starts = find_offsets(self._cluster, dict.fromkeys(ends, EARLIEST))
        left = MAX_RECORDS
        for one in sorted(ends)[:MAX_PARTITIONS]:
            last_stable = f", last stable offset {stable[one]}" if stable[one] != ends[one] else ""
            yield f"{one}: offsets {starts[one]} to {ends[one]}{last_stable}"
            if not left or starts[one] == ends[one]:
                continue
            first = max(starts[one], ends[one] - left)
            records = list(self._client.records(topic, one.partition, first, committed=False))
            left -= min(left, len(records))
            yield from (f"  {describe_record(record)}" for record in records)
        if len(ends) > MAX_PARTITIONS:
            yield f"{topic}: and {plural(len(ends) - MAX_PARTITIONS, 'more partition')}"

    def _group(self, name: str) -> Iterator[str]:
        group = self._client.group(name)
        yield f"{name}: {group.state}, {plural(len(group.members), 'member')}"
        yield from (f"  {line}" for line in _describe_members(group))
        committed = self._client.committed(name)
        if not committed:
            yield "  no committed offsets"
        for one in sorted(committed)[:MAX_PARTITIONS]:
            try:
                end = find_offsets(self._cluster, {one: LATEST})[one]
            except (ApiError, LookupError) as error:
                yield f"  {one}: committed offset {committed[one]}, end offset not available: {error}"
                continue
            yield f"  {one}: committed offset {committed[one]}, end offset {end}, lag {end - committed[one]}"
        if len(committed) > MAX_PARTITIONS:
            yield f"  and committed offsets of {plural(len(committed) - MAX_PARTITIONS, 'more partition')}"


def joined(lines: Sequence[str], left_off: int, noun: str) -> str:
    """Join lines, with a last line if some topics or groups are left off."""
    more = [f"and {plural(left_off, f'more {noun}')}"] if left_off > 0 else []
    return "\n".join([*lines, *more])


def describe_record(record: Record) -> str:
    """Describe the offset, key and value of a record."""
    return f"{record.offset}: {format_value(record.key, MAX_VALUE)} = {format_value(record.value, MAX_VALUE)}"


def _describe_members(group: Group) -> Iterator[str]:
    for member in group.members[:MAX_MEMBERS]:
        assigned = ", ".join(str(one) for one in sorted(member.partitions)[:MAX_PARTITIONS])
        more = ", ..." if len(member.partitions) > MAX_PARTITIONS else ""
        yield f"member {member.client_id}: {assigned or 'no partitions'}{more}"
    if len(group.members) > MAX_MEMBERS:
        yield f"and {plural(len(group.members) - MAX_MEMBERS, 'more member')}"
