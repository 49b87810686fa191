"""Formatting of log directories for a node and a new cluster, as Kafka's storage tool does.

Each of `log.dirs` gets a `meta.properties` and a `bootstrap.checkpoint`. `bootstrap.checkpoint` is a snapshot
with the features and SCRAM credentials with which the cluster starts (KIP-778, KIP-900). If the quorum is
dynamic, the directory of the metadata log also gets the first snapshot of that log, with the voters
(KIP-853). `meta.properties` is written last: a directory that has this file is complete.

These are the files of Apache Kafka 4.3, which every release since 3.3 can read. Apache Kafka 4.4 writes the
features and credentials to the first snapshot instead (KIP-1170), where older releases do not find them.
"""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kwire.broker.config import BrokerConfig
from kwire.broker.config.listeners import MAX_PORT
from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.features import RELEASES, UnknownLevel, effective_levels
from kwire.broker.metadata.image import METADATA_VERSION
from kwire.broker.metadata.records import SCRAM_LEVEL, StoredRecord
from kwire.broker.raft.endpoints import controller_endpoints
from kwire.broker.raft.snapshots import SnapshotWriter
from kwire.broker.storage.checkpoints import IncompleteMetaProperties, MetaProperties, write_meta_properties
from kwire.broker.storage.dirs.meta_properties import (
    BOOTSTRAP_CHECKPOINT,
    FIRST_SNAPSHOT,
    METADATA_LOG,
    MetaPropertiesEnsemble,
    StartRefused,
    find_mismatch,
    load_meta_properties,
)
from kwire.broker.storage.disk import Disk, StorageError, join
from kwire.wire.java_properties import parse_integer
from kwire.wire.java_strings import BLANKS
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid, uuid_from_text, uuid_to_text
from kwire.wire.records.metadata import FeatureLevelRecord, UserScramCredentialRecord
from kwire.wire.records.raft import Endpoint, KRaftVersionFeature, VotersRecord, VotersVoter

MAX_KRAFT_VERSION = 1


class FormatError(Exception):
    """Directories cannot be formatted. The message names the reason and the remedy."""


class AlreadyFormatted(FormatError):
    """A directory is already formatted for this node and this cluster."""


def metadata_directory(config: BrokerConfig) -> str:
    """Return the log directory that holds the metadata log."""
    return _plain(config.metadata_log_dir or config.log_dirs[0])


def all_directories(config: BrokerConfig) -> list[str]:
    """Return log.dirs, and also metadata.log.dir if it is not in log.dirs."""
    return list(dict.fromkeys([*map(_plain, config.log_dirs), metadata_directory(config)]))


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"


def separate_directory(config: BrokerConfig) -> str | None:
    """Return the directory of the metadata log if it is not in log.dirs, otherwise None."""
    home = metadata_directory(config)
    return None if home in map(_plain, config.log_dirs) else home


@contextmanager
def name_metadata_directory_in_errors(config: BrokerConfig) -> Iterator[None]:
    """Turn each StorageError into a StartRefused that names the config key of the metadata directory."""
    try:
        yield
    except StorageError as error:
        if config.metadata_log_dir is not None:
            named = f"metadata.log.dir is {config.metadata_log_dir}, which"
        elif len(config.log_dirs) == 1:
            named = f"log.dirs is {config.log_dirs[0]}, which"
        else:
            named = f"log.dirs is {','.join(config.log_dirs)}: the first, which holds the metadata log,"
        raise StartRefused(f"{named} cannot be used: {error}") from error


class InitialMetadata(NamedTuple):
    """The initial contents of a new cluster's metadata."""

    features: Mapping[str, int] = {}
    """The feature levels that differ from those of the release."""
    release_version: str | None = None
    """The Kafka release that determines the feature levels; None means the newest known release."""
    voters: Sequence[VotersVoter] = ()
    """The voters of a dynamic quorum (KIP-853). It is empty if controller.quorum.voters is set."""
    credentials: Sequence[UserScramCredentialRecord] = ()
    """The SCRAM credentials to create (KIP-900)."""


def standalone_voter(config: BrokerConfig, rng: random.Random) -> VotersVoter:
    """Return this node as the only voter. Raises FormatError if the node has no controller listener."""
    endpoints = controller_endpoints(config)
    if not endpoints:
        raise FormatError(
            "--standalone needs a controller listener: add one to listeners and controller.listener.names"
        )
    first = endpoints[0]
    return _voter(config.node_id, new_uuid(rng), first.name, first.host, first.port)


def parse_voters(text: str, config: BrokerConfig) -> list[VotersVoter]:
    """Parse voters of the form `id@host:port:directory,...`, and sort them by id.

    Raises FormatError if a voter is invalid or the configuration has no controller.listener.names.
    """
    names = config.controller_listener_names
    if not names:
        raise FormatError("--initial-controllers needs controller.listener.names")
    voters: dict[int, VotersVoter] = {}
    for entry in filter(None, text.strip(BLANKS).split(",")):
        match = _VOTER.fullmatch(entry.strip(BLANKS))
        try:
            if match is None:
                raise ValueError(entry)
            node_id, port = parse_integer(match["id"]), parse_integer(match["port"])
            if node_id < 0 or not 0 <= port <= MAX_PORT:
                raise ValueError(entry)
            host = match["host"] if match["address"] is None else match["address"]
            voter = _voter(node_id, uuid_from_text(match["directory"]), names[0], host, port)
        except ValueError:
            raise FormatError(
                f"--initial-controllers has {entry!r}: expected id@host:port:directory, like "
                f"1@localhost:9093:JEXY6aqzQY-32P5TStzaFg"
            ) from None
        if voters.setdefault(voter.voter_id, voter) is not voter:
            raise FormatError(f"--initial-controllers names node {voter.voter_id} more than once")
    if not voters:
        raise FormatError("--initial-controllers names no voter")
    return [voters[node_id] for node_id in sorted(voters)]


_VOTER = re.compile(
    r"(?P<id>[^@]+)@(?:\[(?P<address>[^\]]*)\]|(?P<host>(?!\[)[^:]*)):(?P<port>[^:]*):(?P<directory>.*)",
    re.DOTALL,
)
_ADDRESS_SPACES = (1 << 32, 1 << 24, 1 << 16, 1 << 8)
"""The exclusive upper bounds of the last number in an IPv4 address of one, two, three or four numbers."""


def _host(text: str) -> str:
    """Return a host in the form in which Kafka stores it, which is java.net.InetSocketAddress's form.

    IP addresses are written in full. An interface name as the zone of an address is not resolved.
    """
    if not text:
        return "localhost"
    if ":" not in text:
        return _ipv4(text) or text
    address, percent, zone = text.partition("%")
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return text
    if percent and not (zone.isascii() and zone.isdecimal()):
        return text
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    groups = (f"{int(group, 16):x}" for group in found.exploded.partition("%")[0].split(":"))
    return f"{':'.join(groups)}{percent}{zone}"


def _ipv4(text: str) -> str | None:
    """Return the IPv4 address for one to four decimal numbers, or None for any other text.

    The last number fills the remaining bytes.
    """
    numbers = text.split(".")
    if len(text) > 15 or len(numbers) > 4 or not all(part.isascii() and part.isdecimal() for part in numbers):
        return None
    *leading, last = map(int, numbers)
    if any(number > 255 for number in leading) or last >= _ADDRESS_SPACES[len(leading)]:
        return None
    value = last
    for position, number in enumerate(leading):
        value |= number << (24 - 8 * position)
    return str(ipaddress.IPv4Address(value))


def parse_feature(text: str) -> tuple[str, int]:
    """Parse a feature name and level of the form `FEATURE=LEVEL`. Raises FormatError."""
    name, equals, level = text.partition("=")
    try:
        value = parse_integer(level.strip(BLANKS), bits=16)
    except ValueError:
        value = None
    if not equals or value is None:
        raise FormatError(f"--feature {text}: expected FEATURE=LEVEL, like --feature group.version=1")
    return name.strip(BLANKS), value


def _voter(node_id: int, directory_id: Uuid, name: str, host: str, port: int) -> VotersVoter:
    return VotersVoter(
        voter_id=node_id,
        voter_directory_id=directory_id,
        endpoints=[Endpoint(name=name, host=_host(host), port=port)],
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=0, max_supported_version=MAX_KRAFT_VERSION
        ),
    )


def needs_voters(config: BrokerConfig) -> bool:
    """Return whether the node has controller listeners but its configuration names no voters."""
    return not config.value("controller.quorum.voters") and bool(controller_endpoints(config))


def check_voters(config: BrokerConfig, initial_metadata: InitialMetadata) -> None:
    """Raise FormatError if voters are given although controller.quorum.voters is set, as Kafka does."""
    if initial_metadata.voters and config.value("controller.quorum.voters"):
        raise FormatError(
            "controller.quorum.voters is set, and voters for a dynamic quorum are given too: remove "
            "controller.quorum.voters and set controller.quorum.bootstrap.servers, or give no voters"
        )


def format_directories(
    config: BrokerConfig,
    disk: Disk,
    rng: random.Random,
    now_ms: int,
    *,
    cluster_id: str | None = None,
    ignore_formatted: bool = False,
    initial_metadata: InitialMetadata | None = None,
) -> list[str]:
    """Format all log directories that are not formatted yet. Return one line of output per directory.

    `cluster_id` defaults to the id in formatted directories, or a random id if there are none.
    `initial_metadata` defaults to the feature levels of the newest release, with this node as the voter if
    the configuration names no voters.

    Raises FormatError if the initial metadata is invalid, a directory belongs to another node or cluster, or
    a directory is already formatted (unless `ignore_formatted`). Raises StorageError if no directory is
    readable or a directory cannot be written. As in Kafka, single unreadable directories are skipped.
    """
    if initial_metadata is None:
        initial_metadata = InitialMetadata(
            voters=[standalone_voter(config, rng)] if needs_voters(config) else []
        )
    check_voters(config, initial_metadata)
    try:
        levels = effective_levels(
            initial_metadata.features,
            initial_metadata.release_version,
            dynamic_quorum=not config.value("controller.quorum.voters"),
        )
    except UnknownLevel as error:
        raise FormatError(str(error)) from error
    if initial_metadata.credentials and dict(levels)[METADATA_VERSION] < SCRAM_LEVEL:
        raise FormatError(
            f"--add-scram needs {METADATA_VERSION} {SCRAM_LEVEL} ({RELEASES[SCRAM_LEVEL]}) or newer"
        )
    directories, home = all_directories(config), metadata_directory(config)
    owners = _owners(disk, directories, config.node_id, cluster_id)
    if owners.formatted and not ignore_formatted:
        raise AlreadyFormatted(
            f"{min(owners.formatted)} is formatted already; --ignore-formatted leaves such directories as "
            f"they are"
        )
    if len(owners.failures) == len(directories):
        raise next(iter(owners.failures.values()))
    lines = [f"{directory} cannot be used: {error}" for directory, error in owners.failures.items()]
    lines += [f"{directory} is formatted already" for directory in owners.formatted]
    if cluster_id is None:
        known = next(iter(owners.formatted.values()), None)
        cluster_id = uuid_to_text(new_uuid(rng)) if known is None else known.cluster_id
    else:
        # Kafka's tool writes UTF-8, which brokers of Kafka and kwire read as ISO-8859-1.
        cluster_id = cluster_id.encode("utf-8", "replace").decode("iso-8859-1")
    # Build all file contents before the first file is written.
    content = _bootstrap(levels, initial_metadata.credentials, now_ms)
    voters = _voters_snapshot(initial_metadata.voters, now_ms) if initial_metadata.voters else None
    for directory in owners.unformatted:
        if not disk.is_directory(directory):
            disk.make_directory(directory)
        if directory == home:
            _write_first_snapshot(disk, directory, voters)
        disk.replace(join(directory, BOOTSTRAP_CHECKPOINT), content, sync=True)
    # The metadata directory comes last. Until then, its bootstrap file shows that formatting is incomplete.
    for directory in sorted(owners.unformatted, key=lambda path: path == home):
        directory_id = new_uuid(rng)
        for voter in initial_metadata.voters:
            if directory == home and voter.voter_id == config.node_id:
                directory_id = voter.voter_directory_id
        write_meta_properties(disk, directory, MetaProperties(cluster_id, config.node_id, directory_id))
        lines.append(f"formatted {directory} for node {config.node_id} of cluster {cluster_id}")
    return lines


def _owners(
    disk: Disk, directories: Sequence[str], node_id: int, cluster_id: str | None
) -> MetaPropertiesEnsemble:
    # As in Kafka, a `meta.properties` without ids counts as formatted and conflicts with no ids.
    otherwise = None if cluster_id is None else MetaProperties(cluster_id, node_id, None, version=0)
    try:
        owners = load_meta_properties(disk, directories, otherwise)
    except IncompleteMetaProperties as error:
        raise FormatError(f"{error}: remove the file to format the directory again") from error
    wrong = find_mismatch(owners, node_id, cluster_id)
    if wrong is not None:
        raise FormatError(wrong)
    return owners


def _voters_snapshot(voters: Sequence[VotersVoter], now_ms: int) -> bytes:
    writer = SnapshotWriter(
        0, now_ms=now_ms, last_timestamp_ms=now_ms, voters=VotersRecord(version=0, voters=list(voters))
    )
    return writer.header() + writer.footer()


def _write_first_snapshot(disk: Disk, directory: str, content: bytes | None) -> None:
    log = join(directory, METADATA_LOG)
    path = join(log, FIRST_SNAPSHOT)
    if content is None:
        # Kafka's tool may have been interrupted after it wrote records there (KIP-1170), which would be used.
        if disk.exists(path):
            disk.remove(path)
        return
    disk.make_directory(log)
    disk.replace(path, content, sync=True)
    disk.make_read_only(path)
    disk.sync_directory(directory)


def _bootstrap(
    levels: Sequence[tuple[str, int]], credentials: Sequence[UserScramCredentialRecord], now_ms: int
) -> bytes:
    """Return the contents of `bootstrap.checkpoint`, which is the same in every directory."""
    writer = SnapshotWriter(0, now_ms=now_ms, last_timestamp_ms=0)
    records = [StoredRecord(FeatureLevelRecord(name=name, feature_level=level)) for name, level in levels]
    records += map(StoredRecord, credentials)
    return writer.header() + writer.batch(records) + writer.footer()
