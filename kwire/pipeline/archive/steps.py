"""Which offsets a step of an archive is about: by Spark's checkpoint, and by what the archive has already."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kwire.pipeline.archive.manifest import ArchiveError, DataFile, Offsets
from kwire.pipeline.segments.damage import Damage

Ends = Mapping[str, Mapping[int, int]]
"""An offset for each partition of each topic."""
Known = Mapping[tuple[str, int], int]
"""Where the archive goes on."""


def to_spark_offsets(offsets: Ends) -> dict[str, dict[str, int]]:
    """As a source tells it."""
    return {topic: {str(number): offset for number, offset in of.items()} for topic, of in offsets.items()}


def from_spark_offsets(content: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Of what a source tells."""
    return {
        topic: {int(number): int(offset) for number, offset in of.items()} for topic, of in content.items()
    }


def already_archived(starts: Ends, ends: Ends, known: Known) -> dict[tuple[str, int], int]:
    """Partitions of which a step begins before the archive's end; and that.

    A topic that was not subscribed to for a while is new to Spark, and begins anew.
    """
    return {
        (topic, partition): known[topic, partition]
        for topic, partitions in ends.items()
        for partition in partitions
        if (topic, partition) in known and starts.get(topic, {}).get(partition, -1) < known[topic, partition]
    }


def unarchived(starts: Ends, ends: Ends, known: Known) -> tuple[Ends, Ends]:
    """From where to where a step reads what the archive has not."""
    archived = already_archived(starts, ends, known)
    begins = {topic: dict(partitions) for topic, partitions in starts.items()}
    for (topic, partition), end in archived.items():
        begins.setdefault(topic, {})[partition] = end
    return begins, {
        topic: {
            partition: end
            for partition, end in partitions.items()
            if archived.get((topic, partition), 0) <= end
        }
        for topic, partitions in ends.items()
    }


def step_ranges(
    starts: Ends, ends: Ends, known: Known, files: Sequence[DataFile], skipped: Sequence[Damage] = ()
) -> Offsets:
    """Which offsets a step is about."""
    archived = already_archived(starts, ends, known)
    first: dict[tuple[str, int], int] = {}
    seen = [(file.topic, file.partition, file.first_offset) for file in files]
    seen += [(damage.topic, damage.partition, damage.start_offset) for damage in skipped]
    for topic, partition, offset in seen:
        first[topic, partition] = min(first.get((topic, partition), offset), offset)
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, partitions in ends.items():
        for partition, end in partitions.items():
            if (topic, partition) in archived:
                start = archived[topic, partition]
                end = max(start, end)
            else:
                # What was not known before is read from its beginning.
                start = starts.get(topic, {}).get(partition, first.get((topic, partition), end))
            ranges.setdefault(topic, {})[partition] = (start, end)
    return ranges


def step_offsets(
    checkpoint: Path, batch_id: int
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Where a step begins, as far as Spark has noted that, and where it ends. ArchiveError."""
    ends = _offsets(checkpoint / "offsets" / str(batch_id))
    if batch_id:
        return _offsets(checkpoint / "offsets" / str(batch_id - 1)), ends
    # Where Spark's Kafka source has noted its start.
    noted_start = checkpoint / "sources" / "0" / "0"
    return (_offsets(noted_start) if noted_start.exists() else {}), ends


def _offsets(path: Path) -> dict[str, dict[int, int]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        content: dict[str, Any] = json.loads(lines[-1])
        return {
            topic: {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in content.items()
        }
    except (ValueError, AttributeError, IndexError) as error:
        raise ArchiveError(f"{path} holds no offsets as Spark writes them: {error}") from None


def check_no_gap(starts: Ends, known: Known) -> None:
    """ArchiveError where a step begins behind the archive's end: what is between would be lost silently.

    Retention is no reason for that: it moves where a log begins, and not where Spark goes on.
    """
    for topic, partitions in starts.items():
        for partition, start in partitions.items():
            end = known.get((topic, partition), start)
            if start > end:
                raise ArchiveError(
                    f"this step begins at offset {start} of {topic}-{partition}, and the archive ends at "
                    f"{end}: the checkpoint is another archive's, or the archive is an older copy"
                )


def check_complete(written: int | None, files: Sequence[DataFile], place: str) -> None:
    """ArchiveError where not all that was written is in the files that were found."""
    found = sum(file.records for file in files)
    if written is not None and written != found:
        raise ArchiveError(
            f"Spark has written {written} records below {place}, and the files that are there hold {found}: "
            f"do all of Spark's machines see that directory?"
        )


def check_within(ranges: Offsets, files: list[DataFile]) -> None:
    """ArchiveError where records were written that the step is not about: that must not be committed."""
    for file in files:
        start, end = ranges.get(file.topic, {}).get(file.partition, (0, 0))
        if not start <= file.first_offset <= file.last_offset < end:
            raise ArchiveError(
                f"{file.path} holds the offsets from {file.first_offset} to {file.last_offset}, and this "
                f"step is about those from {start} to {end - 1}"
            )
