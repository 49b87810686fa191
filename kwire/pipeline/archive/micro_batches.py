"""Offset ranges of an archive's micro-batches, from Spark's checkpoint and the manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kwire.pipeline.archive.manifest import ArchiveError, DataFile, Offsets
from kwire.pipeline.segments.damage import Damage
from kwire.wire.plural import plural

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""Start or end offsets by topic and partition."""
ArchiveEnds = Mapping[tuple[str, int], int]
"""The end offsets of the archive by topic and partition."""


def to_spark_offsets(offsets: PartitionOffsets) -> dict[str, dict[str, int]]:
    """Convert offsets to the form that Spark's sources use, in which partition numbers are text."""
    return {topic: {str(number): offset for number, offset in of.items()} for topic, of in offsets.items()}


def from_spark_offsets(content: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Convert offsets from the form that Spark's sources use, in which partition numbers are text."""
    return {
        topic: {int(number): int(offset) for number, offset in of.items()} for topic, of in content.items()
    }


def already_archived(
    starts: PartitionOffsets, ends: PartitionOffsets, known: ArchiveEnds
) -> dict[tuple[str, int], int]:
    """Return the partitions from which a micro-batch reads archived offsets again.

    The values are the archive's end offsets. A micro-batch reads offsets again after a topic was not
    subscribed for a while: Spark treats the topic as new and reads it from the beginning.
    """
    return {
        (topic, partition): known[topic, partition]
        for topic, partitions in ends.items()
        for partition in partitions
        if (topic, partition) in known and starts.get(topic, {}).get(partition, -1) < known[topic, partition]
    }


def unarchived(
    starts: PartitionOffsets, ends: PartitionOffsets, known: ArchiveEnds
) -> tuple[PartitionOffsets, PartitionOffsets]:
    """Return a micro-batch's start and end offsets, reduced to offsets that the archive does not have yet."""
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


def micro_batch_ranges(
    starts: PartitionOffsets,
    ends: PartitionOffsets,
    known: ArchiveEnds,
    files: Sequence[DataFile],
    skipped: Sequence[Damage] = (),
) -> Offsets:
    """Return the offset ranges that a micro-batch adds to the archive.

    The range of a new partition begins at its first offset in `files` or `skipped`.
    """
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
                # A new partition is read from its beginning.
                start = starts.get(topic, {}).get(partition, first.get((topic, partition), end))
            ranges.setdefault(topic, {})[partition] = (start, end)
    return ranges


def micro_batch_offsets(
    checkpoint: Path, batch_id: int
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Return the start and end offsets of a micro-batch from Spark's checkpoint.

    The first micro-batch has start offsets only with Spark's Kafka source. Raises ArchiveError if a file is
    malformed.
    """
    ends = _offsets(checkpoint / "offsets" / str(batch_id))
    if batch_id:
        return _offsets(checkpoint / "offsets" / str(batch_id - 1)), ends
    # Spark's Kafka source records the starting offsets of the stream in this file.
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
        raise ArchiveError(f"{path} does not contain offsets in Spark's format: {error}") from None


def check_no_gap(starts: PartitionOffsets, known: ArchiveEnds) -> None:
    """Raise ArchiveError if a micro-batch begins after the archive's end offset and would leave a gap.

    Retention never causes such a gap. It moves the log start offset, but Spark still continues at the offset
    in its checkpoint.
    """
    for topic, partitions in starts.items():
        for partition, start in partitions.items():
            end = known.get((topic, partition), start)
            if start > end:
                raise ArchiveError(
                    f"this micro-batch begins at offset {start} of {topic}-{partition} but the archive ends "
                    f"at {end}: the checkpoint belongs to another archive, or the archive is an older copy; "
                    f"choose another checkpoint and a new directory"
                )


def check_complete(written: int | None, files: Sequence[DataFile], staging_dir: str) -> None:
    """Raise ArchiveError if the staged files do not contain all records that Spark has written.

    `written` is the number of records that Spark reports; None skips the check.
    """
    found = sum(file.records for file in files)
    if written is not None and written != found:
        raise ArchiveError(
            f"Spark has written {plural(written, 'record')} to {staging_dir}, but the files there contain "
            f"{found}: is the directory on a file system that all of Spark's machines share?"
        )


def check_within(ranges: Offsets, files: list[DataFile]) -> None:
    """Raise ArchiveError if a file has records outside of the micro-batch's ranges."""
    for file in files:
        start, end = ranges.get(file.topic, {}).get(file.partition, (0, 0))
        if not start <= file.first_offset <= file.last_offset < end:
            raise ArchiveError(
                f"{file.path} contains offsets {file.first_offset} to {file.last_offset}, but this "
                f"micro-batch covers {start} to {end - 1}"
            )
