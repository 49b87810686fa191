"""A file in a restored directory that identifies its restore, so that the same job does not repeat it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kwire.pipeline.archive.manifest import Archive

RECEIPT: Final = ".kwire_restore.json"
"""Brokers, including Apache Kafka's, ignore unknown files."""


def make_receipt(archive: Archive, job: Mapping[str, Any]) -> bytes:
    """Describe a restore by the archive's commits and the job's configuration. Raises ArchiveError."""
    commits = hashlib.sha256()
    for commit in archive.commits():
        commits.update(commit.encode())
    content = {"archive": commits.hexdigest(), "job": job}
    return json.dumps(content, default=sorted, sort_keys=True).encode()


def read_receipt(directory: Path) -> bytes | None:
    """Return the receipt in a directory, or None."""
    try:
        return (directory / RECEIPT).read_bytes()
    except OSError:
        return None
