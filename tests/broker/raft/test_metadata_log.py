"""The metadata log of a follower: fetched batches, truncation and rejected batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from kwire.broker.config import load
from kwire.broker.node.format import all_directories, format_directories
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.positions import EndOfEpoch, check_fetch_position, truncation_offset
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.snapshots import Snapshot, control_batch
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import NewRecord, build
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import NoOpRecord
from kwire.wire.registry import encode_record

NO_OP = encode_record(NoOpRecord(), 0)


def make_batch(offset: int, epoch: int, records: int = 1) -> bytes:
    some: list[NewRecord] = [(0, None, NO_OP, [])] * records
    return bytes(build(some, base_offset=offset, leader_epoch=epoch))


def open_log(disk: MemoryDisk | None = None) -> MetadataLog:
    config = load(None, {}, {"log.dirs": "/data", "node.id": "7", "log.index.size.max.bytes": "65536"})
    disk, host = disk or MemoryDisk(), VirtualHost()
    format_directories(config, disk, random.Random(1), 0, ignore_formatted=True)
    logs = LogManager(
        disk, all_directories(config), logger=host.logger("kwire.storage"), rng=random.Random(1)
    )
    logs.lock()
    logs.load_meta_properties()
    return MetadataLog(
        logs.open_metadata_log(metadata_log_config(config), 0),
        disk,
        host.logger("kwire.raft"),
        node_id=7,
        directory_id=Uuid(bytes(16)),
    )


def log_with(*epochs: int) -> MetadataLog:
    """Return a log with one record of each of these epochs."""
    log = open_log()
    for epoch in epochs:
        log.append_fetched(make_batch(log.end_offset, epoch), epoch=epoch)
    return log


def epochs_of(log: MetadataLog) -> list[int]:
    """Return the epoch of each record."""
    starts = [*log.log.leader_epochs, (0, log.end_offset)]
    return [epoch for (epoch, start), (_, end) in pairwise(starts) for _ in range(start, end)]


def test_fetched_batches_are_written_unchanged() -> None:
    log = open_log()
    sent = make_batch(0, 1, 3) + make_batch(3, 2, 2)
    log.append_fetched(sent + make_batch(5, 2)[:50], epoch=2)
    assert (log.end_offset, log.last_epoch, log.high_watermark) == (5, 2, 0)
    assert log.log.read(0, max_bytes=10_000, up_to_offset=5).read() == sent
    assert list(log.read_up_to(log.high_watermark)) == [], "no record is known to be committed"
    log.advance_to(4)
    assert [found.base_offset for found in log.read_up_to(log.high_watermark)] == [0]
    log.advance_to(100)
    assert log.high_watermark == 5
    log.advance_to(3)
    assert log.high_watermark == 5
    assert [found.base_offset for found in log.read_up_to(log.high_watermark)] == [3]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        make_batch(2, 2)[:40],
        make_batch(1, 2),
        make_batch(3, 2),
        make_batch(2, 1),
        make_batch(2, 4),
        make_batch(2, 2) + make_batch(4, 2),
        make_batch(2, 3) + make_batch(3, 2),
        make_batch(2, 2)[:-1] + b"x",
    ],
    ids=["empty", "truncated", "before", "gap", "old epoch", "new epoch", "hole", "epoch back", "crc"],
)
def test_batches_that_do_not_continue_the_log_are_rejected(sent: bytes) -> None:
    log = log_with(1, 2)
    with pytest.raises(ValueError, match=r"."):
        log.append_fetched(sent, epoch=3)
    assert (log.end_offset, log.last_epoch) == (2, 2)


def test_committed_records_are_never_truncated() -> None:
    log = log_with(1, 1, 2)
    log.advance_to(2)
    with pytest.raises(AssertionError):
        log.truncate_to(1)
    log.truncate_to(2)
    assert (log.end_offset, log.last_epoch) == (2, 1)
    with pytest.raises(AssertionError):
        log.append_fetched(make_batch(2, 3), epoch=3)
    work, finish = log.begin_flush()
    work()
    finish()
    log.append_fetched(make_batch(2, 3), epoch=3)
    assert epochs_of(log) == [1, 1, 3]


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (0, 0, None),
        (0, 5, None),
        (2, 1, None),
        (3, 1, EndOfEpoch(1, 2)),
        (2, 2, EndOfEpoch(1, 2)),
        (4, 3, None),
        (9, 3, EndOfEpoch(3, 4)),
        (4, 4, EndOfEpoch(3, 4)),
    ],
)
def test_fetch_position_returns_the_diverging_epoch(
    offset: int, last_epoch: int, answer: EndOfEpoch | None
) -> None:
    assert check_fetch_position(log_with(1, 1, 3, 3), offset, last_epoch) == answer


class TrimmedLog:
    """A fake log with snapshots up to offsets 10 and 20. The log starts at offset 10."""

    start_offset, end_offset, last_epoch = 10, 30, 4
    earliest_snapshot = Snapshot(10, 2)
    latest_snapshot = Snapshot(20, 3)

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        return {2: EndOfEpoch(2, 15), 3: EndOfEpoch(3, 25)}.get(epoch, EndOfEpoch(4, 30))


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (0, 0, TrimmedLog.latest_snapshot),
        (5, 2, TrimmedLog.latest_snapshot),
        (10, 2, None),
        (10, 1, TrimmedLog.latest_snapshot),
        (12, 1, TrimmedLog.latest_snapshot),
        (12, 2, None),
        (16, 2, EndOfEpoch(2, 15)),
    ],
)
def test_fetch_position_before_the_log_start_returns_a_snapshot(
    offset: int, last_epoch: int, answer: EndOfEpoch | Snapshot | None
) -> None:
    assert check_fetch_position(TrimmedLog(), offset, last_epoch) == answer


def converge(leader: MetadataLog, follower: MetadataLog, common: int) -> None:
    """Truncate and append until the logs agree, without touching their common records."""
    for _ in range(20):
        answer = check_fetch_position(leader, follower.end_offset, follower.last_epoch)
        if answer is None:
            break
        assert isinstance(answer, EndOfEpoch)
        offset = truncation_offset(follower, answer)
        assert common <= offset < follower.end_offset
        follower.truncate_to(offset)
    own, its = epochs_of(follower), epochs_of(leader)
    assert own == its[: len(own)]


def history(rng: random.Random, before: Sequence[int]) -> list[int]:
    epochs, epoch = list(before), before[-1] if before else 1
    for _ in range(rng.randrange(8)):
        epoch += rng.choice([0, 0, 1, 2])
        epochs.append(epoch)
    return epochs


@pytest.mark.parametrize("seed", range(40))
def test_follower_log_converges_to_the_leaders(seed: int) -> None:
    rng = random.Random(seed)
    shared = history(rng, [])
    # Two leaders never write in the same epoch.
    one = [2 * epoch for epoch in history(rng, shared)[len(shared) :]]
    other = [2 * epoch + 1 for epoch in history(rng, shared)[len(shared) :]]
    doubled = [2 * epoch for epoch in shared]
    if one and other and doubled:
        one = [max(epoch, doubled[-1]) for epoch in one]
        converge(log_with(*doubled, *other), log_with(*doubled, *one), len(doubled))
        converge(log_with(*doubled, *one), log_with(*doubled, *other), len(doubled))


def test_quorum_state_file_has_kafkas_format() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    assert (log.election().leader_epoch, log.election().leader_id) == (0, -1)
    log.remember(QuorumState(leader_id=1, leader_epoch=3, voter_ids=(1, 2)))
    assert (log.election().leader_epoch, log.election().leader_id) == (3, 1)
    assert disk.read("/data/__cluster_metadata-0/quorum-state") == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}'
    )


def test_log_of_control_records_alone_does_not_replace_bootstrap_metadata() -> None:
    log = open_log()
    list(log.read())
    assert log.may_lead
    log.has_bootstrap = False
    assert not log.may_lead
    log.append_fetched(control_batch([(2, NoOpRecord())], 0, base_offset=0, epoch=1), epoch=1)
    assert not log.may_lead
    log.append_fetched(make_batch(1, 1), epoch=1)
    assert log.may_lead
    list(log.read())
    assert log.may_lead
    log.truncate_to(1)
    assert not log.may_lead
