"""The topics and groups of a simulated cluster for the report of a failed test, as far as they are committed.

The text has the form of `kwire.testing.cluster_state`, but no request is sent: the cluster stands still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kwire.testing.cluster_state import (
    MAX_GROUPS,
    MAX_PARTITIONS,
    MAX_RECORDS,
    MAX_TOPICS,
    describe_record,
    joined,
)
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.cluster_invariants import READ_BYTES
from kwire.wire.batch import COMMIT, Record, batches, control_type, records
from kwire.wire.plural import plural
from kwire.wire.records.groups import OffsetCommitKey, OffsetCommitValue
from kwire.wire.registry import decode_version_prefixed, version_prefix

if TYPE_CHECKING:
    from kwire.broker.metadata.image import TopicImage
    from kwire.testing.simulated.environment import SimulatedEnvironment
    from kwire.testing.simulated.program_oracle import ProgramOracle

OFFSETS_TOPIC = "__consumer_offsets"


def describe_contents(environment: SimulatedEnvironment, oracle: ProgramOracle) -> list[str]:
    """Return the lines about all topics except internal ones, and about all groups with offsets.

    Never raises: the report must not hide the failure of the test.
    """
    try:
        return _contents(environment, oracle)
    except Exception as error:
        return [f"not available: {error}"]


def _contents(environment: SimulatedEnvironment, oracle: ProgramOracle) -> list[str]:
    topics = environment.invariants.image.topics
    names = sorted(name for name in topics if not name.startswith("__"))
    lines = [line for name in names[:MAX_TOPICS] for line in _describe_topic(topics[name], oracle)]
    groups = _committed_offsets(environment)
    of_groups = [
        line for name in sorted(groups)[:MAX_GROUPS] for line in _describe(name, groups[name], oracle)
    ]
    return [
        *joined(lines, len(names) - MAX_TOPICS, "topic").splitlines(),
        *joined(of_groups, len(groups) - MAX_GROUPS, "group").splitlines(),
    ]


def _describe_topic(topic: TopicImage, oracle: ProgramOracle) -> Iterator[str]:
    committed_records = oracle.records(topic.name)
    left = MAX_RECORDS
    for number in range(min(len(topic.partitions), MAX_PARTITIONS)):
        partition = TopicPartition(topic.name, number)
        committed = oracle.committed_in(partition)
        yield f"{partition}: offsets {committed.start} to {committed.end}"
        last = [one for one in committed_records if one.partition == number][-left:] if left else []
        left -= len(last)
        yield from (f"  {describe_record(one)}" for one in last)
    if len(topic.partitions) > MAX_PARTITIONS:
        yield f"{topic.name}: and {plural(len(topic.partitions) - MAX_PARTITIONS, 'more partition')}"


def _committed_offsets(environment: SimulatedEnvironment) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of all groups, as far as they are on running brokers."""
    topic = environment.invariants.image.topics.get(OFFSETS_TOPIC)
    groups: dict[str, dict[TopicPartition, int]] = {}
    for number in range(0 if topic is None else len(topic.partitions)):
        for record in _stored_records(environment, number):
            if record.key is None or version_prefix(record.key) != OffsetCommitKey.API_KEY:
                continue
            key = decode_version_prefixed(OffsetCommitKey, record.key)
            partition = TopicPartition(key.topic, key.partition)
            if record.value is None:
                groups.get(key.group, {}).pop(partition, None)
            else:
                offset = decode_version_prefixed(OffsetCommitValue, record.value).offset
                groups.setdefault(key.group, {})[partition] = offset
    return {name: offsets for name, offsets in groups.items() if offsets}


def _stored_records(environment: SimulatedEnvironment, number: int) -> list[Record]:
    """Return the records of a partition of OFFSETS_TOPIC, in the order in which they were committed."""
    replicas = [
        (partition.log.high_watermark, node_id, partition.log, node.disk)
        for node_id, node in environment.nodes.items()
        if node.is_broker and node.is_running
        for partition in [node.node.replica_manager.get(OFFSETS_TOPIC, number)]
        if partition is not None
    ]
    if not replicas:
        return []
    high_watermark, _, log, disk = max(replicas, key=lambda one: one[:2])
    found: list[Record] = []
    pending: dict[int, list[Record]] = defaultdict(list)
    with disk.without_faults():
        content = log.read(log.log_start_offset, max_bytes=READ_BYTES, up_to_offset=high_watermark).read()
    for at, header in batches(content):
        several = list(records(content, at, header))
        if header.is_control:
            ended = pending.pop(header.producer_id, [])
            found += ended if control_type(several[0])[1] == COMMIT else []
        elif header.is_transactional:
            pending[header.producer_id] += several
        else:
            found += several
    return found


def _describe(group: str, offsets: Mapping[TopicPartition, int], oracle: ProgramOracle) -> Iterator[str]:
    yield f"group {group}:"
    for one in sorted(offsets)[:MAX_PARTITIONS]:
        end = oracle.committed_in(one).end
        yield f"  {one}: committed offset {offsets[one]}, end offset {end}, lag {end - offsets[one]}"
    if len(offsets) > MAX_PARTITIONS:
        yield f"  and committed offsets of {plural(len(offsets) - MAX_PARTITIONS, 'more partition')}"
