"""Deserialization of the records of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kwire.coordinator.groups.group_type import GroupType
from kwire.coordinator.state_machine import DecodedRecord
from kwire.wire import batch
from kwire.wire.records.groups import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kwire.wire.registry import decode_version_prefixed, version_prefix
from kwire.wire.schema import Message

RecordTypes = Mapping[int, tuple[type[Message], type[Message]]]
"""Key and value classes by type number."""


def record_types(group_types: Iterable[GroupType[Any, Any]]) -> RecordTypes:
    """Return the types of records of `__consumer_offsets`: offsets, and those of these types of groups."""
    classes: dict[type[Message], type[Message]] = {OffsetCommitKey: OffsetCommitValue}
    for group_type in group_types:
        classes.update(group_type.record_types)
    return {key.API_KEY: (key, value) for key, value in classes.items()}


def offset_key(record: DecodedRecord) -> tuple[str, str, int] | None:
    """Return the group, topic and partition of an offset record, or None for other records."""
    key = record[0]
    return (key.group, key.topic, key.partition) if isinstance(key, OffsetCommitKey) else None


def stored_records(types: RecordTypes, data: memoryview) -> Iterator[DecodedRecord]:
    """Yield the records of a stored batch that have one of these types. Legacy offset records are converted.

    Raises CorruptBatch or WireError if the batch is malformed.
    """
    header = batch.read_header(data)
    for record in batch.records(data, 0, header):
        if record.key is None:
            continue
        kind = version_prefix(record.key)
        known = types.get(kind)
        if known is not None:
            key, value = known
            yield (
                decode_version_prefixed(key, record.key),
                None if record.value is None else decode_version_prefixed(value, record.value),
                record.offset,
            )
        elif kind == LegacyOffsetCommitKey.API_KEY:
            yield (*_legacy_offset(record.key, record.value), record.offset)


def _legacy_offset(key_data: bytes, value_data: bytes | None) -> tuple[Message, Message | None]:
    old_key = decode_version_prefixed(LegacyOffsetCommitKey, key_data)
    key = OffsetCommitKey(group=old_key.group, topic=old_key.topic, partition=old_key.partition)
    if value_data is None:
        return key, None
    if version_prefix(value_data) != 0:
        return key, decode_version_prefixed(OffsetCommitValue, value_data)
    old = decode_version_prefixed(LegacyOffsetCommitValue, value_data)
    value = OffsetCommitValue(offset=old.offset, metadata=old.metadata, commit_timestamp=old.commit_timestamp)
    return key, value
