"""Formatting of log directories before a broker starts, as `kafka-storage.sh format` does."""

from __future__ import annotations

import random
from collections.abc import Mapping

from kwire.broker.config import load
from kwire.broker.metadata.features import unserved_feature_levels
from kwire.broker.node.format import InitialMetadata, format_directories, needs_voters, standalone_voter
from kwire.broker.storage.disk import RealDisk
from kwire.host.system_os import os
from kwire.host.system_time import libc_time_ns


def format_directory(directory: str, cluster_id: str, settings: Mapping[str, str] | None = None) -> None:
    """Format a log directory for a broker with these configs. The directory must not be formatted yet.

    Raises ConfigError, FormatError or StorageError.
    """
    disk = RealDisk()
    config = load(None, {}, {**(settings or {}), "log.dirs": directory})
    rng, now_ms = random.Random(os.urandom(16)), libc_time_ns() // 1_000_000
    beginning = InitialMetadata(
        unserved_feature_levels(),
        voters=[standalone_voter(config, rng)] if needs_voters(config) else [],
    )
    try:
        format_directories(config, disk, rng, now_ms, cluster_id=cluster_id, initial_metadata=beginning)
    finally:
        disk.close()
