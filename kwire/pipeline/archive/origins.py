"""A check that all records of a topic in an archive come from the same topic of the same cluster.

The offsets of a recreated topic begin at 0 again. In the archive of the old topic, the new records would have
duplicate offsets, or the job would skip them as already archived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from kwire.pipeline.archive.manifest import Archive, ArchiveError
from kwire.pipeline.origin import Origin, of_log
from kwire.pipeline.segments.options import parse

OriginLookup = Callable[[Collection[str] | None], Mapping[str, Origin]]
"""A function that looks up the current origins of topics; None selects all topics of the input."""


class OriginChecker:
    """A check of the recorded origins of an archive's topics against their current origins."""

    def __init__(self, archive: Archive, lookup: OriginLookup) -> None:
        """Check all topics. Raises ArchiveError if a topic was recreated or belongs to another cluster."""
        self._directory = archive.directory
        self._lookup = lookup
        self._known = archive.origins()
        self.check(None)

    def check(self, topics: Collection[str] | None) -> dict[str, Origin]:
        """Return the current origins of topics; None selects all topics of the input.

        If no origin has changed, all records that were read since the previous check come from these origins.
        Raises ArchiveError if an origin has changed.
        """
        found = dict(self._lookup(topics))
        for topic, origin in found.items():
            known = self._known.get(topic, origin)
            _check_same(self._directory, known, origin)
            self._known[topic] = found[topic] = known.completed(origin)
        return found


def _check_same(directory: Path, known: Origin, now: Origin) -> None:
    if known.is_same(now):
        return
    if not known.is_same(now._replace(topic_id=known.topic_id)):
        raise ArchiveError(
            f"{directory} contains topic {known.topic} of cluster {known.cluster}, but the input is cluster "
            f"{now.cluster}: choose another directory"
        )
    raise ArchiveError(
        f"topic {known.topic} was deleted and recreated after it was archived into {directory}: "
        f"choose another directory for the new topic"
    )


def file_origins(options: Mapping[str, str]) -> OriginLookup:
    """Return a lookup that reads cluster and topic ids from the input's data directories.

    `options` are those of the segment source. The lookup raises SegmentsError.
    """

    def lookup(topics: Collection[str] | None) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for log in parse(options, streaming=True).current_partitions():
            if topics is None or log.topic in topics:
                origin = of_log(log.directory, log.topic)
                found[log.topic] = found.get(log.topic, origin).completed(origin)
        return found

    return lookup
