"""Which topics an archive is made of: those of one cluster, and none that was made anew under its name.

Offsets of a topic that was deleted and created again begin anew. In the archive of the old one they would
take the place of offsets that are there, or seem to be there already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from kwire.pipeline.archive.manifest import Archive, ArchiveError
from kwire.pipeline.origin import Origin, of_log
from kwire.pipeline.segments.options import parse

OriginLookup = Callable[[Collection[str] | None], Mapping[str, Origin]]
"""Tells where topics come from now: those of the names, or without them all that the input has."""


class OriginChecker:
    """Where the topics of an archive came from, held against where they come from now."""

    def __init__(self, archive: Archive, lookup: OriginLookup) -> None:
        """ArchiveError where a topic is another one already."""
        self._directory = archive.directory
        self._lookup = lookup
        self._known = archive.origins()
        self.check(None)

    def check(self, topics: Collection[str] | None) -> dict[str, Origin]:
        """Where those topics, or all, come from. ArchiveError where one is not what it was.

        What was read before this, and after the last time, is then of these topics.
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
            f"{directory} holds topic {known.topic} of cluster {known.cluster}, and the input is cluster "
            f"{now.cluster}: choose another directory for that"
        )
    raise ArchiveError(
        f"topic {known.topic} has been deleted and created anew since it was archived into {directory}: "
        f"choose another directory for the new one"
    )


def file_origins(options: Mapping[str, str]) -> OriginLookup:
    """Of the data directories that are the input. SegmentsError."""

    def lookup(topics: Collection[str] | None) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for log in parse(options, streaming=True).current_partitions():
            if topics is None or log.topic in topics:
                origin = of_log(log.directory, log.topic)
                found[log.topic] = found.get(log.topic, origin).completed(origin)
        return found

    return lookup
