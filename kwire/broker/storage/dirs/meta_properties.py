"""Whose a broker's data directories are, and whether it may start on them.

Each directory says in its `meta.properties` which node of which cluster it belongs to. A directory without it
is a disk that is not mounted, or one that nobody has formatted: to serve on an empty one in its place would
hide everything that the other holds. So a broker starts where all of its directories are formatted, where
they belong together, and where the metadata log lies in the directory that the configuration names; as Apache
Kafka does (KIP-631, KIP-858). One whose `meta.properties` cannot be read has failed, and is done without.

kwire alone also formats directories by itself on a first start: where no trace of a broker is in any of them.
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
"""What formatting leaves in the directory of the metadata log, before anything else."""
METADATA_LOG = f"{METADATA_TOPIC}-0"
FIRST_SNAPSHOT = "00000000000000000000-0000000000.checkpoint"
"""What formatting leaves in the metadata log's directory where the quorum is dynamic."""
RESERVED_IDS = 100
"""So many ids, from zero on, stand for no directory (KIP-858)."""


class StartRefused(StorageError):
    """A broker must not start on these directories. The text says why, and what to do."""


class MetaPropertiesEnsemble(NamedTuple):
    """What the directories say of themselves."""

    formatted: Mapping[str, MetaProperties]
    unformatted: Sequence[str]
    """Those without `meta.properties`, be they empty, missing or anything else."""
    failures: Mapping[str, StorageError]
    """Those of which it cannot be told."""


def load_meta_properties(
    disk: Disk, directories: Sequence[str], defaults: MetaProperties | None = None
) -> MetaPropertiesEnsemble:
    """What each directory says. Never raises but NoOwner, for a file that names nobody: unless it is told
    whose such a directory is `defaults`.
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
            failures[directory] = StorageError(f"{directory} is not a directory: name one in log.dirs")
        elif properties is None:
            unformatted.append(directory)
        else:
            formatted[directory] = properties
    return MetaPropertiesEnsemble(formatted, unformatted, failures)


def find_mismatch(ensemble: MetaPropertiesEnsemble, node_id: int, cluster_id: str | None) -> str | None:
    """What is wrong with the directories for this node of that cluster (None: the same one for all)."""
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
            return f"{directory} has the directory.id {uuid_to_text(directory_id)}, which stands for none"
        other = seen.setdefault(directory_id, directory)
        if other != directory:
            return (
                f"{other} and {directory} have the same directory.id, {uuid_to_text(directory_id)}: one is a "
                f"copy of the other, and must be taken out of log.dirs"
            )
    return None


def needs_format(disk: Disk, ensemble: MetaPropertiesEnsemble, *, metadata_dir: str, node_id: int) -> bool:
    """Whether the directories are to be formatted first. StartRefused where the broker must not start.

    `metadata_dir` is the one that holds the metadata log.
    """
    # The first start may have been cut short in the middle: home gets its meta.properties last.
    is_half_formatted = metadata_dir in ensemble.unformatted and disk.exists(
        join(metadata_dir, BOOTSTRAP_CHECKPOINT)
    )
    if (is_half_formatted or not ensemble.formatted) and not ensemble.failures:
        trace = next((found for path in _usable(ensemble) for found in _partition_paths(disk, path)), None)
        if trace is None:
            return True
        if not ensemble.formatted:
            raise StartRefused(
                f"there is no meta.properties in {', '.join(ensemble.unformatted)}, though {trace} is there: "
                f"put the file back, or have it written anew with kwire format and the cluster's id"
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
            f"there is no meta.properties in {', '.join(ensemble.unformatted)}, and the other directories "
            f"are formatted: mount what belongs there; or, if it is new, format it with "
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
                f"{join(directory, METADATA_LOG)} is a metadata log, and by the configuration that is in "
                f"{metadata_dir}: set metadata.log.dir={directory}, or let {directory} be the first of "
                f"log.dirs again"
            )


def _check_metadata_log_exists(disk: Disk, ensemble: MetaPropertiesEnsemble, metadata_dir: str) -> None:
    if not disk.exists(join(metadata_dir, METADATA_LOG)):
        # Kafka begins an empty log there, and sets every partition aside as stray.
        trace = next((found for path in _usable(ensemble) for found in _partition_paths(disk, path)), None)
        if trace is not None:
            raise StartRefused(
                f"{metadata_dir} holds no metadata log, though {trace} is there: set metadata.log.dir to the "
                f"directory with {METADATA_LOG}, as it was when that was written"
            )


def _check_no_duplicates(disk: Disk, ensemble: MetaPropertiesEnsemble) -> None:
    """One partition has one directory, and one copy on its way at most; as Kafka's LogManager.loadLog has it.

    Of two, either may hold what was written last. Those of another topic that had the name are not meant.
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
                what = "are directories" if not suffix else "are copies on their way to another directory"
                raise StartRefused(
                    f"{other} and {path} both {what} of partition {topic}-{partition}: find out which one "
                    f"was written to last, and move the other one out of log.dirs"
                )


def _topic_id(disk: Disk, path: str) -> Uuid | None:
    try:
        return read_topic_id(disk, path)
    except StorageError:
        # Whether the directory can be used at all, opening it will show.
        return None


def _usable(ensemble: MetaPropertiesEnsemble) -> list[str]:
    return [*ensemble.formatted, *ensemble.unformatted]


def _partition_paths(disk: Disk, directory: str) -> Iterator[str]:
    """The partitions in a directory; of the metadata log, more than formatting leaves. StorageError."""
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
    """Write a `directory.id` into each `meta.properties` without (KIP-858). StorageError."""
    for directory, properties in ensemble.formatted.items():
        if properties.directory_id is None:
            given = properties._replace(directory_id=new_id())
            logger.info("%s gets a directory.id, which it has none of yet", directory)
            write_meta_properties(disk, directory, given)
