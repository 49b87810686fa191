"""The records of `__consumer_offsets`, as they lie in its log."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.runtime import StoredPair
from kwire import batch
from kwire.registry import decode_stored, stored_version
from kwire.schema import Message
from kwire.stored.groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


def stored_records(data: memoryview) -> Iterator[StoredPair]:
    """The records of one stored batch that are known here, in order. CorruptBatch, WireError."""
    header = batch.read_header(data)
    for record in batch.records(data, 0, header):
        if record.key is None:
            continue
        kind = stored_version(record.key)
        if kind == OffsetCommitKey.API_KEY:
            value = None if record.value is None else decode_stored(OffsetCommitValue, record.value)
            yield decode_stored(OffsetCommitKey, record.key), value
        elif kind == GroupMetadataKey.API_KEY:
            value = None if record.value is None else decode_stored(GroupMetadataValue, record.value)
            yield decode_stored(GroupMetadataKey, record.key), value
        elif kind == LegacyOffsetCommitKey.API_KEY:
            yield _legacy_offset(record.key, record.value)


def _legacy_offset(key_data: bytes, value_data: bytes | None) -> tuple[Message, Message | None]:
    old_key = decode_stored(LegacyOffsetCommitKey, key_data)
    key = OffsetCommitKey(group=old_key.group, topic=old_key.topic, partition=old_key.partition)
    if value_data is None:
        return key, None
    if stored_version(value_data) != 0:
        return key, decode_stored(OffsetCommitValue, value_data)
    old = decode_stored(LegacyOffsetCommitValue, value_data)
    value = OffsetCommitValue(offset=old.offset, metadata=old.metadata, commit_timestamp=old.commit_timestamp)
    return key, value
