"""Skipped corruption: the offsets that could not be read.

If the option `onCorrupt` is `skip`, a reader skips a batch with a wrong CRC or an invalid header, and
everything up to the next valid batch (see `scan.py`). It records the skipped offsets, to distinguish them
from gaps that compaction and transactions leave.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger("kwire.pipeline")


class Damage(NamedTuple):
    """A range of a partition's offsets that cannot be read. Some of the offsets may never have existed."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    """The offset after the range."""
    file: str
    reason: str

    def __str__(self) -> str:
        return (
            f"Skipped offsets {self.start_offset} to {self.end_offset - 1} of {self.topic}-{self.partition}: "
            f"{self.reason}"
        )


class SkipDamage(NamedTuple):
    """The setting to skip corruption, with an optional directory in which to record the skipped offsets."""

    directory: str = ""

    def record(self, damage: Damage) -> None:
        """Log skipped offsets and write them to a file. A repeated call overwrites the same file."""
        logger.warning("%s", damage)
        if not self.directory:
            return
        directory = Path(self.directory)
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{damage.topic}-{damage.partition}-{damage.start_offset:020d}-{damage.end_offset:020d}.json"
        temporary = directory / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(damage._asdict()), encoding="utf-8")
        temporary.replace(directory / name)


def read_damage(directory: Path) -> list[Damage]:
    """Read the skipped offsets that `record` has written to a directory, in offset order by partition."""
    return sorted(Damage(**json.loads(path.read_text(encoding="utf-8"))) for path in directory.glob("*.json"))
