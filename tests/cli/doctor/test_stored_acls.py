"""The ACLs in the files of a metadata log."""

from __future__ import annotations

from pathlib import Path

from kwire.cli.doctor.stored_acls import stored_acls
from kwire.wire.batch import build
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    RemoveAccessControlEntryRecord,
)
from kwire.wire.registry import encode_record
from kwire.wire.schema import Message


def add(number: int) -> AccessControlEntryRecord:
    """Return the record of an ACL for the group with this number."""
    return AccessControlEntryRecord(
        id=_id(number),
        resource_type=3,
        resource_name=str(number),
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )


def remove(number: int) -> RemoveAccessControlEntryRecord:
    return RemoveAccessControlEntryRecord(id=_id(number))


def _id(number: int) -> Uuid:
    return Uuid(number.to_bytes(16, "big"))


def write(directory: Path, name: str, base_offset: int, *records: Message, torn_bytes: int = 0) -> None:
    """Write a file of the metadata log with one batch per record. `torn_bytes` are missing at its end."""
    home = directory / "__cluster_metadata-0"
    home.mkdir(exist_ok=True)
    content = b"".join(
        build([(0, None, encode_record(record, 0), [])], base_offset=base_offset + number)
        for number, record in enumerate(records)
    )
    (home / name).write_bytes(content[: len(content) - torn_bytes])


def names(directory: Path) -> list[str]:
    return [acl.resource_name for acl in stored_acls(str(directory))]


def test_missing_metadata_log_has_no_acls(tmp_path: Path) -> None:
    assert names(tmp_path) == []


def test_newest_snapshot_and_the_log_behind_it_are_read(tmp_path: Path) -> None:
    write(tmp_path, f"{2:020d}-{1:010d}.checkpoint", 0, add(1), add(9))
    write(tmp_path, f"{5:020d}-{1:010d}.checkpoint", 0, add(1), add(2))
    # Offset 4 ends a transaction that began before the log's start; the snapshot has its records.
    write(tmp_path, f"{4:020d}.log", 4, EndTransactionRecord(), add(3))
    write(tmp_path, f"{6:020d}.log", 6, remove(1), add(4), torn_bytes=1)
    assert names(tmp_path) == ["2", "3"]


def test_open_transaction_has_no_effect(tmp_path: Path) -> None:
    write(tmp_path, f"{0:020d}.log", 0, add(1), BeginTransactionRecord(name="t"), add(2))
    assert names(tmp_path) == ["1"]
