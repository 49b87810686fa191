"""Verification of the log directories before a broker starts on them. Kafka's MetaPropertiesEnsemble.

The `meta.properties` file of a directory has the ids of the node and the cluster that own the directory. A
directory without this file may be the mount point of an unmounted disk. If the broker started with this empty
directory, the records on the disk would be missing. So a broker starts only if all directories are formatted
and belong to the same node and cluster, and if the metadata log is in the configured directory. Kafka has the
same conditions (KIP-631, KIP-858). A directory whose `meta.properties` cannot be read goes offline.

Unlike Kafka, kwire formats the directories at the first start, if there is no data of a broker in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kwire.broker.storage.checkpoints import (
    IncompleteMetaProperties,
    MetaProperties,
    read_meta_properties,
    read_topic_id,
    write_meta_properties,
)
from kwire.broker.storage.dirs.log_dir import FUTURE_SUFFIX, METADATA_TOPIC, parse_dir_name
from kwire.broker.storage.disk import Disk, FileMissing, StorageError, join
from kwire.host.loggers import NodeLogger
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid, uuid_to_text

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
"""The file that formatting writes first, into the directory of the metadata log."""
METADATA_LOG = f"{METADATA_TOPIC}-0"
FIRST_SNAPSHOT = "00000000000000000000-0000000000.checkpoint"
"""The metadata snapshot that formatting writes for a dynamic quorum."""
RESERVED_IDS = 100
"""The number of reserved directory ids, starting at zero (KIP-858)."""


class StartRefused(StorageError):
    """A refusal to start on these directories. The message has the reason and what to do."""


class MetaPropertiesEnsemble(NamedTuple):
    """The `meta.properties` of all log directories. The keys are directory paths."""

    formatted: Mapping[str, MetaProperties]
    unformatted: Sequence[str]
    """Directories without `meta.properties`. They may be missing or empty, or have other files."""
    failures: Mapping[str, StorageError]
    """Directories whose `meta.properties` could not be read, and paths that are not directories."""


def load_meta_properties(
    disk: Disk, directories: Sequence[str], defaults: MetaProperties | None = None
) -> MetaPropertiesEnsemble:
    """Read the `meta.properties` of each directory.

    `defaults` supplies values that a file of version 0 lacks; without `defaults`, such a file raises
    IncompleteMetaProperties. All other failures are part of the result.
    """
    formatted: dict[str, MetaProperties] = {}
    unformatted: list[str] = []
    failures: dict[str, StorageError] = {}
    for directory in directories:
        try:
            properties = read_meta_properties(disk, directory, defaults)
        except IncompleteMetaProperties:
            raise
        except StorageError as error:
            failures[directory] = error
            continue
        if properties is None and disk.exists(directory) and not disk.is_directory(directory):
            failures[directory] = StorageError(f"{directory} is not a directory: choose another in log.dirs")
        elif properties is None:
            unformatted.append(directory)
        else:
            formatted[directory] = properties
    return MetaPropertiesEnsemble(formatted, unformatted, failures)


def find_mismatch(ensemble: MetaPropertiesEnsemble, node_id: int, cluster_id: str | None) -> str | None:
    """Return why the directories do not all belong to this node and one cluster, or None if they do.

    If `cluster_id` is None, any cluster is allowed. Reserved and duplicate directory ids are reported, too.
    """
    seen: dict[Uuid, str] = {}
    for directory, properties in sorted(ensemble.formatted.items()):
        if properties.node_id != node_id:
            return (
                f"{directory} belongs to node {properties.node_id}, and node.id is {node_id}: "
                f"set node.id={properties.node_id}, or use another directory"
            )
        cluster_id = cluster_id or properties.cluster_id
        if properties.cluster_id != cluster_id:
            return (
                f"{directory} belongs to cluster {properties.cluster_id}, not to {cluster_id}: "
                f"use another directory, or that cluster's id"
            )
        directory_id = properties.directory_id
        if directory_id is None:
            continue
        if int.from_bytes(directory_id) < RESERVED_IDS:
            return f"{directory} has the directory.id {uuid_to_text(directory_id)}, which is reserved"
        other = seen.setdefault(directory_id, directory)
        if other != directory:
            return (
                f"{other} and {directory} have the same directory.id, {uuid_to_text(directory_id)}: one is a "
                f"copy of the other; remove the copy from log.dirs"
            )
    return None


def needs_format(disk: Disk, ensemble: MetaPropertiesEnsemble, *, metadata_dir: str, node_id: int) -> bool:
    """Return whether the directories must be formatted before the broker starts on them.

    Raises StartRefused if neither a start nor formatting is safe.
    """
    # `metadata_dir`, the directory of the metadata log, is formatted last, so that an interrupted first start
    # is completed.
    is_half_formatted = metadata_dir in ensemble.unformatted and disk.exists(
        join(metadata_dir, BOOTSTRAP_CHECKPOINT)
    )
    if (is_half_formatted or not ensemble.formatted) and not ensemble.failures:
        trace = next((found for path in _usable(ensemble) for found in _partition_paths(disk, path)), None)
        if trace is None:
            return True
        if not ensemble.formatted:
            raise StartRefused(
                f"there is no meta.properties in {', '.join(ensemble.unformatted)}, but {trace} exists: "
                f"restore the file, or run kwire format with the cluster's id"
            )
    if not ensemble.formatted:
        raise StartRefused(f"no meta.properties can be read: {next(iter(ensemble.failures.values()))}")
    wrong = find_mismatch(ensemble, node_id, None)
    if wrong is not None:
        raise StartRefused(wrong)
    if metadata_dir in ensemble.failures:
        raise StartRefused(
            f"{metadata_dir}, which holds the metadata log, cannot be used: {ensemble.failures[metadata_dir]}"
        )
    _check_metadata_log_dir(disk, ensemble, metadata_dir)
    if ensemble.unformatted:
        raise StartRefused(
            f"there is no meta.properties in {', '.join(ensemble.unformatted)}, but the other directories "
            f"are formatted: mount the missing disk; or, if the directory is new, format it with "
            f"kwire format --ignore-formatted --cluster-id "
            f"{next(iter(ensemble.formatted.values())).cluster_id}"
        )
    _check_metadata_log_exists(disk, ensemble, metadata_dir)
    _check_no_duplicates(disk, ensemble)
    return False


def _check_metadata_log_dir(disk: Disk, ensemble: MetaPropertiesEnsemble, metadata_dir: str) -> None:
    for directory in _usable(ensemble):
        if directory != metadata_dir and disk.exists(join(directory, METADATA_LOG)):
            raise StartRefused(
                f"{join(directory, METADATA_LOG)} is a metadata log, but the configured directory is "
                f"{metadata_dir}: set metadata.log.dir={directory}, or make {directory} the first of "
                f"log.dirs again"
            )


def _check_metadata_log_exists(disk: Disk, ensemble: MetaPropertiesEnsemble, metadata_dir: str) -> None:
    if not disk.exists(join(metadata_dir, METADATA_LOG)):
        # Kafka would create an empty metadata log there, and then mark every partition as stray.
        trace = next((found for path in _usable(ensemble) for found in _partition_paths(disk, path)), None)
        if trace is not None:
            raise StartRefused(
                f"{metadata_dir} has no metadata log, but {trace} exists: set metadata.log.dir to the "
                f"directory that contains {METADATA_LOG}"
            )


def _check_no_duplicates(disk: Disk, ensemble: MetaPropertiesEnsemble) -> None:
    """Check that no partition has two directories or two future logs, as Kafka's LogManager.loadLog does.

    Otherwise it would be unclear which directory has the latest records. Directories with different topic ids
    are allowed. Raises StartRefused.
    """
    seen: dict[tuple[str, int, str], list[str]] = {}
    for directory in ensemble.formatted:
        try:
            names = disk.names(directory)
        except StorageError:
            continue
        for name in names:
            found = parse_dir_name(name)
            if found is not None and found.suffix in ("", FUTURE_SUFFIX):
                paths = seen.setdefault((found.topic, found.partition, found.suffix), [])
                paths.append(join(directory, name))
    for (topic, partition, suffix), paths in seen.items():
        topics: dict[Uuid, str] = {}
        for path in paths if len(paths) > 1 else []:
            topic_id = _topic_id(disk, path)
            other = path if topic_id is None else topics.setdefault(topic_id, path)
            if other != path:
                what = "directories" if not suffix else "future logs"
                raise StartRefused(
                    f"{other} and {path} are both {what} of partition {topic}-{partition}: find out which "
                    f"one was written to last, and move the other one out of log.dirs"
                )


def _topic_id(disk: Disk, path: str) -> Uuid | None:
    try:
        return read_topic_id(disk, path)
    except StorageError:
        # This error is reported when the log is loaded.
        return None


def _usable(ensemble: MetaPropertiesEnsemble) -> list[str]:
    return [*ensemble.formatted, *ensemble.unformatted]


def _partition_paths(disk: Disk, directory: str) -> Iterator[str]:
    """Yield the paths of partition directories. Skip a metadata log that has only what formatting writes."""
    try:
        names = disk.names(directory)
    except FileMissing:
        return
    for name in names:
        path = join(directory, name)
        if parse_dir_name(name) is None or not disk.is_directory(path):
            continue
        if name != METADATA_LOG or any(not inner.startswith(FIRST_SNAPSHOT) for inner in disk.names(path)):
            yield path


def assign_directory_ids(
    disk: Disk, ensemble: MetaPropertiesEnsemble, new_id: Callable[[], Uuid], logger: NodeLogger
) -> None:
    """Write a `directory.id` into each `meta.properties` that has none (KIP-858). Raises StorageError."""
    for directory, properties in ensemble.formatted.items():
        if properties.directory_id is None:
            given = properties._replace(directory_id=new_id())
            logger.info("Assigned a directory.id to %s", directory)
            write_meta_properties(disk, directory, given)
