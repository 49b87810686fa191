"""Comparison of two copies of the metadata log, by leader epochs and offsets. KIP-595, KIP-630."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.raft.snapshots import Snapshot
from kwire.wire.named_tuple import NamedTuple


class EndOfEpoch(NamedTuple):
    """The latest epoch of a log that is not after the requested one, and its end offset."""

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
        """The epoch of the last record, or of the snapshot that an empty log follows; 0 without either."""

    @property
    def earliest_snapshot(self) -> Snapshot | None: ...
    @property
    def latest_snapshot(self) -> Snapshot | None: ...

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        """Return the end of this epoch, or of the last one before it."""


def answer_to_fetch(log: Positions, offset: int, last_epoch: int) -> EndOfEpoch | Snapshot | None:
    """Return how a leader responds to a Fetch at `offset`, after a record of `last_epoch`.

    None: records from there on. EndOfEpoch: the divergence; the follower truncates its log. Snapshot: the
    follower loads it first, because its records are gone, or because its log is empty and the snapshot is
    shorter.
    """
    latest = log.latest_snapshot
    if offset == 0 and latest is not None and latest.end_offset > 0:
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


def cut_for(log: Positions, leaders: EndOfEpoch) -> int:
    """Return the offset to truncate a diverging log to. The leader ends its epoch at `leaders`."""
    if leaders.epoch == 0:
        return min(leaders.end_offset, log.end_offset)
    own = log.end_of_epoch(leaders.epoch)
    return min(own.end_offset, leaders.end_offset) if own.epoch == leaders.epoch else own.end_offset
