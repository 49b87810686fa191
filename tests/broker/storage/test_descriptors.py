"""The real disk in a process that runs out of file descriptors."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from kwire.broker.storage.descriptors import ADDED_PER_INCREASE, MIN_CACHED_FILES, SPARES, HandleCache
from kwire.broker.storage.disk import DiskFile, FileMissing, RealDisk, ResourceShortage
from tests.broker.storage.descriptor_limit import no_free_descriptors

SECONDS = 10


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = [tmp_path / f"file-{number:03}" for number in range(100)]
    for path in found:
        path.write_bytes(path.name.encode())
    return list(map(str, found))


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def content(disk: RealDisk, path: str) -> bytes:
    return disk.open(path).read_at(0, 100)


def test_cached_files_are_closed_for_other_files(disk: RealDisk, paths: list[str]) -> None:
    shortages: list[OSError] = []
    disk.descriptors.on_shortage = shortages.append
    for path in paths[:50]:
        disk.open(path)
    with no_free_descriptors():
        assert [content(disk, path) for path in paths] == [Path(path).name.encode() for path in paths]
        assert disk.read(paths[0]) == b"file-000"
        assert disk.names(str(Path(paths[0]).parent))
        disk.replace(paths[0], b"new", sync=True)
        disk.sync_directory(str(Path(paths[0]).parent))
        assert disk.read_part(paths[0], 1, 1) == b"e"
    assert {error.errno for error in shortages} == {errno.EMFILE}


def test_files_in_use_stay_open_and_shared(disk: RealDisk, paths: list[str]) -> None:
    used = [disk.open(path) for path in paths[:5]]
    with no_free_descriptors(), pytest.raises(ResourceShortage, match=r"ulimit -n"):
        disk.open(paths[50])
    assert [disk.open(path) for path in paths[:5]] == used


def test_missing_file_is_missing_without_descriptors_too(disk: RealDisk, paths: list[str]) -> None:
    with no_free_descriptors(), disk.reserved(), pytest.raises(FileMissing):
        disk.open(paths[0] + "x")


def test_reserved_block_finds_spare_descriptors(disk: RealDisk, paths: list[str]) -> None:
    with no_free_descriptors():
        with disk.reserved():
            used: list[DiskFile] = [disk.open(path) for path in paths[:SPARES]]
            with pytest.raises(ResourceShortage), disk.reserved():
                disk.open(paths[50])
        with pytest.raises(ResourceShortage), disk.reserved():
            pytest.fail("the block begins without its descriptors")
        used.clear()
        with disk.reserved():
            disk.open(paths[50])


def test_cache_grows_again_after_a_shortage(paths: list[str]) -> None:
    disk = RealDisk(max_open_files=20)
    for path in paths[:20]:
        disk.open(path)
    with no_free_descriptors() as hog:
        for path in paths[20:22]:
            disk.open(path)
            hog.take_all()
        assert len(disk._handles) < 10
    for path in paths * (20 * ADDED_PER_INCREASE // len(paths)):
        disk.open(path)
    assert len(disk._handles) == 20


@pytest.mark.parametrize(
    "work",
    [
        lambda disk, path: disk.write(path, b"new", sync=True),
        lambda disk, path: disk.sync_directory(str(Path(path).parent)),
        lambda disk, path: disk.read(path),
    ],
)
def test_worker_uses_a_spare_descriptor(
    disk: RealDisk, paths: list[str], work: Callable[[RealDisk, str], object]
) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for path in paths:
                work(disk, path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(3)]
    with no_free_descriptors():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert not failures


def test_worker_waits_for_a_descriptor(disk: RealDisk, paths: list[str]) -> None:
    with no_free_descriptors() as hog:
        for _ in range(10):  # a thread of another test may have freed a descriptor
            disk.descriptors.close()  # as if another thread had taken the spare descriptors
            disk.descriptors._is_closed = False
            hog.take_all()
            thread = threading.Thread(target=lambda: disk.write(paths[0], b"new", sync=True), daemon=True)
            thread.start()
            thread.join(0.2)
            if thread.is_alive():
                break
        assert thread.is_alive()
        hog.free(1)
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert disk.read(paths[0]) == b"new"


def test_worker_gets_a_spare_descriptor_while_all_files_are_in_use(disk: RealDisk, paths: list[str]) -> None:
    """The flushes that use the files may wait behind this worker."""
    requests: SimpleQueue[Callable[[], object]] = SimpleQueue()
    descriptors = disk.descriptors
    descriptors.call_owner = requests.put
    in_use = [disk.open(path) for path in paths]
    with no_free_descriptors() as hog:
        os.close(descriptors._worker_spare.pop())
        hog.take_all()  # another thread took the spare descriptor of the workers
        thread = threading.Thread(target=lambda: disk.write(paths[0], b"new", sync=True), daemon=True)
        thread.start()
        for _ in range(20):
            try:
                requests.get(timeout=0.2)()
            except Empty:
                break
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert len(in_use) == len(paths)
    assert disk.read(paths[0]) == b"new"


def test_connections_get_descriptors_but_not_the_last_cached_files(disk: RealDisk, paths: list[str]) -> None:
    for path in paths:
        disk.open(path)
    while disk.give_back_descriptors():
        pass
    assert len(disk._handles) == MIN_CACHED_FILES


class _File:
    """A file of a cache. It is closed when the last reference to it is dropped."""

    def __init__(self, closed: list[str], path: str) -> None:
        self._closed = closed
        self._path = path

    def __del__(self) -> None:
        self._closed.append(self._path)


def test_only_files_without_other_references_are_given_back() -> None:
    closed: list[str] = []
    cache: HandleCache[_File] = HandleCache(100)

    def add(path: str) -> _File:
        file = _File(closed, path)
        cache.add(path, file)
        return file

    def give_back_all() -> None:
        while cache.give_back():
            pass

    def give_back_during_use(file: _File) -> None:
        give_back_all()
        assert file is not None

    def reader() -> Iterator[None]:
        file = add("of a generator")
        yield
        assert file is not None

    add("unused 1")
    local = add("of a local variable")
    listed = [add("of a list")]
    paused = reader()
    next(paused)
    add("unused 2")
    give_back_during_use(add("of an argument"))
    assert sorted(closed) == ["unused 1", "unused 2"]
    del local, listed, paused
    give_back_all()
    assert sorted(closed) == [
        "of a generator", "of a list", "of a local variable", "of an argument", "unused 1", "unused 2",
    ]  # fmt: skip
    assert not len(cache)
