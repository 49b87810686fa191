"""Stored records of coordinators, of the metadata log and of the quorum."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kwire.wire.codegen import encode
from kwire.wire.errors import WireError
from kwire.wire.records import groups, metadata, raft, transactions
from kwire.wire.registry import (
    UnknownRecord,
    decode_metadata_record,
    decode_version_prefixed,
    encode_record,
    version_prefix,
)
from kwire.wire.schema import Message, fields_of

STORED: list[type[Message]] = [
    groups.OffsetCommitKey,
    groups.OffsetCommitValue,
    groups.GroupMetadataKey,
    groups.GroupMetadataValue,
    transactions.TransactionLogKey,
    transactions.TransactionLogValue,
]


def filled(message_class: type[Message], version: int) -> Any:
    """Return a record with a value in every field of the version."""
    values: dict[str, Any] = {}
    for number, field in enumerate(fields_of(message_class)):
        if version not in field.versions:
            continue
        if field.message is not None:
            one: Any = filled(field.message, version)
        else:
            one = {
                "Str": f"text {number}",
                "Bytes": bytes(number),
                "Bool": True,
                "Uuid": bytes([number]) * 16,
                "Float64": 0.5,
            }.get(field.element, number + 1)
        values[field.name] = [one] if field.is_list else one
    return message_class(**values)


@pytest.mark.parametrize("record_class", STORED)
def test_coordinator_records_round_trip(record_class: type[Message]) -> None:
    """A key starts with the type of its record, a value with its version."""
    for version in range(record_class.VERSIONS[0], record_class.VERSIONS[1] + 1):
        record = filled(record_class, version)
        data = encode_record(record, version)
        is_key = record_class.__name__.endswith("Key")
        assert version_prefix(data) == (record_class.API_KEY if is_key else version)
        assert data[2:] == encode(record, version)
        assert decode_version_prefixed(record_class, data) == record
        assert decode_version_prefixed(record_class, memoryview(data)) == record
        for end in range(len(data)):
            with pytest.raises(WireError):
                decode_version_prefixed(record_class, data[:end])
        with pytest.raises(WireError, match="record type 77" if is_key else "no version 77"):
            decode_version_prefixed(record_class, struct.pack(">h", 77) + data[2:])


def test_stored_keys_match_known_bytes() -> None:
    """The format of __consumer_offsets since Kafka 0.9."""
    key = groups.OffsetCommitKey(group="g", topic="t", partition=7)
    assert encode_record(key, 0) == bytes.fromhex("0001 0001 67 0001 74 00000007")
    value = groups.OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    assert encode_record(value, 3) == bytes.fromhex("0003 0000000000000005 00000002 0001 6d 0000000000000009")
    assert encode_record(groups.GroupMetadataKey(group="g"), 0) == bytes.fromhex("0002 0001 67")


def test_transaction_values_match_known_bytes() -> None:
    """Version 0 ends with the timestamps; later fields are tagged, which version 0 does not support."""
    plain = "0000000000000007 0002 0000ea60 03"
    value = transactions.TransactionLogValue(
        producer_id=7, producer_epoch=2, transaction_timeout_ms=60_000, transaction_status=3
    )
    value.transaction_partitions = None
    assert encode_record(value, 0) == bytes.fromhex("0000" + plain + "ffffffff" + "00" * 16)
    value.previous_producer_id = 6
    value.client_transaction_version = 2
    assert encode_record(value, 1) == bytes.fromhex(
        "0001" + plain + "00" + "00" * 16 + "02 00 08 0000000000000006 02 02 0002"
    )
    with pytest.raises(ValueError, match="previous_producer_id is not in version 0"):
        encode_record(value, 0)


@pytest.mark.parametrize("record_type", metadata.RECORDS)
def test_metadata_records_round_trip(record_type: int) -> None:
    """A record starts with frame version, type and version (KIP-631)."""
    record_class = metadata.RECORDS[record_type]
    assert record_type == record_class.API_KEY
    for version in range(record_class.VERSIONS[0], record_class.VERSIONS[1] + 1):
        record = filled(record_class, version)
        data = encode_record(record, version)
        assert data[:3] == bytes([1, record_type, version])
        assert decode_metadata_record(data) == record
        assert decode_metadata_record(memoryview(data)) == record
        for end in range(len(data)):
            with pytest.raises(WireError):
                decode_metadata_record(data[:end])
        with pytest.raises(WireError, match="1 byte after"):
            decode_metadata_record(data + b"\x00")
    unknown = bytes([1, record_type, 99]) + b"whatever"
    assert decode_metadata_record(unknown) == UnknownRecord(
        record_type=record_type, version=99, value=unknown
    )


def test_malformed_metadata_records_raise() -> None:
    with pytest.raises(WireError, match="frame version 2"):
        decode_metadata_record(b"\x02\x14\x00\x00")
    for cut in range(3):
        with pytest.raises(WireError):
            decode_metadata_record(b"\x01\x63\x00"[:cut])


def test_unknown_metadata_records_are_kept() -> None:
    value = b"\x01\xac\x02\x81\x01 what nobody here knows"
    for buffer in (value, memoryview(bytearray(value))):
        record = decode_metadata_record(buffer)
        assert record == UnknownRecord(record_type=300, version=129, value=value)
        assert encode_record(record, record.version) == value


def test_quorum_control_records() -> None:
    """Each record repeats its version in a field."""
    for record_class in (raft.SnapshotHeaderRecord, raft.SnapshotFooterRecord, raft.KRaftVersionRecord):
        assert fields_of(record_class)[0].name == "version"
    assert encode(raft.SnapshotFooterRecord(), 0) == bytes.fromhex("0000 00")
    leader = raft.LeaderChangeMessage(leader_id=1, voters=[raft.Voter(voter_id=1)])
    assert encode(leader, 0) == bytes.fromhex("0000 00000001 02 00000001 00 01 00")
