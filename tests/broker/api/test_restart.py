"""Restarts on log directories that somebody has changed: no partition is lost.

The docstrings name the behavior of Apache Kafka 4.3.1 with the same directories.
"""

from __future__ import annotations

import logging

import pytest

from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.node.node import Node
from kwire.broker.storage.dirs.meta_properties import StartRefused
from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.node_harness import NodeHarness

TOPICS = ("t", "u")


def stopped_broker(disk: MemoryDisk | None = None) -> NodeHarness:
    """Return a stopped broker with topics t (in /d1 and /d2) and u."""
    harness = NodeHarness(disk)
    topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in TOPICS]
    response = harness.call(7, CreateTopicsRequest(topics=topics, timeout_ms=1000))
    assert [topic.error_code for topic in response.topics] == [0, 0]
    harness.node.begin_shutdown()
    harness.node.finish_shutdown()
    return harness


def start(disk: MemoryDisk, **settings: str) -> Node:
    properties = {
        "log.dirs": "/d1,/d2",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    restarted = VirtualNode(properties, disk=disk, seed=2)
    restarted.host.run_pending()
    return restarted.node


def names(disk: MemoryDisk) -> list[str]:
    return sorted(f"{path}/{name}" for path in ("/d1", "/d2") for name in disk.names(path) if "-" in name)


def offline(node: Node) -> list[str]:
    return [
        f"{topic}-{index}" for topic in TOPICS for index in range(2) if node.partition(topic, index) is None
    ]


def test_a_restart_finds_every_partition() -> None:
    harness = stopped_broker()
    assert offline(start(harness.disk)) == []


def test_reordered_log_dirs_are_refused_and_not_changed() -> None:
    """Kafka reports an unexpected metadata location."""
    harness = stopped_broker()
    before = names(harness.disk)
    with pytest.raises(StartRefused, match="/d1/__cluster_metadata-0 is a metadata log"):
        start(harness.disk, log_dirs="/d2,/d1")
    with pytest.raises(StartRefused, match="is a metadata log"):
        start(harness.disk, metadata_log_dir="/m")
    assert names(harness.disk) == before
    assert offline(start(harness.disk)) == []


def test_a_missing_log_dir_is_refused_and_not_formatted() -> None:
    """Kafka reports a missing meta.properties."""
    harness = stopped_broker()
    harness.disk.rename("/d2", "/elsewhere")
    with pytest.raises(StartRefused, match=r"no meta\.properties in /d2"):
        start(harness.disk)
    assert not harness.disk.is_directory("/d2")
    harness.disk.rename("/elsewhere", "/d2")
    assert offline(start(harness.disk)) == []


@pytest.mark.parametrize("content", [b"", b"version: 0\ntopic_id: ???\n"])
def test_corrupt_partition_metadata_takes_its_log_dir_offline(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka fails the second log directory, and both if it was the only one."""
    harness = stopped_broker()
    second = [name.removeprefix("/d2/") for name in names(harness.disk) if name.startswith("/d2/")]
    second = [name for name in second if harness.disk.is_directory(f"/d2/{name}")]
    original_content = harness.disk.read(f"/d2/{second[0]}/partition.metadata")
    harness.disk.write(f"/d2/{second[0]}/partition.metadata", content, sync=True)
    with caplog.at_level(logging.ERROR):
        node = start(harness.disk)
    assert offline(node) == second
    assert f"Broker 1 has {len(second)} replicas offline, because" in caplog.text
    assert f": {', '.join(second)}" in caplog.text
    assert (
        f"Log directory /d2 is offline: /d2/{second[0]}/partition.metadata has no valid topic_id"
        in caplog.text
    )
    assert not any("stray" in name for name in names(harness.disk))
    node.begin_shutdown()
    node.finish_shutdown()
    harness.disk.write(f"/d2/{second[0]}/partition.metadata", original_content, sync=True)
    assert offline(start(harness.disk)) == []


def test_corrupt_partition_metadata_beside_the_metadata_log_stops_the_start() -> None:
    harness = stopped_broker()
    first = next(name for name in names(harness.disk) if name.startswith(("/d1/t-", "/d1/u-")))
    harness.disk.write(f"{first}/partition.metadata", b"", sync=True)
    with pytest.raises(
        StartRefused, match=r"log\.dirs is /d1,/d2: the first.*partition\.metadata has no valid topic_id"
    ):
        start(harness.disk)
    assert not any("stray" in name for name in names(harness.disk))


def test_a_foreign_topic_id_takes_the_partition_offline() -> None:
    """Kafka cannot make this replica a leader and does not change it."""
    harness = stopped_broker()
    directories = {name.rpartition("/")[2]: name for name in names(harness.disk)}
    foreign = harness.disk.read(f"{directories['u-0']}/partition.metadata")
    harness.disk.write(f"{directories['t-0']}/partition.metadata", foreign, sync=True)
    assert offline(start(harness.disk)) == ["t-0"]
    assert not any("stray" in name for name in names(harness.disk))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"data_version":9}', b'{"data_version":0}'])
def test_a_corrupt_quorum_state_stops_the_start(content: bytes) -> None:
    """Kafka stops with an exception."""
    harness = stopped_broker()
    harness.disk.write("/d1/__cluster_metadata-0/quorum-state", content, sync=True)
    with pytest.raises(
        CorruptMetadata, match=r"/d1/__cluster_metadata-0/quorum-state is invalid: .*: restore"
    ):
        start(harness.disk)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "log.dirs is /d1,/d2: the first, which holds the metadata log, cannot be used: "),
        ({"log_dirs": "/d1"}, "log.dirs is /d1, which cannot be used: "),
        ({"log_dirs": "/d2", "metadata_log_dir": "/d1"}, "metadata.log.dir is /d1, which cannot be used: "),
    ],
)
def test_the_error_for_a_full_metadata_disk_contains_the_setting(
    settings: dict[str, str], error: str
) -> None:
    disk = MemoryDisk()
    node = start(disk, **settings)
    node.begin_shutdown()
    node.finish_shutdown()

    class Full(StorageError):
        pass

    original = disk.replace

    def replace(path: str, content: bytes, *, sync: bool) -> None:
        if path.endswith("quorum-state"):
            raise Full("No space left on device")
        original(path, content, sync=sync)

    disk.replace = replace  # type: ignore[method-assign]
    with pytest.raises(StartRefused) as caught:
        start(disk, **settings)
    assert str(caught.value) == f"{error}No space left on device"
