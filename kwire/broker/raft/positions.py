"""Where two copies of the metadata log part: with the epoch before it, an offset tells. KIP-595, KIP-630."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.raft.snapshots import Snapshot
from kwire.wire.named_tuple import NamedTuple


class EndOfEpoch(NamedTuple):
    """The latest epoch of a log that is at most the one asked for, and where it ends."""

    epoch: int
    end_offset: int


class Positions(Protocol):
    """What has to be known of a log to compare it with another."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, be it in the snapshot that the log begins with; 0 without any."""

    @property
    def earliest_snapshot(self) -> Snapshot | None: ...
    @property
    def latest_snapshot(self) -> Snapshot | None: ...

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        """Where an epoch ends, or the last one before it that there is."""


def answer_to_fetch(log: Positions, offset: int, last_epoch: int) -> EndOfEpoch | Snapshot | None:
    """What a leader has for who has the log up to `offset`, whose last record is of `last_epoch`.

    None: the records from there on. EndOfEpoch: where the other one is to cut its log. Snapshot: what is to
    be loaded first, because the records are gone, or, for who has nothing, because that is shorter.
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
    """Where a log has to be cut that is not the leader's any more, which ends its epoch at `leaders`."""
    if leaders.epoch == 0:
        return min(leaders.end_offset, log.end_offset)
    own = log.end_of_epoch(leaders.epoch)
    return min(own.end_offset, leaders.end_offset) if own.epoch == leaders.epoch else own.end_offset
