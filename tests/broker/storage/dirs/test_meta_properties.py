"""On which directories a broker may start, beside what Apache Kafka 4.3.1 does on the same ones."""

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
from tests.broker.storage.log_bench import put_topic_id

PATHS = ("/a", "/b")
SNAPSHOT = "/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def made(*files: str, formatted: str = "") -> MemoryDisk:
    """A disk with these files, and `meta.properties` in /x for each letter x of `formatted`."""
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


def refused(disk: MemoryDisk, *, home: str = "/a", node_id: int = 1, paths: tuple[str, ...] = PATHS) -> str:
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
    ids=["missing", "strange", "cut short"],
)
def test_where_no_trace_of_a_broker_is_it_may_be_formatted(files: list[str]) -> None:
    assert is_new(made(*files))


def test_a_first_start_that_was_cut_short_is_taken_up_again() -> None:
    assert is_new(made("/a/bootstrap.checkpoint", formatted="b"))
    assert "no meta.properties in /a" in refused(made("/a/bootstrap.checkpoint", "/b/t-0/x", formatted="b"))


def test_formatted_directories_are_served() -> None:
    assert not is_new(made("/a/__cluster_metadata-0/x", "/b/t-0/x", formatted="ab"))
    assert not is_new(made(formatted="ab"))


@pytest.mark.parametrize(
    "trace",
    [
        "/b/t-0/00000000000000000000.log",
        "/b/t-0.0123-stray/x",
        "/a/__cluster_metadata-0/00000000000000000000.log",
    ],
)
def test_without_any_meta_properties_nothing_is_formatted_over(trace: str) -> None:
    found = trace.rpartition("/")[0]
    assert f"no meta.properties in /a, /b, but {found} exists" in refused(made(trace))


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("is_there", [True, False])
def test_one_directory_without_meta_properties_among_formatted_ones(name: str, is_there: bool) -> None:
    """A disk that is not mounted: to serve without it, or on what is under it, would hide its data."""
    disk = made(*([f"/{name}/.lock"] if is_there else []), formatted="ab".replace(name, ""))
    assert f"no meta.properties in /{name}, but the other directories are formatted" in refused(disk)
    assert not disk.exists(f"/{name}/meta.properties")


# --- the metadata log


def test_directories_in_another_order_have_the_metadata_log_elsewhere() -> None:
    disk = made("/a/__cluster_metadata-0/x", "/b/t-0/x", formatted="ab")
    told = refused(disk, home="/b", paths=("/b", "/a"))
    assert "/a/__cluster_metadata-0 is a metadata log, but the configured directory is /b" in told
    assert "set metadata.log.dir=/a" in told


def test_a_metadata_log_dir_that_is_set_later_has_no_metadata_log() -> None:
    disk = made("/a/__cluster_metadata-0/x", formatted="abm")
    assert "/a/__cluster_metadata-0 is a metadata log" in refused(disk, home="/m", paths=("/a", "/b", "/m"))


def test_a_metadata_log_dir_that_is_set_no_more_leaves_partitions_without_metadata() -> None:
    """Other than Kafka, which begins an empty metadata log and sets every partition aside."""
    disk = made("/m/__cluster_metadata-0/x", "/b/t-0/x", formatted="abm")
    assert "/a has no metadata log, but /b/t-0 exists" in refused(disk)
    assert not is_new(disk, home="/m", paths=("/a", "/b", "/m"))


# --- one directory for one partition


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["/a/t-0", "/b/t-0"], "/a/t-0 and /b/t-0 are both directories of partition t-0"),
        (
            ["/a/t-0", "/b/t-0.01-future", "/b/t-0.02-future"],
            "/b/t-0.01-future and /b/t-0.02-future are both future logs of partition t-0",
        ),
    ],
    ids=["directories", "copies"],
)
def test_two_directories_of_a_partition_are_one_too_many(names: list[str], told: str) -> None:
    """As Kafka: either may hold what was written last, and to take the wrong one is to lose it."""
    disk = made("/a/__cluster_metadata-0/x", formatted="ab")
    for name in names:
        disk.make_directory(name)
        put_topic_id(disk, name, Uuid(b"t" * 16))
    before = disk.tree("/a") | disk.tree("/b")
    assert refused(disk) == (
        f"{told}: find out which one was written to last, and move the other one out of log.dirs"
    )
    assert disk.tree("/a") | disk.tree("/b") == before
    disk.remove_tree(names[-1])
    assert not is_new(disk)


def test_what_is_left_of_an_earlier_topic_of_the_name_is_no_second_directory() -> None:
    disk = made("/a/__cluster_metadata-0/x", formatted="ab")
    for name in "ab":
        disk.make_directory(f"/{name}/t-0")
        put_topic_id(disk, f"/{name}/t-0", Uuid(name.encode() * 16))
        disk.make_directory(f"/{name}/t-1.0{name}-delete")
        put_topic_id(disk, f"/{name}/t-1.0{name}-delete", Uuid(b"t" * 16))
    assert not is_new(disk)


# --- directories that do not belong together


@pytest.mark.parametrize(
    ("properties", "told"),
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
def test_directories_that_do_not_belong_together(properties: MetaProperties, told: str) -> None:
    disk = made(formatted="ab")
    write_meta_properties(disk, "/b", properties)
    assert told in refused(disk)


def test_a_directory_that_cannot_be_read_is_done_without() -> None:
    disk = made(formatted="ab")
    disk.write("/b/meta.properties", b"version=2\n", sync=False)
    assert not is_new(disk)
    assert list(load_meta_properties(disk, PATHS).failures) == ["/b"]
    told = refused(disk, home="/b")
    assert "/b, which holds the metadata log, cannot be used: /b/meta.properties has version 2" in told


def test_a_file_in_place_of_a_directory_is_done_without() -> None:
    disk = made("/a/__cluster_metadata-0/x", formatted="a")
    disk.write("/b", b"no directory", sync=False)
    assert list(load_meta_properties(disk, PATHS).failures) == ["/b"]
    assert not is_new(disk)


def test_where_none_can_be_read_none_is_formatted() -> None:
    disk = made()
    disk.make_directory("/b")
    disk.write("/b/meta.properties", b"version=2\n", sync=False)
    assert "no meta.properties can be read: /b/meta.properties has version 2" in refused(disk)


def test_a_file_that_names_nobody_is_an_error() -> None:
    disk = made(formatted="a")
    disk.make_directory("/b")
    disk.write("/b/meta.properties", b"garbage", sync=False)
    with pytest.raises(StorageError, match=r"has no broker\.id and no cluster.id"):
        load_meta_properties(disk, PATHS)


# --- directory ids


@pytest.mark.parametrize("version", [0, 1])
def test_a_directory_without_an_id_gets_one_and_nothing_else_changes(version: int) -> None:
    disk = made(formatted="a")
    disk.make_directory("/b")
    write_meta_properties(disk, "/b", MetaProperties("c", 1, None, version))
    before, ids = disk.read("/a/meta.properties"), count(1)
    assign_directory_ids(
        disk, load_meta_properties(disk, PATHS), lambda: Uuid(bytes([next(ids)]) * 16), STORAGE_LOGGER
    )
    assert disk.read("/a/meta.properties") == before
    assert read_meta_properties(disk, "/b") == MetaProperties("c", 1, Uuid(b"\1" * 16), version)
