"""Damage that is got past: which offsets cannot be read is written down.

With the option `onCorrupt` at `skip`, a batch whose CRC is wrong or whose header makes no sense is left out,
with what follows up to the next batch that checks out (see `scan.py`). Which offsets that are is written
down, so that nobody takes what is missing for what never was.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger("kwire.pipeline")


class Damage(NamedTuple):
    """Offsets of a partition that cannot be read any more, as far as they were ever there."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    """Behind the last."""
    file: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: offsets from {self.start_offset} to {self.end_offset - 1} are "
            f"left out, {self.reason}"
        )


class SkipDamage(NamedTuple):
    """That damage is to be got past, and where that is written down: in files below a directory, if any."""

    directory: str = ""

    def record(self, damage: Damage) -> None:
        """Write it down. Whoever finds the same again writes the same file."""
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
    """What was written down there."""
    return sorted(Damage(**json.loads(path.read_text(encoding="utf-8"))) for path in directory.glob("*.json"))
