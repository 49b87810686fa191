"""The quorum alone: order of its callbacks, and number of syncs."""

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
from tests.broker.raft.raft_harness import begin_quorum_epoch

FIRST = 1
"""The offset of the first record after the LeaderChangeMessage."""


class SlowHost(VirtualHost):
    """A host whose workers complete when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work: list[Callable[[], None]] = []

    def run_in_worker(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.at_work.append(lambda: VirtualHost.run_in_worker(self, work, done))

    def finish(self) -> None:
        self.at_work.pop(0)()
        self.run_pending()


class FakeRequester:
    """A node whose request needs no response."""

    api_version = 1

    def complete(self, response: object) -> None:
        pass


class QuorumHarness:
    """A quorum of one voter on a disk in memory, and its callbacks in order."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = load(None, {}, {"log.dirs": "/data", "node.id": "1", **named})
        self.disk = disk or MemoryDisk()
        self.host = SlowHost()
        self.events: list[object] = []
        self.append_on_commit: list[StoredRecord] = []
        """Records to append when the next offset is committed."""
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
            config, self.host, on_committed=self.replay, on_failed=lambda reason: self.events.append("failed")
        )
        self.quorum.start(self.log, "a cluster", self)  # type: ignore[arg-type]
        self.syncs = self.disk.syncs

    def replay(self, batches: Iterable[MetadataBatch]) -> None:
        for batch in batches:
            self.events.append((batch.base_offset, batch.last_offset, batch.epoch))

    def check_bootstrap(self) -> None:
        pass

    def became_leader(self, epoch: int) -> None:
        self.events.append(f"leader of epoch {epoch}")

    def committed(self, offset: int) -> None:
        self.events.append(f"committed {offset}")
        if self.append_on_commit:
            self.append(self.append_on_commit.pop())

    def resigned(self, reason: ApiError) -> None:
        self.events.append(reason.code.name)

    def append(self, *records: StoredRecord) -> int:
        return self.quorum.append(records, MetadataDelta(MetadataImage()), atomic=False)

    def take_events(self) -> list[object]:
        take_events, self.events = self.events, []
        return take_events


NOTHING = StoredRecord(NoOpRecord())


@pytest.fixture
def harness() -> QuorumHarness:
    made = QuorumHarness()
    made.take_events()
    return made


@pytest.fixture
def settled(harness: QuorumHarness) -> QuorumHarness:
    harness.append(NOTHING)
    harness.quorum.settle()
    harness.take_events()
    harness.syncs = harness.disk.syncs
    return harness


def test_becomes_leader_after_replaying_the_log() -> None:
    harness = QuorumHarness()
    assert harness.take_events() == ["leader of epoch 1"]
    harness.append(NOTHING, NOTHING)
    harness.quorum.settle()
    harness.logs.shutdown(0)
    again = QuorumHarness(harness.disk)
    assert again.take_events() == [(0, 0, 1), (1, 2, 1), "leader of epoch 2"]
    assert again.quorum.leads


def test_start_is_synced_once_with_the_records_appended_on_commit(harness: QuorumHarness) -> None:
    plain = QuorumHarness()
    plain.append(NOTHING)
    plain.quorum.settle()
    harness.append(NOTHING)
    harness.append_on_commit = [NOTHING]
    harness.host.run_pending()
    assert (harness.take_events(), harness.disk.syncs) == ([], harness.syncs)
    harness.quorum.settle()
    assert harness.take_events() == [(1, 1, 1), "committed 1", (2, 2, 1), "committed 2"]
    assert harness.disk.syncs == plain.disk.syncs
    assert harness.quorum.high_watermark == 3


def test_records_are_committed_after_the_sync(settled: QuorumHarness) -> None:
    assert settled.append(NOTHING, NOTHING) == FIRST + 2
    settled.host.run_pending()
    assert (settled.take_events(), settled.disk.syncs) == ([], settled.syncs)
    assert settled.quorum.high_watermark == FIRST + 1
    settled.host.finish()
    assert settled.take_events() == [(2, 3, 1), "committed 3"]
    assert settled.quorum.high_watermark == FIRST + 3


def test_appends_share_a_sync_and_those_during_a_sync_share_the_next(settled: QuorumHarness) -> None:
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
    assert settled.take_events() == [(2, 2, 1), "committed 2", (3, 3, 1), "committed 3"]
    settled.host.finish()
    assert settled.take_events() == [(4, 4, 1), "committed 4", (5, 5, 1), "committed 5"]
    assert settled.disk.syncs == settled.syncs + 2
    assert settled.host.at_work == []


def test_record_appended_by_a_commit_callback_is_committed(settled: QuorumHarness) -> None:
    settled.append(NOTHING)
    settled.host.run_pending()
    settled.append_on_commit = [NOTHING]
    settled.host.finish()
    settled.host.finish()
    assert settled.take_events() == [(2, 2, 1), "committed 2", (3, 3, 1), "committed 3"]


def test_settle_syncs_before_it_reports_the_commit(settled: QuorumHarness) -> None:
    settled.append(NOTHING)
    settled.quorum.settle()
    assert settled.take_events() == [(2, 2, 1), "committed 2"]
    assert settled.disk.syncs == settled.syncs + 1
    settled.quorum.settle()
    assert settled.disk.syncs == settled.syncs + 1, "there was nothing to sync"


@pytest.mark.parametrize("when", ["writing", "syncing", "settling"])
def test_leader_resigns_after_a_write_error(settled: QuorumHarness, when: str) -> None:
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
    assert sorted(map(str, settled.take_events())) == ["KAFKA_STORAGE_ERROR", "failed"]
    assert settled.quorum.failed
    assert not settled.quorum.leads


def test_append_larger_than_a_batch_is_rejected_without_a_trace(settled: QuorumHarness) -> None:
    end_offset = settled.log.end_offset
    long = [StoredRecord(TopicRecord(name="x" * 30_000, topic_id=Uuid(bytes(16))))] * 300
    with pytest.raises(ApiError):
        settled.quorum.append(long, MetadataDelta(MetadataImage()), atomic=True)
    assert settled.log.end_offset == end_offset
    settled.host.run_pending()
    assert settled.host.at_work == []


def test_kraft_version_is_raised_with_the_next_append(settled: QuorumHarness) -> None:
    assert settled.quorum.kraft_version == 0
    settled.quorum.raise_kraft_version(1, validate_only=False)
    assert settled.append(NOTHING) == FIRST + 3
    settled.quorum.settle()
    assert settled.take_events() == [(4, 4, 1), "committed 4"]
    assert settled.quorum.kraft_version == 1


def test_leader_listener_is_called_when_the_leader_resigns(settled: QuorumHarness) -> None:
    view: QuorumView = settled.quorum
    assert (view.leader_id, view.epoch, view.leads, view.kraft_version) == (1, 1, True, 0)
    assert view.leader_address() is None  # it is this node
    events: list[int] = []
    view.subscribe_leader(lambda: events.append(view.leader_id))
    settled.disk.fails_after = 0
    settled.append(NOTHING)
    settled.host.run_pending()
    assert events == [NO_LEADER]
    assert not view.leads


def test_restarted_voter_reports_the_last_leader_but_does_not_use_it(settled: QuorumHarness) -> None:
    settled.logs.shutdown(0)
    voters = "1@one:9093,2@two:9093,3@three:9093"
    again = QuorumHarness(
        settled.disk, controller_quorum_voters=voters, listeners="PLAINTEXT://:9092,CONTROLLER://one:9093"
    )
    assert (again.quorum.leader_id, again.quorum.advertised_leader_id, again.quorum.epoch) == (
        NO_LEADER,
        1,
        1,
    )


def test_leader_listener_is_called_while_this_node_requests_pre_votes() -> None:
    """Requests to the active controller wait until a leader is known, so each change must be reported."""
    harness = QuorumHarness(
        controller_quorum_voters="1@one:9093,2@two:9093,3@three:9093",
        listeners="PLAINTEXT://:9092,CONTROLLER://one:9093",
        controller_listener_names="CONTROLLER",
    )
    quorum, known = harness.quorum, [NO_LEADER]
    quorum.subscribe_leader(lambda: known.append(quorum.leader_id))
    quorum.handle_request(begin_quorum_epoch(2, 1, cluster_id="a cluster"), FakeRequester())
    for _ in range(10_000):
        assert quorum.leader_id == known[-1]
        while harness.host.at_work:
            harness.host.finish()
        harness.host.advance(1)
    assert known[:4] == [NO_LEADER, 2, NO_LEADER, 2]
