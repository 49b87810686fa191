"""The partitions that were restored with the archive's offsets, as listed by the files in `_restores`.

    <archive>/_restores/<cluster>/<topic id>/<partition>.json
    {"format": 1, "topic": "flights", "end": 336776}

A restored record does not show whether its offset was preserved. So the job writes a file for each target
partition before it sends the first record. The file has the end offset of the restore. Its path has the
cluster id and the topic id, because a topic's name can be reused.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Final

from kwire.host.platform.files import sync_file
from kwire.pipeline.archive.manifest import ArchiveError, sync_directory
from kwire.pipeline.origin import Origin

RESTORES: Final = "_restores"
FORMAT: Final = 1


class PreservedOffsets:
    """The partitions that were restored with the offsets of an archive."""

    def __init__(self, archive: Path) -> None:
        self._directory = archive / RESTORES

    def _path(self, target: Origin, partition: int) -> Path:
        return self._directory / target.cluster / target.topic_id / f"{partition}.json"

    def end(self, target: Origin, partition: int) -> int | None:
        """Return the end offset that was recorded for a target partition, or None if there is no file.

        Raises ArchiveError if the file is malformed.
        """
        path = self._path(target, partition)
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"unknown format {content['format']}")
            return int(content["end"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{path} does not describe a restore: {error!r}") from None

    def record(self, target: Origin, partition: int, end: int) -> None:
        """Record that a partition is restored with the archive's offsets, up to `end`. Raises OSError."""
        path = self._path(target, partition)
        self._create_directory(path.parent)
        content = {"format": FORMAT, "topic": target.topic, "end": end}
        temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
            file.flush()
            sync_file(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)

    def _create_directory(self, directory: Path) -> None:
        if not directory.exists():
            self._create_directory(directory.parent)
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)
