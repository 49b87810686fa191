"""One of `log.dirs`: whose it is, what lies in it by name, and whether it still works."""

from __future__ import annotations

import random
import re

from kwire.broker.storage.checkpoints import (
    LOCK,
    UNKNOWN_BROKER_EPOCH,
    MetaProperties,
    consume_clean_shutdown,
    read_meta_properties,
    write_clean_shutdown,
)
from kwire.broker.storage.disk import Disk, DiskLock, StorageError, join
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = Uuid(bytes(15) + b"\x01")
"""The id of the metadata topic is the same in every cluster."""
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
MAX_NAME_BYTES = 255
_SUFFIXED = re.compile(r"^(\S+)-(\d+)\.(\S+)(-delete|-stray|-future)$")
_PLAIN = re.compile(r"^(\S+)-(\d+)$")
_FOREIGN = frozenset({"remote-log-index-cache", "lost+found"})
"""Directories that are no partition's, and are let be."""


class DirectoryInUse(StorageError):
    """Another process works on the directory: this one must not."""


class PartitionDirectory(NamedTuple):
    """What the name of a directory says."""

    name: str
    topic: str
    partition: int
    suffix: str
    """Empty for a partition in use; otherwise what has become of it."""


def parse_dir_name(name: str) -> PartitionDirectory | None:
    """The partition that a directory's name stands for; None where it stands for none."""
    match = _SUFFIXED.match(name)
    if match is not None:
        return PartitionDirectory(name, match[1], int(match[2]), match[4])
    match = _PLAIN.match(name)
    return PartitionDirectory(name, match[1], int(match[2]), "") if match is not None else None


def future_dir_name(topic: str, partition: int, rng: random.Random) -> str:
    """Return a new directory name for a future log; see `future_dir_name_fits` for long topic names."""
    return f"{topic}-{partition}.{rng.getrandbits(128):032x}{FUTURE_SUFFIX}"


def future_dir_name_fits(topic: str, partition: int) -> bool:
    """Whether the name of the partition on its way fits a file name: it is not cut, as others are."""
    return len(f"{topic}-{partition}.{FUTURE_SUFFIX}") + 32 <= MAX_NAME_BYTES


def suffixed_dir_name(topic: str, partition: int, suffix: str, rng: random.Random) -> str:
    """A fresh name for a partition that is deleted or stray; a long topic is cut to fit a file name."""
    rest = f"-{partition}.{rng.getrandbits(128):032x}{suffix}"
    return topic[: MAX_NAME_BYTES - len(rest)] + rest


class LogDirectory:
    """A log directory of this broker, locked while it is open."""

    def __init__(self, disk: Disk, path: str, *, holds_only_metadata: bool = False) -> None:
        self.path = path
        self.holds_only_metadata = holds_only_metadata
        """Whether it is none of `log.dirs`, and holds the metadata log alone."""
        self.cordoned = False
        """Whether new partitions go elsewhere (KIP-1066)."""
        self.failure: str | None = None
        """Why it is offline."""
        self.had_clean_shutdown = False
        """Whether the last shutdown left it complete."""
        self.last_broker_epoch = UNKNOWN_BROKER_EPOCH
        """In which epoch of the broker it did."""
        self.properties: MetaProperties | None = None
        """What `meta.properties` says; None for a directory that is not formatted."""
        self._disk = disk
        self._lock: DiskLock | None = None

    @property
    def offline(self) -> bool:
        """Whether it failed: nothing in it is served any more."""
        return self.failure is not None

    def consume_clean_shutdown(self) -> None:
        """Learn how it was left; from here on a crash counts as one. StorageError."""
        epoch = consume_clean_shutdown(self._disk, self.path)
        self.had_clean_shutdown = epoch is not None
        self.last_broker_epoch = UNKNOWN_BROKER_EPOCH if epoch is None else epoch

    def mark_clean(self) -> None:
        """Say that it is complete, as `last_broker_epoch` has left it. StorageError."""
        write_clean_shutdown(self._disk, self.path, self.last_broker_epoch)

    def __repr__(self) -> str:
        return f"LogDirectory({self.path}{', offline' if self.offline else ''})"

    @property
    def directory_id(self) -> Uuid | None:
        """How the cluster's metadata calls it, where it has been told."""
        return None if self.properties is None else self.properties.directory_id

    def open(self) -> None:
        """Make the directory if needed, and lock it. DirectoryInUse, StorageError."""
        disk = self._disk
        if not disk.is_directory(self.path):
            disk.make_directory(self.path)
        # Not only where it was made now: whoever made it may have been killed before this.
        parent = self.path.rpartition("/")[0]
        disk.sync_directory(parent or ("/" if self.path.startswith("/") else "."))
        self._lock = disk.lock(join(self.path, LOCK))
        if self._lock is None:
            raise DirectoryInUse(
                f"{self.path} is in use by another broker (it holds {LOCK}): end that one, or choose another"
            )

    def read_properties(self) -> None:
        """Learn whose the directory is, by now. StorageError."""
        self.properties = read_meta_properties(self._disk, self.path)

    def partitions(self) -> list[PartitionDirectory]:
        """The partition directories in it, by name. StorageError for a directory that is none."""
        found: list[PartitionDirectory] = []
        for name in self._disk.subdirectories(self.path):
            if name in _FOREIGN or name.startswith("."):
                continue
            parsed = parse_dir_name(name)
            if parsed is None:
                raise StorageError(f"{join(self.path, name)} is not named as a partition's directory is")
            found.append(parsed)
        return found

    def sync(self) -> None:
        """Make the names in it durable. In any thread. StorageError."""
        self._disk.sync_directory(self.path)

    def volume_bytes(self) -> tuple[int, int]:
        """Total and usable bytes of the volume; -1 where they cannot be told."""
        try:
            return self._disk.volume_bytes(self.path)
        except StorageError:
            return -1, -1

    def release(self) -> None:
        """Unlock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
