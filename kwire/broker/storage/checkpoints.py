"""Kafka's small text files: checkpoints, `partition.metadata`, `meta.properties`, `.kafka_cleanshutdown`.

A checkpoint has a version (0), a count, and one line per entry. Each file is replaced atomically, so that a
crash leaves the old content or the new content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from kwire.broker.storage.disk import TEMPORARY_SUFFIX, Disk, FileMissing, StorageError, join
from kwire.wire.java_properties import escaped, load, parse_integer
from kwire.wire.java_strings import BLANKS
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, TopicPartition, Uuid, uuid_from_text, uuid_to_text

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
TEMPORARY_PARTITION_METADATA = PARTITION_METADATA + TEMPORARY_SUFFIX
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
_VERSION = 0


class CorruptCheckpoint(StorageError):
    """Invalid content of a checkpoint file or of `partition.metadata`. The disk itself has not failed."""


def _encode_checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in [str(_VERSION), str(len(entries)), *entries]).encode()


def _read_entries(disk: Disk, path: str) -> list[str]:
    """Return the entry lines of a checkpoint file. Raises CorruptCheckpoint or StorageError.

    Return no lines if the file is missing or, as in Kafka, if it ends before its second line, the count.
    """
    try:
        text = disk.read(path).decode("utf-8", "replace")
    except FileMissing:
        return []
    lines = text.splitlines()
    if lines and lines[0] != str(_VERSION):
        raise CorruptCheckpoint(f"{path} has version {lines[0][:100]!r}, expected {_VERSION}")
    if len(lines) < 2:
        return []
    if not text.endswith("\n"):
        # Without its line break the last line is incomplete: its number may have lost digits.
        raise CorruptCheckpoint(f"{path} is truncated")
    if lines[1] != str(len(lines) - 2):
        raise CorruptCheckpoint(f"{path} should have {lines[1]} entries, but has {len(lines) - 2}")
    return lines[2:]


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint file, or no offsets if the file is missing.

    Raises CorruptCheckpoint or StorageError.
    """
    offsets: dict[TopicPartition, int] = {}
    for line in _read_entries(disk, path):
        try:
            topic, partition, offset = line.split()
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise CorruptCheckpoint(f"{path} has a malformed line: {line!r}") from None
    return offsets


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the content of a checkpoint file that has these offsets."""
    return _encode_checkpoint(
        f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()
    )


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint file and sync it. Raises StorageError."""
    disk.replace(path, encode_offsets(offsets), sync=True)


class OffsetCheckpoints(NamedTuple):
    """The offsets in three of the checkpoint files of a log directory."""

    recovery_points: Mapping[TopicPartition, int]
    log_start_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]

    @classmethod
    def read(cls, disk: Disk, directory: str) -> OffsetCheckpoints:
        """Read the three files. A missing file has no offsets. Raises CorruptCheckpoint or StorageError."""
        return cls(*(read_offsets(disk, join(directory, name)) for name in _CHECKPOINTS))

    def by_file(self) -> Mapping[str, Mapping[TopicPartition, int]]:
        """Return the offsets for each file, by file name."""
        return dict(zip(_CHECKPOINTS, self, strict=True))


_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS)


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """Return the (leader epoch, start offset) pairs in a file, or no pairs if the file is missing.

    Raises CorruptCheckpoint or StorageError.
    """
    epochs: list[tuple[int, int]] = []
    for line in _read_entries(disk, path):
        try:
            epoch, start_offset = line.split()
            epochs.append((int(epoch), int(start_offset)))
        except ValueError:
            raise CorruptCheckpoint(f"{path} has a malformed line: {line!r}") from None
    return epochs


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]], *, sync: bool) -> None:
    """Replace a leader epoch checkpoint by these (leader epoch, start offset) pairs. Raises StorageError."""
    lines = (f"{epoch} {start_offset}" for epoch, start_offset in epochs)
    disk.replace(path, _encode_checkpoint(lines), sync=sync)


def read_topic_id(disk: Disk, directory: str) -> Uuid | None:
    """Return the topic id in a log's `partition.metadata`, or None if the file does not exist.

    Raises CorruptCheckpoint if the file is empty or invalid, and StorageError if the disk fails. After an
    error, the caller must not treat the log as a log without a topic id: that would hide its records.
    """
    path = join(directory, PARTITION_METADATA)
    try:
        text = disk.read(path).decode("utf-8", "replace")
    except FileMissing:
        return None
    match = _TOPIC_ID.match(text)
    try:
        topic_id = uuid_from_text(match[1]) if match is not None else ZERO_UUID
    except ValueError:
        topic_id = ZERO_UUID
    if topic_id == ZERO_UUID:
        raise CorruptCheckpoint(f"{path} has no valid topic_id")
    return topic_id


_TOPIC_ID = re.compile(r"version:\s+[0-9]+\r?\ntopic_id:\s+(\S+)\s*(?:\n|$)")
"""Matches every version of the file, because later versions keep the topic id in this line."""


def write_temporary_partition_metadata(disk: Disk, directory: str, topic_id: Uuid) -> None:
    """Write `partition.metadata` under a temporary name.

    The caller must sync the file and then call `rename_partition_metadata`. Raises StorageError.
    """
    text = f"version: {_VERSION}\ntopic_id: {uuid_to_text(topic_id)}"
    disk.write(join(directory, TEMPORARY_PARTITION_METADATA), text.encode(), sync=False)


def rename_partition_metadata(disk: Disk, directory: str) -> None:
    """Rename the synced temporary file to `partition.metadata`. Raises StorageError.

    The file is complete or missing after a power loss. The rename itself need not be synced at once.
    """
    disk.rename(join(directory, TEMPORARY_PARTITION_METADATA), join(directory, PARTITION_METADATA))


class IncompleteMetaProperties(StorageError):
    """A `meta.properties` without a node id or a cluster id, so that the directory's owner is unknown."""


class MetaProperties(NamedTuple):
    """The content of `meta.properties`: the node and the cluster that own a log directory."""

    cluster_id: str
    node_id: int
    directory_id: Uuid | None
    version: int = 1
    """Brokers before KRaft wrote version 0, which has broker.id instead of node.id."""


def read_meta_properties(
    disk: Disk, directory: str, defaults: MetaProperties | None = None
) -> MetaProperties | None:
    """Read `meta.properties`, or return None if the directory is not formatted.

    A file of version 0 may lack the cluster id or the node id. The missing id is taken from `defaults`.
    Without `defaults`, IncompleteMetaProperties is raised. Any other invalid file raises StorageError.
    """
    path = join(directory, META_PROPERTIES)
    try:
        properties_text = disk.read(path).decode(_ENCODING)
    except FileMissing:
        return None
    try:
        properties = load(properties_text)
        version = parse_integer(properties.get("version", "0").strip(BLANKS))
    except ValueError:
        raise StorageError(f"{path} has no usable version") from None
    if version not in _NODE_ID:
        raise StorageError(f"{path} has version {version}; versions 0 and 1 are supported")
    cluster_id, node_id = properties.get("cluster.id"), properties.get(_NODE_ID[version])
    if version == 0 and defaults is not None:
        cluster_id = defaults.cluster_id if cluster_id is None else cluster_id
        node_id = str(defaults.node_id) if node_id is None else node_id
    if cluster_id is None or node_id is None:
        missing = [name for name in (_NODE_ID[version], "cluster.id") if name not in properties]
        raise (StorageError if version else IncompleteMetaProperties)(
            f"{path} has no {' and no '.join(missing)}"
        )
    directory_id = properties.get("directory.id")
    try:
        return MetaProperties(
            cluster_id,
            parse_integer(node_id),
            uuid_from_text(directory_id) if directory_id is not None else None,
            version,
        )
    except ValueError:
        raise StorageError(f"{path} has no usable {_NODE_ID[version]} or directory.id") from None


_ENCODING = "iso-8859-1"
"""Kafka writes UTF-8, but reads these files in this encoding."""
_NODE_ID = {0: "broker.id", 1: "node.id"}


def write_meta_properties(disk: Disk, directory: str, properties: MetaProperties) -> None:
    """Replace `meta.properties`, in the format of `properties.version`, and sync it. Raises StorageError."""
    version = properties.version
    lines = ["#", f"cluster.id={escaped(properties.cluster_id)}"]
    if properties.directory_id is not None:
        lines.append(f"directory.id={uuid_to_text(properties.directory_id)}")
    lines += [f"{_NODE_ID[version]}={properties.node_id}", f"version={version}", ""]
    disk.replace(join(directory, META_PROPERTIES), "\n".join(lines).encode(_ENCODING), sync=True)


UNKNOWN_BROKER_EPOCH = -1


def write_clean_shutdown(disk: Disk, directory: str, broker_epoch: int) -> None:
    """Write and sync the clean shutdown marker. Raises StorageError.

    The caller must have flushed, closed and checkpointed every log of the directory.
    """
    content = json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    disk.write(join(directory, CLEAN_SHUTDOWN), content.encode(), sync=True)
    disk.sync_directory(directory)


def consume_clean_shutdown(disk: Disk, directory: str) -> int | None:
    """Remove the clean shutdown marker and return its broker epoch, or -1 if the marker has no valid epoch.

    Return None if there is no marker. Raises StorageError. Must be called before the logs are opened:
    otherwise a later crash would look like a clean shutdown.
    """
    path = join(directory, CLEAN_SHUTDOWN)
    if not disk.exists(path):
        # An earlier process may have been killed after the removal and before its sync. A power loss would
        # then undo the removal.
        disk.sync_directory(directory)
        return None
    try:
        epoch = json.loads(disk.read(path)).get("brokerEpoch", UNKNOWN_BROKER_EPOCH)
    except (ValueError, AttributeError):
        epoch = UNKNOWN_BROKER_EPOCH
    disk.remove(path)
    disk.sync_directory(directory)
    return epoch if isinstance(epoch, int) else UNKNOWN_BROKER_EPOCH
