"""Skipped corruption: which offsets could not be read.

With the option `onCorrupt` set to `skip`, a reader skips a batch with a wrong CRC or an invalid header, and
everything up to the next valid batch (see `scan.py`). The skipped offsets are recorded, so that they can be
told apart from gaps of compaction and transactions.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger("kwire.pipeline")


class Damage(NamedTuple):
    """Offsets of a partition that cannot be read. Some of them may never have existed."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    """Exclusive."""
    file: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: skipped offsets {self.start_offset} to {self.end_offset - 1}: "
            f"{self.reason}"
        )


class SkipDamage(NamedTuple):
    """The setting to skip corruption, and the directory in which to record skipped offsets, if any."""

    directory: str = ""

    def record(self, damage: Damage) -> None:
        """Record skipped offsets. A repeated record overwrites the same file."""
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
    """Read the recorded damage in a directory."""
    return sorted(Damage(**json.loads(path.read_text(encoding="utf-8"))) for path in directory.glob("*.json"))
