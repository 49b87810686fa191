"""Which part of a topic a restore with a map delivers, as the map's entries tell it.

A map says by offsets of the source how far a job has come. That is worth nothing to another part of an
archive, nor to the archive of another topic: what lies before that offset would never be sent.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from kwire.pipeline.archive.reading import RecordFilter
from kwire.pipeline.offset_map import DeliveryError
from kwire.pipeline.origin import UNKNOWN, Origin


class Selection(NamedTuple):
    """The records of a topic from an offset on and between two times, and where the topic came from.

    Where it ends does not count: a job may be told to go on.
    """

    start_offset: int
    start_ms: int
    end_ms: int
    origin: Origin

    @classmethod
    def of(cls, wanted: RecordFilter, origin: Origin) -> Selection:
        """What is wanted of a topic."""
        return cls(wanted.start_offset, wanted.start_ms, wanted.end_ms, origin)

    @classmethod
    def decode(cls, text: str) -> Selection:
        """Of what an entry tells. One that tells nothing is about everything, from nobody knows where."""
        try:
            start_offset, start_ms, end_ms = json.loads(text)["part"]
            return cls(start_offset, start_ms, end_ms, Origin.of(json.loads(text)["origin"]))
        except (ValueError, KeyError, TypeError):
            return cls.of(RecordFilter(), Origin.of(text or f"{UNKNOWN}/{UNKNOWN}/{UNKNOWN}"))

    def encode(self) -> str:
        """As an entry tells it."""
        return json.dumps({"part": self[:3], "origin": str(self.origin)})

    def check_continues(self, target: str, job: str, recorded: str) -> None:
        """DeliveryError where what a job has delivered to a target is not the beginning of this."""
        before = Selection.decode(recorded)
        if not before.origin.is_same(self.origin):
            what = f"topic {before.origin.topic} of cluster {before.origin.cluster}"
            if before.origin[:2] == self.origin[:2]:
                what = f"a topic {before.origin.topic} that has been deleted and created anew since"
        elif before[1:3] != self[1:3] or before.start_offset > self.start_offset:
            what = "another range of offsets or times"
        else:
            return
        raise DeliveryError(
            f"{target} got {what} from the job {job}, and would not get what of this comes before the end of "
            f"that: choose another restore.job"
        )
