"""Metadata of a new cluster that starts with existing topic logs.

A formatted directory has a snapshot, `bootstrap.checkpoint`. The first controller writes the records of this
snapshot to its empty metadata log (KIP-778). If the snapshot has topic records, the cluster starts with these
topics. The topic ids must match the `partition.metadata` of the logs. Otherwise the broker would treat the
logs as stray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kwire.broker.storage.dirs.meta_properties import BOOTSTRAP_CHECKPOINT
from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.restore.batches import LEADER_EPOCH
from kwire.wire.batch import batches, build, read_header, records, stamp
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import ConfigRecord, PartitionRecord, TopicRecord
from kwire.wire.registry import encode_record
from kwire.wire.schema import Message

_TOPIC_RESOURCE: Final = 2
_RECORDS_PER_BATCH: Final = 1000
_DIRECTORIES_VERSION: Final = 1
"""The first version of PartitionRecord with log directories (KIP-858)."""


class BootstrapTopic(NamedTuple):
    """A topic that the new cluster starts with."""

    name: str
    topic_id: Uuid
    partitions: int
    settings: Mapping[str, str]


def topic_records(
    topics: Sequence[BootstrapTopic], node_id: int, directory_id: Uuid
) -> Iterator[tuple[Message, int]]:
    """Yield the metadata records for topics in one log directory of one node, each with its version."""
    for topic in topics:
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id), 0
        for name, value in topic.settings.items():
            yield (
                ConfigRecord(resource_type=_TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value),
                0,
            )
        for partition in range(topic.partitions):
            yield (
                PartitionRecord(
                    partition_id=partition,
                    topic_id=topic.topic_id,
                    replicas=[node_id],
                    isr=[node_id],
                    removing_replicas=[],
                    adding_replicas=[],
                    leader=node_id,
                    leader_epoch=LEADER_EPOCH,
                    partition_epoch=0,
                    directories=[directory_id],
                ),
                _DIRECTORIES_VERSION,
            )


def with_records(snapshot: bytes, added: Sequence[tuple[Message, int]]) -> bytes:
    """Insert records before the footer of a snapshot. Raises ArchiveError if `snapshot` is not one."""
    whole = [(snapshot[at : at + header.size_bytes], header) for at, header in batches(snapshot)]
    if len(whole) < 2 or not whole[0][1].is_control or not whole[-1][1].is_control:
        raise ArchiveError(f"{BOOTSTRAP_CHECKPOINT}, as written by `kwire format`, is not a snapshot")
    footer, last = bytearray(whole[-1][0]), whole[-1][1]
    [marker] = records(footer, 0, last)
    offset = last.base_offset
    out = bytearray().join(data for data, _ in whole[:-1])
    for at in range(0, len(added), _RECORDS_PER_BATCH):
        part = added[at : at + _RECORDS_PER_BATCH]
        out += build(
            [(marker.timestamp, None, encode_record(record, version), []) for record, version in part],
            base_offset=offset,
            leader_epoch=last.leader_epoch,
        )
        offset += len(part)
    stamp(footer, 0, offset, read_header(footer).leader_epoch)
    return bytes(out + footer)
