"""Preparing a broker's data directories, as Kafka's storage tool does: whose they are, and how the cluster
begins.

Each of `log.dirs` gets a `meta.properties`; the one of the metadata log gets `bootstrap.checkpoint` too, a
snapshot with the features that the cluster starts with (KIP-778). The files are written in that order turned
round: a directory with `meta.properties` is complete.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from broker.config import BrokerConfig
from broker.controller.topics import new_uuid
from broker.raft.bootstrap import FEATURES, FILE_NAME
from broker.storage.checkpoints import MetaProperties, read_meta_properties, write_meta_properties
from broker.storage.disk import Disk, StorageError, join
from kwire.batch import build
from kwire.codegen import encoder
from kwire.primitives import uuid_from_text, uuid_to_text
from kwire.registry import encode_stored
from kwire.schema import Message
from kwire.stored.metadata import FeatureLevelRecord
from kwire.stored.raft import SnapshotFooterRecord, SnapshotHeaderRecord

SNAPSHOT_HEADER_KEY: Final = b"\x00\x00\x00\x03"
SNAPSHOT_FOOTER_KEY: Final = b"\x00\x00\x00\x04"


class FormatError(Exception):
    """A directory cannot be formatted. The text says which, and what to do."""


def metadata_directory(config: BrokerConfig) -> str:
    """The log directory that holds the metadata log."""
    return config.metadata_log_dir or config.log_dirs[0]


def all_directories(config: BrokerConfig) -> list[str]:
    """log.dirs, and metadata.log.dir where it is none of them."""
    home = metadata_directory(config)
    return [*config.log_dirs, *([] if home in config.log_dirs else [home])]


def format_directories(
    config: BrokerConfig,
    disk: Disk,
    rng: random.Random,
    now_ms: int,
    *,
    cluster_id: str | None = None,
    ignore_formatted: bool = False,
) -> list[str]:
    """Format every directory that is not yet, and give a line of what was done for each.

    `cluster_id` is by default that of the formatted ones, or a random one. FormatError for a directory that
    is formatted already (unless `ignore_formatted`) or belongs elsewhere; StorageError when none can be
    used. One that fails alone is left out where `ignore_formatted`: the broker serves without it.
    """
    if cluster_id is not None:
        _check_cluster_id(cluster_id)
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
        if not ignore_formatted:
            raise FormatError(
                f"{directory} is formatted already; --ignore-formatted leaves such directories as they are"
            )
        formatted[directory] = properties
        cluster_id = _agreed_cluster_id(directory, properties, config.node_id, cluster_id)
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
        if not disk.is_directory(directory):
            disk.make_directory(directory)
        if directory == metadata_directory(config):
            disk.replace(join(directory, FILE_NAME), bootstrap_checkpoint(FEATURES, now_ms), sync=True)
        write_meta_properties(disk, directory, MetaProperties(cluster_id, config.node_id, new_uuid(rng)))
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


def bootstrap_checkpoint(features: Sequence[tuple[str, int]], now_ms: int) -> bytes:
    """A snapshot that finalizes these features: a header, their records, a footer (KIP-630)."""
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=0)
    out = build([(now_ms, SNAPSHOT_HEADER_KEY, _control(header), [])], leader_epoch=0, control=True)
    out += build(
        [
            (now_ms, None, encode_stored(FeatureLevelRecord(name=name, feature_level=level), 0), [])
            for name, level in features
        ],
        base_offset=1,
        leader_epoch=0,
    )
    out += build(
        [(now_ms, SNAPSHOT_FOOTER_KEY, _control(SnapshotFooterRecord(version=0)), [])],
        base_offset=1 + len(features),
        leader_epoch=0,
        control=True,
    )
    return bytes(out)


def _control(message: Message) -> bytes:
    out = bytearray()
    encoder(type(message), 0)(message, out, [])
    return bytes(out)
