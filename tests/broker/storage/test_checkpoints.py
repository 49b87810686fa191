"""Kafka's small text files, byte for byte as written by Apache Kafka 4.3.1."""

from __future__ import annotations

import json
import random

import pytest

from kwire.broker.storage.checkpoints import (
    CorruptCheckpoint,
    IncompleteMetaProperties,
    MetaProperties,
    consume_clean_shutdown,
    read_meta_properties,
    read_offsets,
    read_topic_id,
    write_clean_shutdown,
    write_meta_properties,
    write_offsets,
)
from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.wire.primitives import uuid_from_text
from tests.broker.storage.log_harness import write_topic_id

TOPIC_ID = uuid_from_text("xtzWWN4bTjitpL3kfd9s5g")


def disk_with(path: str, content: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.write(path, content, sync=False)
    return disk


def test_an_offset_checkpoint() -> None:
    disk = MemoryDisk()
    write_offsets(disk, "/c", {("t", 0): 5, ("__consumer_offsets", 12): 0})
    assert disk.read("/c") == b"0\n2\nt 0 5\n__consumer_offsets 12 0\n"
    assert read_offsets(disk, "/c") == {("t", 0): 5, ("__consumer_offsets", 12): 0}


def test_a_missing_or_empty_checkpoint_has_no_entries() -> None:
    assert read_offsets(MemoryDisk(), "/c") == {}
    assert read_offsets(disk_with("/c", b""), "/c") == {}


@pytest.mark.parametrize("content", [b"xx", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n1\nt zero 5\n", b"0\n1\nt 0\n"])
def test_corrupt_checkpoint_is_an_error(content: bytes) -> None:
    with pytest.raises(StorageError):
        read_offsets(disk_with("/c", content), "/c")


def test_partition_metadata() -> None:
    disk = MemoryDisk()
    write_topic_id(disk, "", TOPIC_ID)
    assert disk.read("/partition.metadata") == b"version: 0\ntopic_id: xtzWWN4bTjitpL3kfd9s5g"
    assert read_topic_id(disk, "") == TOPIC_ID


def test_partition_metadata_of_a_later_version() -> None:
    content = b"version: 7\ntopic_id: xtzWWN4bTjitpL3kfd9s5g\nmore: x\n"
    assert read_topic_id(disk_with("/partition.metadata", content), "") == TOPIC_ID


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(43),
        b"version: 0",
        b"version: x\ntopic_id: xtzWWN4bTjitpL3kfd9s5g",
        b"version: 0\ntopic_id: x",
        b"version: 0\ntopic_id: ???\n",
        b"version: 0\ntopic_id: xtzWWN4bTj",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_corrupt_partition_metadata_is_an_error(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"/partition\.metadata has no valid topic_id"):
        read_topic_id(disk_with("/partition.metadata", content), "")
    assert read_topic_id(MemoryDisk(), "") is None


@pytest.mark.parametrize("seed", range(20))
def test_partition_metadata_is_complete_or_absent_after_power_loss(seed: int) -> None:
    disk = MemoryDisk()
    write_topic_id(disk, "", TOPIC_ID)
    disk.power_cut(random.Random(seed))
    assert read_topic_id(disk, "") in (TOPIC_ID, None)


KAFKAS_META_PROPERTIES = b"""#
#Sat Nov 21 06:10:00 UTC 2026
cluster.id=5L6g3nShT-eMCtK--X86sw
directory.id=xtzWWN4bTjitpL3kfd9s5g
node.id=1
version=1
"""


def test_meta_properties_of_kafka() -> None:
    found = read_meta_properties(disk_with("/meta.properties", KAFKAS_META_PROPERTIES), "")
    assert found == MetaProperties("5L6g3nShT-eMCtK--X86sw", 1, TOPIC_ID)


def test_meta_properties_round_trip() -> None:
    disk = MemoryDisk()
    texts = ("c", "", " my=cluster: a\\b ", "\N{SNOWMAN}\N{GRINNING FACE}#!\t")
    for cluster_id, version in ((text, version) for text in texts for version in (0, 1)):
        written = MetaProperties(cluster_id, 7, None if version else TOPIC_ID, version)
        write_meta_properties(disk, "", written)
        assert read_meta_properties(disk, "") == written


def test_cluster_id_is_escaped_as_by_java() -> None:
    disk = MemoryDisk()
    write_meta_properties(disk, "", MetaProperties(" a=b:c \N{SNOWMAN}", 7, None))
    assert b"cluster.id=\\ a\\=b\\:c \\u2603\n" in disk.read("/meta.properties")


@pytest.mark.parametrize("content", [b"garbage", b"version=0\nbroker.id=1\n", b"cluster.id=c\n"])
def test_meta_properties_without_ids(content: bytes) -> None:
    with pytest.raises(IncompleteMetaProperties, match=r"/meta\.properties has no"):
        read_meta_properties(disk_with("/meta.properties", content), "")


def test_a_directory_without_meta_properties_is_unformatted() -> None:
    assert read_meta_properties(MemoryDisk(), "") is None


@pytest.mark.parametrize(
    "content",
    [
        b"version=2\ncluster.id=c\nnode.id=1\n",
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=c\nnode.id=x\n",
    ],
    ids=["version", "no cluster", "node"],
)
def test_unusable_meta_properties_are_an_error(content: bytes) -> None:
    with pytest.raises(StorageError):
        read_meta_properties(disk_with("/meta.properties", content), "")


def test_clean_shutdown_marker_is_json_and_is_removed_when_read() -> None:
    disk = MemoryDisk()
    write_clean_shutdown(disk, "", 42)
    assert disk.read("/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    assert json.loads(disk.read("/.kafka_cleanshutdown"))["brokerEpoch"] == 42
    assert consume_clean_shutdown(disk, "") == 42
    assert consume_clean_shutdown(disk, "") is None


def test_empty_marker_of_an_older_kafka_is_valid() -> None:
    assert consume_clean_shutdown(disk_with("/.kafka_cleanshutdown", b""), "") == -1
