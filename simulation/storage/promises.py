"""What the outside world was told of one log, and may rely on: the oracle that a history keeps beside it."""

from __future__ import annotations

from typing import NamedTuple

from kwire.testing.simulated.violation import Violation


class Written(NamedTuple):
    """A record as a client would see it."""

    timestamp: int
    key: bytes | None
    value: bytes | None


class Promises:
    """Records by offset, and which of them must be there after what."""

    def __init__(self, *, is_compacted: bool) -> None:
        self.is_compacted = is_compacted
        self.records: dict[int, Written] = {}
        """What the log holds, as far as was seen or acknowledged; compaction may have thinned it."""
        self.ever: dict[int, set[Written]] = {}
        """Whatever was handed to the log to be stored at an offset. Nothing else may be found there."""
        self.start = 0
        """Records before it may be gone: the greatest start offset that anybody asked for."""
        self.checkpointed_start = 0
        """The log starts here or later, even after a crash."""
        self.acknowledged_end = 0
        """A killed process has lost nothing before it."""
        self.durable_end = 0
        """A loss of power has lost nothing before it."""
        self.most_end = 0
        """A killed process has nothing from here on."""
        self.holes: set[tuple[int, int]] = set()
        """Offsets that are missing, from one to another, which nobody had been promised."""
        self.high_watermark = 0
        self.checkpointed_high_watermark = 0

    def staged(self, offset: int, record: Written) -> None:
        """A record was given an offset; it is not acknowledged yet."""
        self.records[offset] = record
        self.ever.setdefault(offset, set()).add(record)
        self.most_end = max(self.most_end, offset + 1)

    def acknowledged(self, end: int) -> None:
        self.acknowledged_end = end

    def flushed(self, end: int) -> None:
        self.durable_end = max(self.durable_end, end)

    def may_start_at(self, offset: int) -> None:
        self.start = max(self.start, offset)

    def about_to_truncate(self, offset: int) -> None:
        """From here on nothing is promised of what lies beyond."""
        self.acknowledged_end = min(self.acknowledged_end, offset)
        self.durable_end = min(self.durable_end, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, offset)
        self.checkpointed_start = min(self.checkpointed_start, offset)

    def truncated(self, offset: int) -> None:
        """A killed process has it truncated, too."""
        self.records = {at: record for at, record in self.records.items() if at < offset}
        self.most_end = offset

    def settle(self, found: dict[int, Written], end: int, *, durable: bool) -> None:
        """After a crash: what was found is what the log is from here on."""
        self.records = dict(found)
        self.acknowledged_end = self.most_end = end
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, end)
        self.durable_end = end if durable else min(self.durable_end, end)

    def note_holes(self, holes: list[tuple[int, int]]) -> None:
        """After a loss of power: a segment that was not synced may have lost its end, and one that came after
        it nothing. Violation where the hole begins before the durable end."""
        for first, after in holes:
            if (first, after) not in self.holes and first < self.durable_end and first >= self.start:
                raise Violation(f"offsets {first} to {after - 1} are missing; {self.durable_end} was durable")
        self.holes.update(holes)

    def check(self, found: dict[int, Written], start: int, end: int, promised_end: int) -> None:
        """Everything before `promised_end` is there and equal; nothing is there that was never written."""
        if end < promised_end:
            raise Violation(f"the log ends at {end}, although everything before {promised_end} was promised")
        for offset, record in found.items():
            if record not in self.ever.get(offset, ()):
                raise Violation(f"offset {offset} holds {record}, which nobody wrote there")
        last_of_key: dict[bytes | None, int] = {}
        first_of_key: dict[bytes | None, int] = {}
        promised = {at: each for at, each in self.records.items() if at < promised_end}
        for offset, record in [*promised.items(), *found.items()]:
            last_of_key[record.key] = max(offset, last_of_key.get(record.key, -1))
        for offset, record in found.items():
            first_of_key[record.key] = min(offset, first_of_key.get(record.key, offset))
        for offset, record in promised.items():
            if offset < max(start, self.start) or found.get(offset) == record:
                continue
            if offset in found:
                raise Violation(f"offset {offset} holds {found[offset]}, and {record} was promised")
            if not self.is_compacted:
                raise Violation(f"offset {offset} is gone; it held {record}")
            if last_of_key.get(record.key, -1) > offset:
                continue
            if record.value is not None:
                raise Violation(f"offset {offset} is gone, with no later record of its key; it held {record}")
            if first_of_key.get(record.key, offset) < offset:
                raise Violation(
                    f"the tombstone at {offset} is gone, and {record.key!r} is back at "
                    f"{first_of_key[record.key]}"
                )
