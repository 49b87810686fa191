"""The oracle of a log: its expected content, which the simulation updates with every operation."""

from __future__ import annotations

from typing import NamedTuple

from kwire.testing.simulated.violation import Violation


class RecordContent(NamedTuple):
    """A record as a client sees it."""

    timestamp: int
    key: bytes | None
    value: bytes | None


class ExpectedLog:
    """The records that a log may have, and those that must survive a kill or a power loss."""

    def __init__(self, *, is_compacted: bool) -> None:
        self.is_compacted = is_compacted
        self.records: dict[int, RecordContent] = {}
        """The records by offset, as appended or as last read. Compaction may have removed some of them."""
        self.ever_appended: dict[int, set[RecordContent]] = {}
        """All records that were ever appended, by offset. The log must not have any other record."""
        self.allowed_start = 0
        """The largest requested log start offset. Records before it may be missing."""
        self.checkpointed_start = 0
        """The log start offset in the last checkpoint. The log does not start before, even after a crash."""
        self.acknowledged_end = 0
        """Records before this offset survive a kill."""
        self.durable_end = 0
        """Records before this offset survive a power loss."""
        self.max_end = 0
        """The log ends at or before this offset after a kill."""
        self.gaps: set[tuple[int, int]] = set()
        """Ranges of missing offsets that were not durable, as (first offset, next existing offset)."""
        self.high_watermark = 0
        self.checkpointed_high_watermark = 0

    def on_append(self, offset: int, record: RecordContent) -> None:
        """Note that a record was appended at an offset. It is not acknowledged yet."""
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
        """Stop expecting records from `offset` on, before a truncation. A crash may still preserve them."""
        self.acknowledged_end = min(self.acknowledged_end, offset)
        self.durable_end = min(self.durable_end, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, offset)
        self.checkpointed_start = min(self.checkpointed_start, offset)

    def on_truncate(self, offset: int) -> None:
        """Note that a truncation has completed and survives a kill."""
        self.records = {at: record for at, record in self.records.items() if at < offset}
        self.max_end = offset

    def on_recovery(self, found: dict[int, RecordContent], end: int, *, durable: bool) -> None:
        """Replace the expected content with the records that recovery found after a crash.

        With `durable`, these records also survive a later power loss.
        """
        self.records = dict(found)
        self.acknowledged_end = self.max_end = end
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, end)
        self.durable_end = end if durable else min(self.durable_end, end)

    def record_gaps(self, gaps: list[tuple[int, int]]) -> None:
        """Note gaps after a power loss: the end of an unsynced segment is lost, but a later segment survived.

        Raises Violation if a gap begins before the durable end.
        """
        for first, after in gaps:
            if (first, after) not in self.gaps and first < self.durable_end and first >= self.allowed_start:
                raise Violation(f"offsets {first} to {after - 1} are missing; {self.durable_end} was durable")
        self.gaps.update(gaps)

    def check(self, found: dict[int, RecordContent], start: int, end: int, required_end: int) -> None:
        """Check the records that were found in a log, from `start` to `end`. Raises Violation.

        All expected records before `required_end` must exist unchanged, except those that compaction may
        remove. Records that were never appended must not exist.
        """
        if end < required_end:
            raise Violation(f"the log ends at {end}, but must have all records before {required_end}")
        for offset, record in found.items():
            if record not in self.ever_appended.get(offset, ()):
                raise Violation(f"offset {offset} has {record}, which was never written there")
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
                raise Violation(f"offset {offset} has {found[offset]} instead of {record}")
            if not self.is_compacted:
                raise Violation(f"offset {offset} is missing: {record}")
            if last_of_key.get(record.key, -1) > offset:
                continue
            if record.value is not None:
                raise Violation(f"offset {offset} is missing, without a later record of its key: {record}")
            if first_of_key.get(record.key, offset) < offset:
                raise Violation(
                    f"the tombstone at {offset} is missing, but {record.key!r} has reappeared at "
                    f"{first_of_key[record.key]}"
                )
