"""What an archive remembers of topics that were given its offsets: the files in `_restores`.

    <archive>/_restores/<cluster>/<topic id>/<partition>.json
    {"format": 1, "topic": "flights", "end": 336776}

Where offsets are kept, nothing in the target tells that: its records look like anybody's. So the archive
keeps it, for each partition of a topic of a cluster, before the first record goes out; and how far the target
may have come at most. Ids and not names tell topics apart, since one may be made anew.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Final

from kwire.pipeline.archive.manifest import ArchiveError, sync_directory
from kwire.pipeline.origin import Origin

RESTORES: Final = "_restores"
FORMAT: Final = 1


class PreservedOffsets:
    """Which partitions were given the offsets of an archive."""

    def __init__(self, archive: Path) -> None:
        self._directory = archive / RESTORES

    def _path(self, target: Origin, partition: int) -> Path:
        return self._directory / target.cluster / target.topic_id / f"{partition}.json"

    def end(self, target: Origin, partition: int) -> int | None:
        """Where the partition ends at most by what was restored into it; None where that kept no offsets.

        ArchiveError where what is there cannot be read.
        """
        path = self._path(target, partition)
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']}")
            return int(content["end"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{path} does not tell what was restored: {error!r}") from None

    def record(self, target: Origin, partition: int, end: int) -> None:
        """Remember that the partition is given the archive's offsets, up to that one. OSError."""
        path = self._path(target, partition)
        self._create_directory(path.parent)
        content = {"format": FORMAT, "topic": target.topic, "end": end}
        temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)

    def _create_directory(self, directory: Path) -> None:
        if not directory.exists():
            self._create_directory(directory.parent)
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)
