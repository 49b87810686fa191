"""A file that identifies the restore that created a data directory, so that the restore is not repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kwire.pipeline.archive.manifest import Archive

RECEIPT: Final = ".kwire_restore.json"
"""The file's name. Brokers, including Apache Kafka's, ignore unknown files in a data directory."""


def make_receipt(archive: Archive, job: Mapping[str, Any]) -> bytes:
    """Return JSON that identifies a restore by the archive's commits and the job's configuration.

    Raises ArchiveError.
    """
    commits = hashlib.sha256()
    for commit in archive.commits():
        commits.update(commit.encode())
    content = {"archive": commits.hexdigest(), "job": job}
    return json.dumps(content, default=sorted, sort_keys=True).encode()


def read_receipt(directory: Path) -> bytes | None:
    """Return the content of a directory's receipt, or None if the receipt cannot be read."""
    try:
        return (directory / RECEIPT).read_bytes()
    except OSError:
        return None
