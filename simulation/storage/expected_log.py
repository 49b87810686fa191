"""What the outside world was told of one log, and may rely on: the oracle that a history keeps beside it."""

from __future__ import annotations

from typing import NamedTuple

from kwire.testing.simulated.violation import Violation


class RecordContent(NamedTuple):
    """A record as a client would see it."""

    timestamp: int
    key: bytes | None
    value: bytes | None


class ExpectedLog:
    """Records by offset, and which of them must be there after what."""

    def __init__(self, *, is_compacted: bool) -> None:
        self.is_compacted = is_compacted
        self.records: dict[int, RecordContent] = {}
        """What the log holds, as far as was seen or acknowledged; compaction may have thinned it."""
        self.ever_appended: dict[int, set[RecordContent]] = {}
        """Whatever was handed to the log to be stored at an offset. Nothing else may be found there."""
        self.allowed_start = 0
        """Records before it may be gone: the greatest start offset that anybody asked for."""
        self.checkpointed_start = 0
        """The log starts here or later, even after a crash."""
        self.acknowledged_end = 0
        """A killed process has lost nothing before it."""
        self.durable_end = 0
        """A loss of power has lost nothing before it."""
        self.max_end = 0
        """A killed process has nothing from here on."""
        self.gaps: set[tuple[int, int]] = set()
        """Offsets that are missing, from one to another, which nobody had been promised."""
        self.high_watermark = 0
        self.checkpointed_high_watermark = 0

    def on_append(self, offset: int, record: RecordContent) -> None:
        """A record was given an offset; it is not acknowledged yet."""
        self.records[offset] = record
        self.ever_appended.setdefault(offset, set()).add(record)
        self.max_end = max(self.max_end, offset + 1)

    def on_ack(self, end: int) -> None:
        self.acknowledged_end = end

    def on_flush(self, end: int) -> None:
        self.durable_end = max(self.durable_end, end)

    def allow_start_at(self, offset: int) -> None:
        self.allowed_start = max(self.allowed_start, offset)

    def before_truncate(self, offset: int) -> None:
        """From here on nothing is promised of what lies beyond."""
        self.acknowledged_end = min(self.acknowledged_end, offset)
        self.durable_end = min(self.durable_end, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, offset)
        self.checkpointed_start = min(self.checkpointed_start, offset)

    def on_truncate(self, offset: int) -> None:
        """A killed process has it truncated, too."""
        self.records = {at: record for at, record in self.records.items() if at < offset}
        self.max_end = offset

    def on_recovery(self, found: dict[int, RecordContent], end: int, *, durable: bool) -> None:
        """After a crash: what was found is what the log is from here on."""
        self.records = dict(found)
        self.acknowledged_end = self.max_end = end
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, end)
        self.durable_end = end if durable else min(self.durable_end, end)

    def record_gaps(self, gaps: list[tuple[int, int]]) -> None:
        """After a loss of power: a segment that was not synced may have lost its end, and one that came after
        it nothing. Violation where the hole begins before the durable end."""
        for first, after in gaps:
            if (first, after) not in self.gaps and first < self.durable_end and first >= self.allowed_start:
                raise Violation(f"offsets {first} to {after - 1} are missing; {self.durable_end} was durable")
        self.gaps.update(gaps)

    def check(self, found: dict[int, RecordContent], start: int, end: int, required_end: int) -> None:
        """Everything before `promised_end` is there and equal; nothing is there that was never written."""
        if end < required_end:
            raise Violation(f"the log ends at {end}, although everything before {required_end} was promised")
        for offset, record in found.items():
            if record not in self.ever_appended.get(offset, ()):
                raise Violation(f"offset {offset} holds {record}, which nobody wrote there")
        last_of_key: dict[bytes | None, int] = {}
        first_of_key: dict[bytes | None, int] = {}
        required = {at: each for at, each in self.records.items() if at < required_end}
        for offset, record in [*required.items(), *found.items()]:
            last_of_key[record.key] = max(offset, last_of_key.get(record.key, -1))
        for offset, record in found.items():
            first_of_key[record.key] = min(offset, first_of_key.get(record.key, offset))
        for offset, record in required.items():
            if offset < max(start, self.allowed_start) or found.get(offset) == record:
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
