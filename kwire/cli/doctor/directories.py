"""Checks of the log directories: disk space, permissions, and whether a broker could start on them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final

from kwire.broker.config import BrokerConfig
from kwire.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    LOCK,
    META_PROPERTIES,
    IncompleteMetaProperties,
    OffsetCheckpoints,
)
from kwire.broker.storage.dirs.meta_properties import StartRefused, load_meta_properties, needs_format
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.cli.doctor.finding import PROBLEM, Finding, ok, problem, warning
from kwire.cli.shared.output import format_size, format_time
from kwire.host.platform.files import sync_file
from kwire.wire.plural import plural

AREA: Final = "data directory"
MIN_FREE_BYTES: Final = 1 << 30
MIN_FREE_PERCENT: Final = 10
MIN_FREE_INODES: Final = 10_000
SLOW_SYNC_MS: Final = 25
SYNCS: Final = 5
FUTURE_MS: Final = 60_000
REMOTE_FILESYSTEMS: Final = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "glusterfs")
MEMORY_FILESYSTEMS: Final = ("tmpfs", "ramfs")


def findings(config: BrokerConfig, now_ms: int) -> Iterator[Finding]:
    """Check the directories of log.dirs. Files are only read, except for a temporary file on each disk."""
    disk = RealDisk()
    runs = is_in_use(config)
    are_writable = True
    for directory in config.log_dirs:
        for found in _volume_findings(directory):
            are_writable &= found.area != AREA or found.severity != PROBLEM
            yield found
        if os.path.isdir(directory):
            yield from _content_findings(disk, directory, now_ms, runs=runs)
    if runs:
        yield ok(AREA, "in use by a running broker")
    home = config.metadata_log_dir or config.log_dirs[0]
    try:
        owners = load_meta_properties(disk, config.log_dirs)
        if needs_format(disk, owners, metadata_dir=home, node_id=config.node_id):
            if are_writable:
                yield ok(AREA, "empty: the first start formats it")
        else:
            owner = owners.formatted[home]
            yield ok(AREA, f"belongs to node {owner.node_id} of cluster {owner.cluster_id}")
    except (IncompleteMetaProperties, StartRefused, StorageError) as error:
        yield problem(AREA, "a broker cannot start with these log directories", str(error))


def is_in_use(config: BrokerConfig) -> bool:
    """Return whether a running broker has locked one of the log directories."""
    return any(_is_locked(RealDisk(), directory) for directory in config.log_dirs)


def _is_locked(disk: RealDisk, directory: str) -> bool:
    """Return whether another process has locked the directory."""
    path = os.path.join(directory, LOCK)
    if not os.access(path, os.W_OK):
        return False
    try:
        lock = disk.lock(path)
    except StorageError:
        return False
    if lock is None:
        return True
    lock.release()
    return False


def _volume_findings(directory: str) -> Iterator[Finding]:
    """Check the disk of a directory, or of its nearest existing parent."""
    existing = os.path.abspath(directory)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        yield problem(AREA, f"{existing} is not a directory", "choose another directory in log.dirs")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        if os.statvfs(existing).f_flag & os.ST_RDONLY:
            advice = "choose a directory in log.dirs on a file system that is not read-only"
        else:
            advice = "run as its owner, or change its owner (chown)"
        yield problem(AREA, f"this user cannot write to {existing}", advice)
        return
    sync = _sync_finding(existing)
    if sync.area == AREA:
        yield sync
        return
    yield from volume_findings(existing, os.statvfs)
    kind = filesystem(existing)
    if kind.startswith(REMOTE_FILESYSTEMS):
        yield warning(
            AREA, f"{directory} is on {kind}", "use a local disk: file locks and syncs are unreliable there"
        )
    if kind in MEMORY_FILESYSTEMS:
        yield warning(AREA, f"{directory} is on {kind}, which is memory", "use a disk to keep the data")
    if os.path.abspath(directory).startswith("/tmp/"):
        yield warning(
            AREA,
            f"{directory} is in /tmp, which systems clean up",
            "use another directory, like /var/lib/kwire",
        )
    yield sync


def volume_findings(path: str, statvfs: Callable[[str], os.statvfs_result]) -> Iterator[Finding]:
    """Check free space and inodes of the file system of a path."""
    volume = statvfs(path)
    total, free = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    percent = 100 * free // total if total else 100
    found = f"{format_size(free)} of {format_size(total)} free at {path}"
    if free < MIN_FREE_BYTES:
        yield problem("disk", found, "free some space, or set retention.bytes so that topics fit")
    elif percent < MIN_FREE_PERCENT:
        yield warning(
            "disk", f"{found}, {percent} %", "free some space, or set retention.bytes so that topics fit"
        )
    else:
        yield ok("disk", found)
    if 0 < volume.f_favail < MIN_FREE_INODES:
        yield warning(
            "disk", f"{volume.f_favail} inodes left at {path}", "free some: each segment needs four files"
        )


def filesystem(path: str) -> str:
    """Return the type of the file system of a path; empty if it is unknown."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return ""
    best, kind = "", ""
    for point, found in mounts:
        point = point.replace("\\040", " ")
        is_on_it = point == "/" or path == point or path.startswith(point + "/")
        if is_on_it and len(point) >= len(best):
            best, kind = point, found
    return kind


def _sync_finding(directory: str) -> Finding:
    """Measure the median time of a sync to disk, or find out that no file can be written there."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            taken = []
            for _ in range(SYNCS):
                file.write(bytes(4096))
                file.flush()
                began = time.perf_counter()
                sync_file(file.fileno())
                taken.append(1000 * (time.perf_counter() - began))
    except OSError as error:
        return problem(
            AREA,
            f"{directory} cannot be written to: {error.strerror}",
            "choose another directory in log.dirs",
        )
    middle = sorted(taken)[SYNCS // 2]
    found = f"a sync takes {middle:.1f} ms at {directory}"
    if middle > SLOW_SYNC_MS:
        return warning("disk", found, "use a faster disk: elections and metadata changes wait for syncs")
    return ok("disk", found)


def _content_findings(disk: RealDisk, directory: str, now_ms: int, *, runs: bool) -> Iterator[Finding]:
    try:
        OffsetCheckpoints.read(disk, directory)
    except StorageError as error:
        yield problem(
            AREA, f"a checkpoint is corrupt: {error}", "delete that file: log recovery then reads the logs"
        )
    if not os.path.exists(os.path.join(directory, META_PROPERTIES)):
        return
    with os.scandir(directory) as entries:
        found = list(entries)
    newest_ms = max(int(entry.stat().st_mtime * 1000) for entry in found)
    if newest_ms > now_ms + FUTURE_MS:
        yield warning(
            "clock",
            f"{directory} was last written at {format_time(newest_ms)}, which is in the future",
            "set the clock: it was ahead then, or is behind now",
        )
    foreign = [entry.name for entry in found if not os.access(entry.path, os.W_OK)]
    if foreign:
        yield problem(
            AREA,
            f"this user cannot write to {os.path.join(directory, foreign[0])}"
            + (f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""),
            "run as their owner, or change their owner (chown -R)",
        )
    logs = sum(entry.is_dir() for entry in found)
    if logs and not runs and not os.path.exists(os.path.join(directory, CLEAN_SHUTDOWN)):
        yield ok(
            AREA,
            f"{directory} has {plural(logs, 'log')} after an unclean shutdown: the next start runs log "
            "recovery",
        )
