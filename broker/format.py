"""Preparing a broker's data directories, as Kafka's storage tool does: whose they are, and how the cluster
begins.

Each of `log.dirs` gets a `meta.properties`; the one of the metadata log gets `bootstrap.checkpoint` too, a
snapshot with the features that the cluster starts with (KIP-778), and, where the quorum is dynamic, a first
snapshot of the metadata log with its voters (KIP-853). The files are written in that order turned round: a
directory with `meta.properties` is complete.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.config import BrokerConfig
from broker.controller.commands import StoredRecord
from broker.controller.feature_levels import UnknownLevel, effective_levels
from broker.controller.topics import new_uuid
from broker.raft.bootstrap import FILE_NAME
from broker.raft.endpoints import controller_endpoints
from broker.raft.snapshots import Snapshot, SnapshotWriter
from broker.storage.checkpoints import MetaProperties, read_meta_properties, write_meta_properties
from broker.storage.disk import Disk, StorageError, join
from broker.storage.log_dir import METADATA_TOPIC
from kwire.primitives import Uuid, uuid_from_text, uuid_to_text
from kwire.stored.metadata import FeatureLevelRecord
from kwire.stored.raft import Endpoint, KRaftVersionFeature, VotersRecord, VotersVoter

MAX_KRAFT_VERSION = 1


class FormatError(Exception):
    """A directory cannot be formatted. The text says which, and what to do."""


def metadata_directory(config: BrokerConfig) -> str:
    """The log directory that holds the metadata log."""
    return config.metadata_log_dir or config.log_dirs[0]


def all_directories(config: BrokerConfig) -> list[str]:
    """log.dirs, and metadata.log.dir where it is none of them."""
    home = metadata_directory(config)
    return [*config.log_dirs, *([] if home in config.log_dirs else [home])]


class Beginning(NamedTuple):
    """How a new cluster is to begin."""

    features: Mapping[str, int] = {}
    """Levels other than those of the release."""
    release_version: str | None = None
    """The release of Kafka whose features to begin with; by default the newest known."""
    voters: Sequence[VotersVoter] = ()
    """The voters of a dynamic quorum (KIP-853); none where controller.quorum.voters names them."""


def standalone_voter(config: BrokerConfig, rng: random.Random) -> VotersVoter:
    """This node as the only voter. FormatError: it has no listener for a controller."""
    endpoints = controller_endpoints(config)
    if not endpoints:
        raise FormatError(
            "--standalone needs a listener for the quorum: name one in listeners and "
            "controller.listener.names"
        )
    first = endpoints[0]
    return _voter(config.node_id, new_uuid(rng), first.name, first.host or "localhost", first.port)


def parse_voters(text: str, config: BrokerConfig) -> list[VotersVoter]:
    """The voters of `id@host:port:directory,...`. FormatError."""
    names = config.controller_listener_names
    if not names:
        raise FormatError("--initial-controllers needs controller.listener.names")
    voters = []
    for entry in text.split(","):
        node_id, _, rest = entry.strip().partition("@")
        host, _, place = rest.rpartition(":")[0].rpartition(":")
        directory = rest.rpartition(":")[2]
        try:
            voters.append(
                _voter(int(node_id), uuid_from_text(directory), names[0], host.strip("[]"), int(place))
            )
        except ValueError:
            raise FormatError(
                f"--initial-controllers has {entry!r}: expected id@host:port:directory, like "
                f"1@localhost:9093:JEXY6aqzQY-32P5TStzaFg"
            ) from None
    return voters


def _voter(node_id: int, directory_id: Uuid, name: str, host: str, port: int) -> VotersVoter:
    return VotersVoter(
        voter_id=node_id,
        voter_directory_id=directory_id,
        endpoints=[Endpoint(name=name, host=host, port=port)],
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=0, max_supported_version=MAX_KRAFT_VERSION
        ),
    )


def needs_voters(config: BrokerConfig) -> bool:
    """Whether nothing in the configuration says who votes, though there is a quorum that others can reach."""
    return not config.value("controller.quorum.voters") and bool(controller_endpoints(config))


def check_voters(config: BrokerConfig, beginning: Beginning) -> None:
    """FormatError: the voters are named in two places, as Kafka refuses it."""
    if beginning.voters and config.value("controller.quorum.voters"):
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
    beginning: Beginning | None = None,
) -> list[str]:
    """Format every directory that is not yet, and give a line of what was done for each.

    `cluster_id` is by default that of the formatted ones, or a random one; `beginning` by default that of the
    newest release, with this node as the only voter where nothing else says who votes. FormatError for what
    cannot be begun with, and for a directory that is formatted already (unless `ignore_formatted`) or belongs
    elsewhere; StorageError when none can be used. One that fails alone is left out where `ignore_formatted`:
    the broker serves without it.
    """
    if cluster_id is not None:
        _check_cluster_id(cluster_id)
    if beginning is None:
        beginning = Beginning(voters=[standalone_voter(config, rng)] if needs_voters(config) else [])
    check_voters(config, beginning)
    try:
        levels = effective_levels(
            beginning.features, beginning.release_version, dynamic_quorum=bool(beginning.voters)
        )
    except UnknownLevel as error:
        raise FormatError(str(error)) from error
    directories = all_directories(config)
    formatted: dict[str, MetaProperties] = {}
    failures: dict[str, StorageError] = {}
    for directory in directories:
        try:
            properties = read_meta_properties(disk, directory) if disk.is_directory(directory) else None
        except StorageError as error:
            failures[directory] = error
            continue
        if properties is None:
            continue
        cluster_id = _agreed_cluster_id(directory, properties, config.node_id, cluster_id)
        if not ignore_formatted:
            raise FormatError(
                f"{directory} is formatted already; --ignore-formatted leaves such directories as they are"
            )
        formatted[directory] = properties
    if failures and (not ignore_formatted or len(failures) == len(directories)):
        raise next(iter(failures.values()))
    if cluster_id is None:
        cluster_id = uuid_to_text(new_uuid(rng))
    lines: list[str] = []
    for directory in directories:
        if directory in failures:
            lines.append(f"{directory} cannot be used: {failures[directory]}")
            continue
        if directory in formatted:
            lines.append(f"{directory} is formatted already")
            continue
        directory_id = new_uuid(rng)
        is_home = directory == metadata_directory(config)
        try:
            if not disk.is_directory(directory):
                disk.make_directory(directory)
            if is_home:
                for voter in beginning.voters:
                    if voter.voter_id == config.node_id:
                        directory_id = voter.voter_directory_id
                _write_beginning(disk, directory, levels, beginning.voters, now_ms)
            write_meta_properties(disk, directory, MetaProperties(cluster_id, config.node_id, directory_id))
        except StorageError as error:
            if is_home or not ignore_formatted:
                raise
            lines.append(f"{directory} cannot be used: {error}")
            continue
        lines.append(f"formatted {directory} for node {config.node_id} of cluster {cluster_id}")
    return lines


def _agreed_cluster_id(
    directory: str, properties: MetaProperties, node_id: int, cluster_id: str | None
) -> str:
    if properties.node_id != node_id:
        raise FormatError(
            f"{directory} belongs to node {properties.node_id}, and node.id is {node_id}: "
            f"set node.id={properties.node_id}, or use another directory"
        )
    if cluster_id is not None and properties.cluster_id != cluster_id:
        raise FormatError(
            f"{directory} belongs to cluster {properties.cluster_id}, not to {cluster_id}: "
            f"use another directory, or that cluster's id"
        )
    return properties.cluster_id


def _check_cluster_id(cluster_id: str) -> None:
    try:
        uuid_from_text(cluster_id)
    except ValueError:
        raise FormatError(
            f"{cluster_id!r} is no cluster id: that is 16 bytes in base64 for URLs, without padding"
        ) from None


def _write_beginning(
    disk: Disk, directory: str, levels: Sequence[tuple[str, int]], voters: Sequence[VotersVoter], now_ms: int
) -> None:
    if voters:
        writer = SnapshotWriter(
            0,
            now_ms=now_ms,
            last_timestamp_ms=now_ms,
            voters=VotersRecord(version=0, voters=list(voters)),
        )
        log = join(directory, f"{METADATA_TOPIC}-0")
        disk.make_directory(log)
        disk.replace(join(log, Snapshot(0, 0).name), writer.header() + writer.footer(), sync=True)
        disk.sync_directory(directory)
    writer = SnapshotWriter(0, now_ms=now_ms, last_timestamp_ms=0)
    records = [StoredRecord(FeatureLevelRecord(name=name, feature_level=level)) for name, level in levels]
    content = writer.header() + writer.batch(records) + writer.footer()
    disk.replace(join(directory, FILE_NAME), content, sync=True)
