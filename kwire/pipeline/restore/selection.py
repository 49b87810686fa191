"""The part of a topic that a restore with an offset map delivers, as recorded in the map's entries.

A map records the progress of a job as a source offset. If the job now selects another part of the archive, or
another topic, it must not continue at that offset, because it would never send the records before the offset.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.archive.reading import RecordFilter
from kwire.pipeline.offset_map import DeliveryError
from kwire.pipeline.origin import UNKNOWN, Origin, internal_topics


def check_not_internal(topics: Collection[str], suffix: str) -> None:
    """Raise ArchiveError if one of the topics to restore, or its target, is internal."""
    internal = internal_topics(topics)
    if internal:
        others = ",".join(sorted(set(topics).difference(internal)))
        raise ArchiveError(
            f"{', '.join(internal)} cannot be restored, because the records describe the state of another "
            f'cluster: set restore.topics to the other topics, "{others}"'
        )
    targets = internal_topics(topic + suffix for topic in topics)
    if targets:
        raise ArchiveError(f"{targets[0]} is an internal topic of the target: choose another suffix")


class Selection(NamedTuple):
    """A selection of a topic's records by start offset and timestamps, with the topic's origin.

    It does not have an end offset, because a job may continue to a later end offset.
    """

    start_offset: int
    start_ms: int
    end_ms: int
    origin: Origin

    @classmethod
    def of(cls, wanted: RecordFilter, origin: Origin) -> Selection:
        """Create the selection of a filter, for the topic with this origin."""
        return cls(wanted.start_offset, wanted.start_ms, wanted.end_ms, origin)

    @classmethod
    def decode(cls, text: str) -> Selection:
        """Decode the origin in a map entry. If the text is only an Origin, the selection has all records.

        An empty text selects all records of an unknown topic.
        """
        try:
            start_offset, start_ms, end_ms = json.loads(text)["part"]
            return cls(start_offset, start_ms, end_ms, Origin.of(json.loads(text)["origin"]))
        except (ValueError, KeyError, TypeError):
            return cls.of(RecordFilter(), Origin.of(text or f"{UNKNOWN}/{UNKNOWN}/{UNKNOWN}"))

    def encode(self) -> str:
        return json.dumps({"part": self[:3], "origin": str(self.origin)})

    def check_continues(self, target: str, job: str, recorded: str) -> None:
        """Raise DeliveryError if a job cannot continue with this selection after the selection `recorded`.

        `recorded` is the encoded selection in the offset map. `target` and `job` are names for the message.
        """
        before = Selection.decode(recorded)
        if not before.origin.is_same(self.origin):
            what = f"records of topic {before.origin.topic} of cluster {before.origin.cluster}"
            if before.origin[:2] == self.origin[:2]:
                what = f"records of a topic {before.origin.topic} that was deleted and recreated since"
        elif before[1:3] != self[1:3] or before.start_offset > self.start_offset:
            what = "another range of offsets or times"
        else:
            return
        raise DeliveryError(
            f"the job {job} has restored {what} to {target}, so the job would skip other records: "
            f"choose another restore.job"
        )
