"""The bootstrap metadata in a formatted directory, as Apache Kafka 4.3.1 and 4.4.0 write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.broker.controller.bootstrap import activation_records, bootstrap_records
from kwire.broker.metadata.batches import CorruptMetadata, NoBootstrapMetadata
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.snapshots import SnapshotWriter
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import build
from kwire.wire.records.metadata import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    UserScramCredentialRecord,
)
from kwire.wire.schema import Message

DATA = Path(__file__).parents[1] / "metadata" / "data"
OLD = "/data/bootstrap.checkpoint"
NEW = "/data/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
UNKNOWN = b"\x01\x7e\x00"
"""A record of a type that no release has: frame version, type and version."""
LEVELS_4_3 = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "transaction.version": 2,
}
"""The levels of `--release-version 4.3-IV0` without share.version and streams.version."""


def kafka(name: str) -> bytes:
    return (DATA / f"kafka-{name}.checkpoint").read_bytes()


def snapshot(*records: Message) -> bytes:
    writer = SnapshotWriter(0, now_ms=0, last_timestamp_ms=0)
    return writer.header() + writer.batch([StoredRecord(record) for record in records]) + writer.footer()


def make_disk(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/data/__cluster_metadata-0")
    for path, content in files.items():
        disk.replace(path, content, sync=True)
    return disk


def read(files: dict[str, bytes]) -> list[Message]:
    return bootstrap_records(make_disk(files), "/data")


def levels(records: list[Message]) -> dict[str, int]:
    return {one.name: one.feature_level for one in records if isinstance(one, FeatureLevelRecord)}


@pytest.mark.parametrize("name", ["static", "standalone", "no-initial-controllers", "scram"])
def test_records_of_a_directory_formatted_by_kafka_4_4(name: str) -> None:
    found = read({NEW: kafka(f"4.4.0-{name}")})
    assert levels(found) == LEVELS_4_3
    others = [record for record in found if not isinstance(record, FeatureLevelRecord)]
    users = [record.name for record in others if isinstance(record, UserScramCredentialRecord)]
    assert (users, len(others)) == ((["alice"], 1) if name == "scram" else ([], 0))


def test_first_leader_writes_these_records_and_the_minimum_isr() -> None:
    found = read({NEW: kafka("4.4.0-scram")})
    written = [record for record, _ in activation_records(found, 2, is_transaction_open=False)]
    assert written[1:-2] == found
    assert isinstance(written[0], BeginTransactionRecord)
    assert isinstance(written[-2], ConfigRecord)
    assert isinstance(written[-1], EndTransactionRecord)


def test_records_of_a_directory_formatted_by_kafka_4_3() -> None:
    assert levels(read({OLD: kafka("4.3.1-bootstrap")})).keys() >= LEVELS_4_3.keys()


def test_snapshot_with_voters_only_leaves_bootstrap_checkpoint_in_effect() -> None:
    voters = (DATA.parents[1] / "raft" / "data" / "kafka-4.3.1-standalone.checkpoint").read_bytes()
    assert "share.version" in levels(read({OLD: kafka("4.3.1-bootstrap"), NEW: voters}))


def test_records_of_the_snapshot_take_precedence() -> None:
    assert levels(read({OLD: kafka("4.3.1-bootstrap"), NEW: kafka("4.4.0-static")})) == LEVELS_4_3


@pytest.mark.parametrize("name", ["4.3.1-standalone", None])
def test_directory_without_bootstrap_metadata_is_an_error(name: str | None) -> None:
    voters = DATA.parents[1] / "raft" / "data" / f"kafka-{name}.checkpoint"
    with pytest.raises(NoBootstrapMetadata, match="/data has no bootstrap metadata"):
        read({} if name is None else {NEW: voters.read_bytes()})


def test_bootstrap_metadata_of_a_newer_release_is_an_error() -> None:
    with pytest.raises(CorruptMetadata, match=r"-0000000000\.checkpoint has metadata\.version at level 33"):
        read({NEW: kafka("4.4.0-newest")})
    known = snapshot(FeatureLevelRecord(name="metadata.version", feature_level=7))
    unknown = build([(0, None, UNKNOWN, [])], base_offset=2, leader_epoch=0)
    with pytest.raises(CorruptMetadata, match="records that this release does not know"):
        read({NEW: known + unknown})


def test_bootstrap_metadata_without_metadata_version_is_an_error() -> None:
    group = FeatureLevelRecord(name="group.version", feature_level=1)
    with pytest.raises(CorruptMetadata, match=r"has no metadata\.version"):
        read({OLD: snapshot(group)})
