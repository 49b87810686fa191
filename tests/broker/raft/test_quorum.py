"""The quorum alone: who hears what, in which order, and after how many syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kwire.broker.config import load
from kwire.broker.metadata.batches import MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.node.format import all_directories, format_directories
from kwire.broker.raft.endpoints import static_voters
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.quorum import Quorum
from kwire.broker.raft.view import NO_LEADER, QuorumView
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import NoOpRecord, TopicRecord

FIRST = 1
"""The offset of the first record after that of the leader's change."""


class SlowHost(VirtualHost):
    """A host whose workers are done when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work: list[Callable[[], None]] = []

    def run_in_worker(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.at_work.append(lambda: VirtualHost.run_in_worker(self, work, done))

    def finish(self) -> None:
        self.at_work.pop(0)()
        self.run_pending()


class Bench:
    """A quorum of one on a disk in memory, and everything that it has told, in order."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = load(None, {}, {"log.dirs": "/data", "node.id": "1", **named})
        self.disk = disk or MemoryDisk()
        self.host = SlowHost()
        self.told: list[object] = []
        self.echo: list[StoredRecord] = []
        """What is appended when the next offset is committed."""
        format_directories(config, self.disk, self.host.random("directories"), 0, ignore_formatted=True)
        self.logs = LogManager(
            self.disk,
            all_directories(config),
            logger=self.host.logger("kwire.storage"),
            rng=self.host.random("directories"),
        )
        self.logs.lock()
        self.logs.load_meta_properties()
        [directory] = self.logs.directories()
        self.log = MetadataLog(
            self.logs.open_metadata_log(metadata_log_config(config), 0),
            self.disk,
            self.host.logger("kwire.raft"),
            node_id=1,
            directory_id=directory.directory_id or Uuid(bytes(16)),
            static_voters=static_voters(config),
        )
        self.quorum = Quorum(
            config, self.host, on_committed=self.replay, on_failed=lambda reason: self.told.append("failed")
        )
        self.quorum.start(self.log, "a cluster", self)
        self.syncs = self.disk.syncs

    def replay(self, batches: Iterable[MetadataBatch]) -> None:
        for batch in batches:
            self.told.append((batch.base_offset, batch.last_offset, batch.epoch))

    def became_leader(self, epoch: int) -> None:
        self.told.append(f"leader of epoch {epoch}")

    def committed(self, offset: int) -> None:
        self.told.append(f"committed {offset}")
        if self.echo:
            self.append(self.echo.pop())

    def resigned(self, reason: ApiError) -> None:
        self.told.append(reason.code.name)

    def append(self, *records: StoredRecord) -> int:
        return self.quorum.append(records, MetadataDelta(MetadataImage()), atomic=False)

    def heard(self) -> list[object]:
        heard, self.told = self.told, []
        return heard


NOTHING = StoredRecord(NoOpRecord())


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.heard()
    return made


@pytest.fixture
def settled(bench: Bench) -> Bench:
    bench.append(NOTHING)
    bench.quorum.settle()
    bench.heard()
    bench.syncs = bench.disk.syncs
    return bench


def test_it_leads_once_everything_was_replayed() -> None:
    bench = Bench()
    assert bench.heard() == ["leader of epoch 1"]
    bench.append(NOTHING, NOTHING)
    bench.quorum.settle()
    bench.logs.shutdown(0)
    again = Bench(bench.disk)
    assert again.heard() == [(0, 0, 1), (1, 2, 1), "leader of epoch 2"]
    assert again.quorum.leads


def test_a_start_is_synced_once_whatever_comes_of_it(bench: Bench) -> None:
    plain = Bench()
    plain.append(NOTHING)
    plain.quorum.settle()
    bench.append(NOTHING)
    bench.echo = [NOTHING]
    bench.host.run_pending()
    assert (bench.heard(), bench.disk.syncs) == ([], bench.syncs)
    bench.quorum.settle()
    assert bench.heard() == [(1, 1, 1), "committed 1", (2, 2, 1), "committed 2"]
    assert bench.disk.syncs == plain.disk.syncs
    assert bench.quorum.high_watermark == 3


def test_nothing_is_committed_before_it_is_synced(settled: Bench) -> None:
    assert settled.append(NOTHING, NOTHING) == FIRST + 2
    settled.host.run_pending()
    assert (settled.heard(), settled.disk.syncs) == ([], settled.syncs)
    assert settled.quorum.high_watermark == FIRST + 1
    settled.host.finish()
    assert settled.heard() == [(2, 3, 1), "committed 3"]
    assert settled.quorum.high_watermark == FIRST + 3


def test_what_comes_together_shares_a_sync_and_so_does_all_that_comes_meanwhile(settled: Bench) -> None:
    settled.append(NOTHING)
    settled.append(NOTHING)
    settled.host.run_pending()
    assert len(settled.host.at_work) == 1
    settled.append(NOTHING)
    settled.host.run_pending()
    settled.append(NOTHING)
    settled.host.run_pending()
    assert len(settled.host.at_work) == 1, "one sync at a time"
    settled.host.finish()
    assert settled.heard() == [(2, 2, 1), "committed 2", (3, 3, 1), "committed 3"]
    settled.host.finish()
    assert settled.heard() == [(4, 4, 1), "committed 4", (5, 5, 1), "committed 5"]
    assert settled.disk.syncs == settled.syncs + 2
    assert settled.host.at_work == []


def test_what_is_appended_while_others_hear_of_a_commit_is_written_too(settled: Bench) -> None:
    settled.append(NOTHING)
    settled.host.run_pending()
    settled.echo = [NOTHING]
    settled.host.finish()
    settled.host.finish()
    assert settled.heard() == [(2, 2, 1), "committed 2", (3, 3, 1), "committed 3"]


def test_an_end_is_synced_before_anyone_hears_of_it(settled: Bench) -> None:
    settled.append(NOTHING)
    settled.quorum.settle()
    assert settled.heard() == [(2, 2, 1), "committed 2"]
    assert settled.disk.syncs == settled.syncs + 1
    settled.quorum.settle()
    assert settled.disk.syncs == settled.syncs + 1, "there was nothing to sync"


@pytest.mark.parametrize("when", ["writing", "syncing", "settling"])
def test_who_cannot_write_leads_no_more(settled: Bench, when: str) -> None:
    settled.append(NOTHING)
    if when == "syncing":
        settled.host.run_pending()
    settled.disk.fails_after = 0
    if when == "settling":
        with pytest.raises(StorageError):
            settled.quorum.settle()
    settled.host.run_pending()
    if when == "syncing":
        settled.host.finish()
    settled.host.run_pending()
    assert sorted(map(str, settled.heard())) == ["KAFKA_STORAGE_ERROR", "failed"]
    assert settled.quorum.failed
    assert not settled.quorum.leads


def test_what_is_too_long_for_one_batch_is_refused_and_leaves_nothing(settled: Bench) -> None:
    end_offset = settled.log.end_offset
    long = [StoredRecord(TopicRecord(name="x" * 30_000, topic_id=Uuid(bytes(16))))] * 300
    with pytest.raises(ApiError):
        settled.quorum.append(long, MetadataDelta(MetadataImage()), atomic=True)
    assert settled.log.end_offset == end_offset
    settled.host.run_pending()
    assert settled.host.at_work == []


def test_it_becomes_dynamic_with_what_is_appended_next(settled: Bench) -> None:
    assert settled.quorum.kraft_version == 0
    settled.quorum.raise_kraft_version(1, validate_only=False)
    assert settled.append(NOTHING) == FIRST + 3
    settled.quorum.settle()
    assert settled.heard() == [(4, 4, 1), "committed 4"]
    assert settled.quorum.kraft_version == 1


def test_others_see_who_leads_and_hear_when_nobody_does_any_more(settled: Bench) -> None:
    view: QuorumView = settled.quorum
    assert (view.leader_id, view.epoch, view.leads, view.kraft_version) == (1, 1, True, 0)
    assert view.leader_address() is None  # it is this node
    told: list[int] = []
    view.subscribe_leader(lambda: told.append(view.leader_id))
    settled.disk.fails_after = 0
    settled.append(NOTHING)
    settled.host.run_pending()
    assert told == [NO_LEADER]
    assert not view.leads


def test_others_are_told_of_a_leader_that_this_node_does_not_go_to_any_more(settled: Bench) -> None:
    settled.logs.shutdown(0)
    voters = "1@one:9093,2@two:9093,3@three:9093"
    again = Bench(
        settled.disk, controller_quorum_voters=voters, listeners="PLAINTEXT://:9092,CONTROLLER://one:9093"
    )
    assert (again.quorum.leader_id, again.quorum.told_leader_id, again.quorum.epoch) == (NO_LEADER, 1, 1)
