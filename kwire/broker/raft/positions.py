"""Comparison of two copies of the metadata log, by leader epochs and offsets. KIP-595, KIP-630."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.raft.snapshots import Snapshot
from kwire.wire.named_tuple import NamedTuple


class EndOfEpoch(NamedTuple):
    """The latest epoch of a log that is not after a requested epoch, and the end offset of that epoch."""

    epoch: int
    end_offset: int


class Positions(Protocol):
    """The properties of a log that a comparison needs."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """The epoch of the last record or, in an empty log, of the snapshot before it; 0 without either."""

    @property
    def earliest_snapshot(self) -> Snapshot | None: ...
    @property
    def latest_snapshot(self) -> Snapshot | None: ...

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        """Return the end of this epoch, or of the last epoch before it that the log has."""


def check_fetch_position(log: Positions, offset: int, last_epoch: int) -> EndOfEpoch | Snapshot | None:
    """Return how a leader responds to a Fetch at `offset`, if the record before it has `last_epoch`.

    None: send the records from `offset` on. EndOfEpoch: the logs diverge there, and the follower truncates
    its log. Snapshot: the follower first loads this snapshot, because the leader no longer has the records,
    or because the follower's log is empty and the snapshot is shorter than the records.
    """
    latest = log.latest_snapshot
    if offset == 0 and latest is not None and not latest.is_bootstrap:
        return latest
    if offset == 0 and log.start_offset == 0:
        return None
    earliest = log.earliest_snapshot
    if earliest is not None and (
        offset < log.start_offset
        or (offset == log.start_offset and last_epoch != earliest.epoch)
        or last_epoch < earliest.epoch
    ):
        return latest
    known = log.end_of_epoch(last_epoch)
    return known if known.epoch != last_epoch or known.end_offset < offset else None


def truncation_offset(log: Positions, leaders: EndOfEpoch) -> int:
    """Return the offset to which to truncate a diverging log.

    `leaders` is the end of the epoch that the leader has returned, in the leader's log.
    """
    if leaders.epoch == 0:
        return min(leaders.end_offset, log.end_offset)
    own = log.end_of_epoch(leaders.epoch)
    return min(own.end_offset, leaders.end_offset) if own.epoch == leaders.epoch else own.end_offset
