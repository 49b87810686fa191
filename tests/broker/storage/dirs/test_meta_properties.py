"""Directories that a broker accepts or rejects at start, compared with Apache Kafka 4.3.1."""

from __future__ import annotations

from itertools import count

import pytest

from kwire.broker.storage.checkpoints import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from kwire.broker.storage.dirs.meta_properties import (
    StartRefused,
    assign_directory_ids,
    load_meta_properties,
    needs_format,
)
from kwire.broker.storage.disk import StorageError
from kwire.host.loggers import STORAGE_LOGGER
from kwire.testing.disk import MemoryDisk
from kwire.wire.primitives import Uuid
from tests.broker.storage.log_harness import write_topic_id

PATHS = ("/a", "/b")
SNAPSHOT = "/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def make_disk(*files: str, formatted: str = "") -> MemoryDisk:
    """Return a disk with these files, and `meta.properties` in /x for each letter x of `formatted`."""
    disk = MemoryDisk()
    for path in files:
        disk.make_directory(path.rpartition("/")[0])
        disk.write(path, b"", sync=False)
    for name in formatted:
        disk.make_directory(f"/{name}")
        write_meta_properties(disk, f"/{name}", MetaProperties("c", 1, Uuid(name.encode() * 16)))
    return disk


def is_new(disk: MemoryDisk, *, home: str = "/a", node_id: int = 1, paths: tuple[str, ...] = PATHS) -> bool:
    return needs_format(disk, load_meta_properties(disk, paths), metadata_dir=home, node_id=node_id)


def start_error(
    disk: MemoryDisk, *, home: str = "/a", node_id: int = 1, paths: tuple[str, ...] = PATHS
) -> str:
    with pytest.raises(StartRefused) as caught:
        is_new(disk, home=home, node_id=node_id, paths=paths)
    return str(caught.value)


# --- what may be formatted, and what may be served


@pytest.mark.parametrize(
    "files",
    [
        [],
        ["/a/server.properties", "/b/lost+found/x", "/b/.lock"],
        ["/a/bootstrap.checkpoint", f"/a{SNAPSHOT}", f"/a{SNAPSHOT}.tmp"],
    ],
    ids=["missing", "foreign", "truncated"],
)
def test_directory_without_kafka_files_may_be_formatted(files: list[str]) -> None:
    assert is_new(make_disk(*files))


def test_interrupted_first_start_is_resumed() -> None:
    assert is_new(make_disk("/a/bootstrap.checkpoint", formatted="b"))
    assert "no meta.properties in /a" in start_error(
        make_disk("/a/bootstrap.checkpoint", "/b/t-0/x", formatted="b")
    )


def test_formatted_directories_are_accepted() -> None:
    assert not is_new(make_disk("/a/__cluster_metadata-0/x", "/b/t-0/x", formatted="ab"))
    assert not is_new(make_disk(formatted="ab"))


@pytest.mark.parametrize(
    "trace",
    [
        "/b/t-0/00000000000000000000.log",
        "/b/t-0.0123-stray/x",
        "/a/__cluster_metadata-0/00000000000000000000.log",
    ],
)
def test_missing_meta_properties_beside_data_fail_the_start(trace: str) -> None:
    found = trace.rpartition("/")[0]
    assert f"no meta.properties in /a, /b, but {found} exists" in start_error(make_disk(trace))


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("is_there", [True, False])
def test_unformatted_directory_among_formatted_ones(name: str, is_there: bool) -> None:
    """The disk may be unmounted: to skip it, or to use the mount point, would hide its data."""
    disk = make_disk(*([f"/{name}/.lock"] if is_there else []), formatted="ab".replace(name, ""))
    assert f"no meta.properties in /{name}, but the other directories are formatted" in start_error(disk)
    assert not disk.exists(f"/{name}/meta.properties")


# --- the metadata log


def test_changed_order_of_directories_fails_without_the_metadata_log() -> None:
    disk = make_disk("/a/__cluster_metadata-0/x", "/b/t-0/x", formatted="ab")
    expected = start_error(disk, home="/b", paths=("/b", "/a"))
    assert "/a/__cluster_metadata-0 is a metadata log, but the configured directory is /b" in expected
    assert "set metadata.log.dir=/a" in expected


def test_added_metadata_log_dir_fails_without_the_metadata_log() -> None:
    disk = make_disk("/a/__cluster_metadata-0/x", formatted="abm")
    assert "/a/__cluster_metadata-0 is a metadata log" in start_error(
        disk, home="/m", paths=("/a", "/b", "/m")
    )


def test_removed_metadata_log_dir_fails_without_the_metadata_log() -> None:
    """Apache Kafka starts an empty metadata log and renames every partition to stray."""
    disk = make_disk("/m/__cluster_metadata-0/x", "/b/t-0/x", formatted="abm")
    assert "/a has no metadata log, but /b/t-0 exists" in start_error(disk)
    assert not is_new(disk, home="/m", paths=("/a", "/b", "/m"))


# --- one directory for one partition


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/a/t-0", "/b/t-0"], "/a/t-0 and /b/t-0 are both directories of partition t-0"),
        (
            ["/a/t-0", "/b/t-0.01-future", "/b/t-0.02-future"],
            "/b/t-0.01-future and /b/t-0.02-future are both future logs of partition t-0",
        ),
    ],
    ids=["directories", "copies"],
)
def test_duplicate_partition_fails_the_start(names: list[str], expected: str) -> None:
    """As in Kafka: the newer copy is unknown, and the wrong choice would lose records."""
    disk = make_disk("/a/__cluster_metadata-0/x", formatted="ab")
    for name in names:
        disk.make_directory(name)
        write_topic_id(disk, name, Uuid(b"t" * 16))
    before = disk.tree("/a") | disk.tree("/b")
    assert start_error(disk) == (
        f"{expected}: find out which one was written to last, and move the other one out of log.dirs"
    )
    assert disk.tree("/a") | disk.tree("/b") == before
    disk.remove_tree(names[-1])
    assert not is_new(disk)


def test_directory_of_a_deleted_topic_is_no_duplicate() -> None:
    disk = make_disk("/a/__cluster_metadata-0/x", formatted="ab")
    for name in "ab":
        disk.make_directory(f"/{name}/t-0")
        write_topic_id(disk, f"/{name}/t-0", Uuid(name.encode() * 16))
        disk.make_directory(f"/{name}/t-1.0{name}-delete")
        write_topic_id(disk, f"/{name}/t-1.0{name}-delete", Uuid(b"t" * 16))
    assert not is_new(disk)


# --- directories that do not belong together


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (MetaProperties("d", 1, None), "/b belongs to cluster d, not to c"),
        (MetaProperties("c", 7, None), "/b belongs to node 7, and node.id is 1"),
        (
            MetaProperties("c", 1, Uuid(b"a" * 16)),
            "/a and /b have the same directory.id, YWFhYWFhYWFhYWFhYWFhYQ",
        ),
        (
            MetaProperties("c", 1, Uuid(bytes(15) + b"\1")),
            "/b has the directory.id AAAAAAAAAAAAAAAAAAAAAQ, which",
        ),
    ],
    ids=["cluster", "node", "copy", "reserved"],
)
def test_inconsistent_meta_properties_fail_the_start(properties: MetaProperties, expected: str) -> None:
    disk = make_disk(formatted="ab")
    write_meta_properties(disk, "/b", properties)
    assert expected in start_error(disk)


def test_unreadable_directory_is_skipped() -> None:
    disk = make_disk(formatted="ab")
    disk.write("/b/meta.properties", b"version=2\n", sync=False)
    assert not is_new(disk)
    assert list(load_meta_properties(disk, PATHS).failures) == ["/b"]
    expected = start_error(disk, home="/b")
    assert "/b, which holds the metadata log, cannot be used: /b/meta.properties has version 2" in expected


def test_file_in_place_of_a_directory_is_skipped() -> None:
    disk = make_disk("/a/__cluster_metadata-0/x", formatted="a")
    disk.write("/b", b"no directory", sync=False)
    assert list(load_meta_properties(disk, PATHS).failures) == ["/b"]
    assert not is_new(disk)


def test_no_directory_is_formatted_if_none_is_readable() -> None:
    disk = make_disk()
    disk.make_directory("/b")
    disk.write("/b/meta.properties", b"version=2\n", sync=False)
    assert "no meta.properties can be read: /b/meta.properties has version 2" in start_error(disk)


def test_meta_properties_without_ids_are_an_error() -> None:
    disk = make_disk(formatted="a")
    disk.make_directory("/b")
    disk.write("/b/meta.properties", b"garbage", sync=False)
    with pytest.raises(StorageError, match=r"has no broker\.id and no cluster.id"):
        load_meta_properties(disk, PATHS)


# --- directory ids


@pytest.mark.parametrize("version", [0, 1])
def test_directory_without_an_id_gets_one(version: int) -> None:
    disk = make_disk(formatted="a")
    disk.make_directory("/b")
    write_meta_properties(disk, "/b", MetaProperties("c", 1, None, version))
    before, ids = disk.read("/a/meta.properties"), count(1)
    assign_directory_ids(
        disk, load_meta_properties(disk, PATHS), lambda: Uuid(bytes([next(ids)]) * 16), STORAGE_LOGGER
    )
    assert disk.read("/a/meta.properties") == before
    assert read_meta_properties(disk, "/b") == MetaProperties("c", 1, Uuid(b"\1" * 16), version)
