"""The metadata log of a simulated node. It records which part of the log is durable."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from kwire.broker.raft.positions import EndOfEpoch
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.voters import VoterHistory, VoterSet
from kwire.wire.records.raft import KRaftVersionRecord
from kwire.wire.schema import Message


class Batch(NamedTuple):
    """Records appended together: control records of the quorum, or one command."""

    base_offset: int
    epoch: int
    controls: tuple[tuple[int, Message], ...]
    command: str = ""

    @property
    def end_offset(self) -> int:
        return self.base_offset + max(1, len(self.controls))

    def __str__(self) -> str:
        what = self.command or ",".join(type(control).__name__ for _, control in self.controls)
        return f"{self.base_offset}@{self.epoch} {what}"


class SavedSnapshot(NamedTuple):
    """The voters and the kraft.version in a snapshot. Only the size of its other content is simulated."""

    snapshot: Snapshot
    voters: VoterSet | None
    kraft_version: int
    size: int


class SimulatedLog:
    """A `QuorumLog` in memory. It has batches from `start_offset` on, and a snapshot of earlier records."""

    def __init__(self, static: VoterSet) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.synced_offset = 0
        """Records before this offset survive a power loss."""
        self.awaits_sync = False
        """Whether a truncation or a new start offset is unsynced, so that a power loss may undo it."""
        self._synced_content: tuple[int, list[Batch]] = 0, []
        """The start offset and the batches before the unsynced change."""
        self.batches: list[Batch] = []
        self.snapshots: list[SavedSnapshot] = []
        self.history = VoterHistory(static)
        self._epochs: list[tuple[int, int]] = []
        """The leader epochs in the log, with their start offsets."""

    # --- QuorumLog

    @property
    def last_epoch(self) -> int:
        if self._epochs:
            return self._epochs[-1][0]
        return self.snapshots[-1].snapshot.epoch if self.snapshots else 0

    @property
    def earliest_snapshot(self) -> Snapshot | None:
        return self.snapshots[0].snapshot if self.snapshots else None

    @property
    def latest_snapshot(self) -> Snapshot | None:
        return self.snapshots[-1].snapshot if self.snapshots else None

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def may_lead(self) -> bool:
        return True

    @property
    def voters_offset(self) -> int:
        return self.history.voters_offset

    @property
    def former_voters(self) -> VoterSet:
        return self.history.former_voters

    @property
    def kraft_version(self) -> int:
        return self.history.kraft_version

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        epochs = self._epochs
        if not epochs or epoch > epochs[-1][0]:
            return EndOfEpoch(self.last_epoch, self.end_offset)
        found, end_offset = epoch, epochs[0][1]
        for index, (known, _) in enumerate(epochs):
            if known <= epoch:
                found = known
                end_offset = epochs[index + 1][1] if index + 1 < len(epochs) else self.end_offset
        earliest = self.earliest_snapshot
        if earliest is not None and found == epoch and end_offset == earliest.end_offset:
            return EndOfEpoch(earliest.epoch, earliest.end_offset)
        return EndOfEpoch(found, end_offset)

    # --- changes

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record before `offset`, or -1 if the epoch is not known any more."""
        if self.snapshots and offset == self.snapshots[0].snapshot.end_offset == self.start_offset:
            return self.snapshots[0].snapshot.epoch
        if offset == 0:
            return 0
        for batch in reversed(self.batches):
            if batch.base_offset < offset <= batch.end_offset:
                return batch.epoch
        return -1

    def append(self, batch: Batch) -> None:
        assert not self.awaits_sync, f"{batch} is appended, and the truncation before it is not synced"
        assert batch.base_offset == self.end_offset, f"{batch} follows {self.end_offset}"
        assert batch.epoch >= self.last_epoch
        if not self._epochs or batch.epoch > self._epochs[-1][0]:
            self._epochs.append((batch.epoch, batch.base_offset))
        self.batches.append(batch)
        self.end_offset = batch.end_offset
        for index, (_, control) in enumerate(batch.controls):
            self.history.note(batch.base_offset + index, control)

    def truncate(self, offset: int) -> None:
        self._mark_awaiting_sync()
        while self.batches and self.batches[-1].end_offset > offset:
            self.batches.pop()
        self.end_offset = self.batches[-1].end_offset if self.batches else self.start_offset
        assert self.end_offset == offset, f"offset {offset} is within a batch"
        self._epochs = [entry for entry in self._epochs if entry[1] < offset]
        self.history.truncate_to(offset)
        self.synced_offset = min(self.synced_offset, offset)

    def _mark_awaiting_sync(self) -> None:
        if not self.awaits_sync:
            self.awaits_sync, self._synced_content = True, (self.start_offset, self.batches.copy())

    def undo_unsynced(self) -> None:
        """Undo unsynced truncations and installations, as a power loss may do. Call `crash` next."""
        self.start_offset, self.batches = self._synced_content

    def read(self, offset: int, max_batches: int) -> list[Batch]:
        first = bisect_right(self.batches, offset, key=lambda batch: batch.base_offset) - 1
        if first >= 0 and self.batches[first].end_offset <= offset:
            first += 1
        return self.batches[max(0, first) : max(0, first) + max_batches]

    def advance(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))

    def take_snapshot(self, size: int) -> SavedSnapshot | None:
        """Take a snapshot of `size` bytes up to the high watermark.

        Returns None if the latest snapshot extends as far, or if the epoch there is unknown.
        """
        offset = self.high_watermark
        epoch = self.epoch_at(offset)
        if offset <= self.start_offset or epoch < 0:
            return None
        if self.snapshots and self.snapshots[-1].snapshot.end_offset >= offset:
            return None
        history = self.history
        saved = SavedSnapshot(
            Snapshot(offset, epoch), history.voters_at(offset - 1), history.kraft_version_at(offset - 1), size
        )
        self.snapshots.append(saved)
        history.trim(offset - 1)
        return saved

    def trim(self) -> None:
        """Remove all batches before the end of the latest snapshot."""
        start_offset = self.snapshots[-1].snapshot.end_offset
        del self.snapshots[:-1]
        self.batches = [batch for batch in self.batches if batch.base_offset >= start_offset]
        self.start_offset = start_offset
        self.synced_offset = max(self.synced_offset, start_offset)
        self._index()

    def _index(self) -> None:
        self._epochs.clear()
        for batch in self.batches:
            if not self._epochs or batch.epoch > self._epochs[-1][0]:
                self._epochs.append((batch.epoch, batch.base_offset))

    def install(self, saved: SavedSnapshot) -> None:
        """Replace the complete log with a fetched snapshot."""
        self._mark_awaiting_sync()
        offset = saved.snapshot.end_offset
        self.batches.clear()
        self._epochs.clear()
        self.snapshots = [saved]
        self.start_offset = self.end_offset = self.synced_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.load(saved)

    def load(self, saved: SavedSnapshot) -> None:
        """Replace the voter history by the voters and the kraft.version of a snapshot."""
        self.history.clear()
        offset = saved.snapshot.end_offset - 1
        if saved.kraft_version:
            self.history.note(offset, KRaftVersionRecord(version=0, k_raft_version=saved.kraft_version))
        if saved.voters is not None:
            self.history.note(offset, saved.voters.record())

    def crash(self, kept_offset: int, static: VoterSet) -> None:
        """Remove the batches from `kept_offset` on, and load the remaining log and snapshots again."""
        self.batches = [batch for batch in self.batches if batch.end_offset <= kept_offset]
        self.end_offset = self.batches[-1].end_offset if self.batches else self.start_offset
        self.synced_offset = self.end_offset
        self._index()
        self.history = VoterHistory(static)
        self.high_watermark = 0
        if self.snapshots:
            latest = self.snapshots[-1]
            self.load(latest)
            self.high_watermark = latest.snapshot.end_offset
            if (latest.snapshot.epoch, latest.snapshot.end_offset) > (self.last_epoch, self.end_offset):
                self.install(latest)
        self.awaits_sync = False
        for batch in self.batches:
            for index, (_, control) in enumerate(batch.controls):
                if batch.base_offset + index >= self.high_watermark:
                    self.history.note(batch.base_offset + index, control)
