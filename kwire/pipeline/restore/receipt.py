"""What a directory tells of the restore that made it, so that the same job, run again, has nothing to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kwire.pipeline.archive.manifest import Archive

RECEIPT: Final = ".kwire_restore.json"
"""Brokers, Apache Kafka too, let files be that they do not know."""


def make_receipt(archive: Archive, job: Mapping[str, Any]) -> bytes:
    """What was restored: the archive, as its commits tell it, and what the job was told. ArchiveError."""
    commits = hashlib.sha256()
    for commit in archive.commits():
        commits.update(commit.encode())
    content = {"archive": commits.hexdigest(), "job": job}
    return json.dumps(content, default=sorted, sort_keys=True).encode()


def read_receipt(directory: Path) -> bytes | None:
    """What a directory tells, whatever a broker has done to its logs since; None where it tells nothing."""
    try:
        return (directory / RECEIPT).read_bytes()
    except OSError:
        return None
