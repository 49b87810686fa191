"""A log directory (one of `log.dirs`): its owner, its partition directories, and whether it is offline."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from kwire.broker.storage.checkpoints import (
    LOCK,
    META_PROPERTIES,
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
"""The topic id of the metadata topic in every cluster."""
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
MAX_NAME_BYTES = 255
_SUFFIXED = re.compile(r"^(\S+)-(\d+)\.(\S+)(-delete|-stray|-future)$")
_PLAIN = re.compile(r"^(\S+)-(\d+)$")
_FOREIGN = frozenset({"remote-log-index-cache", "lost+found"})
"""Subdirectories of a log directory that are ignored, because they are not partition directories."""


class DirectoryInUse(StorageError):
    """A log directory that another broker has locked."""


class PartitionDirectory(NamedTuple):
    """The parsed name of a partition directory."""

    name: str
    topic: str
    partition: int
    suffix: str
    """Empty for the partition's current log; otherwise `-delete`, `-stray` or `-future`."""


def parse_dir_name(name: str) -> PartitionDirectory | None:
    """Parse the name of a partition directory. Return None for any other name."""
    match = _SUFFIXED.match(name)
    if match is not None:
        return PartitionDirectory(name, match[1], int(match[2]), match[4])
    match = _PLAIN.match(name)
    return PartitionDirectory(name, match[1], int(match[2]), "") if match is not None else None


def future_dir_name(topic: str, partition: int, rng: random.Random) -> str:
    """Return a new directory name for a future log. Must be called only if `future_dir_name_fits`."""
    return f"{topic}-{partition}.{rng.getrandbits(128):032x}{FUTURE_SUFFIX}"


def future_dir_name_fits(topic: str, partition: int) -> bool:
    """Return whether a future log's directory name, which cannot be shortened, fits the file system."""
    return len(f"{topic}-{partition}.{FUTURE_SUFFIX}") + 32 <= MAX_NAME_BYTES


def suffixed_dir_name(topic: str, partition: int, suffix: str, rng: random.Random) -> str:
    """Return a new directory name for a deleted or stray log. A long topic name is shortened."""
    rest = f"-{partition}.{rng.getrandbits(128):032x}{suffix}"
    return topic[: MAX_NAME_BYTES - len(rest)] + rest


def unusable_text(failures: Mapping[str, object]) -> str:
    """Return the error for log directories of which none can be used, from the failure of each directory."""
    each = [str(why) if path in str(why) else f"{path}: {why}" for path, why in failures.items()]
    where = "with --data or in log.dirs" if len(each) == 1 else "in log.dirs"
    return f"no log directory can be used: {'; '.join(each)}: choose another one {where}"


def ignores_case(disk: Disk, path: str) -> bool:
    """Return whether names that differ only in case are the same in a formatted log directory."""
    return disk.exists(join(path, META_PROPERTIES.upper()))


class LogDirectory:
    """A log directory of this broker, locked while it is open."""

    def __init__(self, disk: Disk, path: str, *, holds_only_metadata: bool = False) -> None:
        self.path = path
        self.holds_only_metadata = holds_only_metadata
        """Whether the directory is the metadata.log.dir and not one of `log.dirs`."""
        self.cordoned = False
        """Whether new partitions are created in other directories if possible (KIP-1066)."""
        self.failure: str | None = None
        """The reason why the directory is offline; None if it is online."""
        self.had_clean_shutdown = False
        """Whether the directory had a clean shutdown marker when the broker started."""
        self.last_broker_epoch = UNKNOWN_BROKER_EPOCH
        """The broker epoch of the last clean shutdown, or UNKNOWN_BROKER_EPOCH."""
        self.properties: MetaProperties | None = None
        """The content of `meta.properties`; None for a directory that is not formatted."""
        self._disk = disk
        self._lock: DiskLock | None = None

    @property
    def offline(self) -> bool:
        """Whether the directory has failed, so that its logs are not served."""
        return self.failure is not None

    def consume_clean_shutdown(self) -> None:
        """Read and remove the clean shutdown marker. Raises StorageError."""
        epoch = consume_clean_shutdown(self._disk, self.path)
        self.had_clean_shutdown = epoch is not None
        self.last_broker_epoch = UNKNOWN_BROKER_EPOCH if epoch is None else epoch

    def mark_clean(self) -> None:
        """Write the clean shutdown marker with `last_broker_epoch`. Raises StorageError."""
        write_clean_shutdown(self._disk, self.path, self.last_broker_epoch)

    def __repr__(self) -> str:
        return f"LogDirectory({self.path}{', offline' if self.offline else ''})"

    @property
    def directory_id(self) -> Uuid | None:
        """The directory id in `meta.properties`, if there is one (KIP-858)."""
        return None if self.properties is None else self.properties.directory_id

    def open(self) -> None:
        """Create the directory if needed, and lock it. Raises DirectoryInUse or StorageError."""
        disk = self._disk
        if not disk.is_directory(self.path):
            disk.make_directory(self.path)
        # Sync an existing directory, too: the process that created it may have crashed before its sync.
        parent = self.path.rpartition("/")[0]
        disk.sync_directory(parent or ("/" if self.path.startswith("/") else "."))
        self._lock = disk.lock(join(self.path, LOCK))
        if self._lock is None:
            raise DirectoryInUse(
                f"{self.path} is in use by another broker, which holds {LOCK}: stop that broker, or choose "
                f"another directory"
            )

    def read_properties(self) -> None:
        """Read `meta.properties`. Raises StorageError."""
        self.properties = read_meta_properties(self._disk, self.path)

    def partitions(self) -> list[PartitionDirectory]:
        """Return the partition directories, sorted by name.

        Raises StorageError if there is any other subdirectory, except hidden ones and `_FOREIGN`.
        """
        found: list[PartitionDirectory] = []
        for name in self._disk.subdirectories(self.path):
            if name in _FOREIGN or name.startswith("."):
                continue
            parsed = parse_dir_name(name)
            if parsed is None:
                raise StorageError(f"{join(self.path, name)} is not a valid name of a partition directory")
            found.append(parsed)
        return found

    def sync(self) -> None:
        """Make the names in the directory durable. May run in any thread. Raises StorageError."""
        self._disk.sync_directory(self.path)

    def volume_bytes(self) -> tuple[int, int]:
        """Return the total and the usable bytes of the volume, or (-1, -1) if they are unknown."""
        try:
            return self._disk.volume_bytes(self.path)
        except StorageError:
            return -1, -1

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
