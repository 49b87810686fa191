"""The runtime of the active controller alone: what is decided upon what, and when who hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kwire.broker.controller.commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    Command,
    CreateTopics,
    Fault,
    FeatureUpdate,
    RegisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.periodic_tasks import NO_PERIODIC_TASKS, TaskPeriods
from kwire.broker.controller.runtime import ControllerRuntime
from kwire.broker.controller.topics import TopicDefaults
from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import default_features, registered_features
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.publisher import MetadataPublisher
from kwire.broker.metadata.records import StoredRecord
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    FeatureLevelRecord,
)
from kwire.wire.registry import UnknownRecord
from tests.broker.controller.conftest import DIRECTORY, Rules


class Bench:
    """A runtime over a log in memory that commits when a test says so."""

    def __init__(self, periods: TaskPeriods = NO_PERIODIC_TASKS) -> None:
        self.host = VirtualHost(seed=1)
        self.publisher = MetadataPublisher(self.host)
        self.appended: list[MetadataBatch] = []
        self.end_offset = 0
        self.epoch = 0
        self.kraft_version = 0
        self.bootstrap: list[Any] = [
            FeatureLevelRecord(name=name, feature_level=level) for name, level in default_features()
        ]
        self.refuses: ApiError | None = None
        self.refuses_version: ApiError | None = None
        self.runtime = ControllerRuntime(
            Controller(1, Rules(), TopicDefaults(1, 1)),  # type: ignore[arg-type]
            self,
            self.publisher,
            self.host,
            heartbeats=BrokerHeartbeatManager(1, session_timeout_ms=9_000),
            periods=periods,
            bootstrap=lambda: self.bootstrap,
        )
        self.told: list[object] = []

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        if self.refuses is not None:
            raise self.refuses
        base_offset, self.end_offset = self.end_offset, self.end_offset + len(records)
        found = [record for record, _ in records]
        self.appended.append(MetadataBatch(base_offset, self.end_offset - 1, self.epoch, found, delta=delta))
        return self.end_offset - 1

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> None:
        if self.refuses_version is not None:
            raise self.refuses_version
        if not validate_only:
            self.kraft_version = version

    def lead(self) -> None:
        self.epoch += 1
        self.runtime.became_leader(self.epoch)

    def commit(self, batches: int | None = None) -> None:
        """As a quorum does: what is committed is replayed, and then the leader hears of it."""
        for batch in self.appended[:batches]:
            self.publisher.handle_commit([batch])
            self.runtime.committed(batch.last_offset)
        del self.appended[:batches]

    def lose(self, code: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        """Another one leads, and has nothing of what was not committed."""
        self.appended.clear()
        self.end_offset = self.publisher.image.offset + 1
        self.runtime.resigned(ApiError(code))

    def submit(self, command: Command, name: str) -> None:
        def done(reply: Any) -> None:
            if isinstance(reply, ApiError):
                self.told.append((name, reply.code.name))
            elif isinstance(command, CreateTopics):
                self.told.append((name, ErrorCode(reply[0].error_code).name))
            else:
                self.told.append((name, reply))

        before = list(self.told)
        self.runtime.submit(command, done)
        assert self.told == before, "nobody is answered before submit returns"

    def create(self, name: str, *, validate_only: bool = False) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=-1, assignments=[], configs=[])
        self.submit(CreateTopics([topic], validate_only), f"create {name}")

    def heard(self) -> list[object]:
        self.host.run_pending()
        heard, self.told = self.told, []
        return heard


@pytest.fixture
def bench() -> Bench:
    """A runtime that leads a cluster with one broker."""
    made = Bench()
    made.lead()
    endpoints = [EndpointImage("PLAINTEXT", "127.0.0.1", 9092)]
    registration = RegisterBroker(1, Uuid(bytes(16)), endpoints, registered_features(), None, [DIRECTORY])
    made.submit(registration, "register")
    made.commit()
    offset = made.publisher.image.offset
    made.submit(BrokerHeartbeat(1, offset, offset, want_fence=False, want_shut_down=False), "unfence")
    made.commit()
    made.told.clear()
    return made


def test_who_does_not_lead_decides_nothing() -> None:
    bench = Bench()
    assert not bench.runtime.is_active
    bench.create("a")
    assert bench.heard() == [("create a", "NOT_CONTROLLER")]
    assert bench.appended == []


def test_the_first_to_lead_writes_how_the_cluster_begins() -> None:
    bench = Bench()
    bench.lead()
    assert bench.runtime.is_active
    [batch] = bench.appended
    assert isinstance(batch.records[0], BeginTransactionRecord)
    bench.commit()
    assert bench.publisher.image.metadata_version == dict(default_features())["metadata.version"]
    bench.lose()
    bench.lead()
    assert bench.appended == [], "it has begun"


def test_a_beginning_of_a_release_to_come_is_refused() -> None:
    bench = Bench()
    bench.bootstrap = [FeatureLevelRecord(name="metadata.version", feature_level=99)]
    with pytest.raises(CorruptMetadata, match=r"metadata\.version at level 99"):
        bench.lead()
    bench = Bench()
    bench.bootstrap = [UnknownRecord(record_type=99, version=0, value=b"\x01\x63\x00")]
    with pytest.raises(CorruptMetadata, match="does not know"):
        bench.lead()


def test_a_transaction_that_was_cut_short_is_aborted(bench: Bench) -> None:
    bench.lose()
    begun = MetadataBatch(bench.end_offset, bench.end_offset, 2, [BeginTransactionRecord(name="t")])
    bench.end_offset += 1
    bench.publisher.handle_commit([begun])
    bench.lead()
    [batch] = bench.appended
    assert [type(record) for record in batch.records] == [AbortTransactionRecord]
    bench.commit()
    assert not bench.publisher.is_transaction_open


def test_a_command_is_decided_upon_what_is_not_committed_yet(bench: Bench) -> None:
    bench.create("a")
    bench.create("b")
    bench.create("a")
    assert len(bench.appended) == 2
    assert bench.heard() == [], "also a refusal waits for what it was decided upon"
    bench.commit(1)
    assert bench.heard() == [("create a", "NONE")]
    bench.commit()
    assert bench.heard() == [("create b", "NONE"), ("create a", "TOPIC_ALREADY_EXISTS")]


def test_what_was_decided_is_what_is_published(bench: Bench) -> None:
    bench.create("a")
    [batch] = bench.appended
    assert batch.delta is not None
    assert batch.delta.image is bench.publisher.image
    bench.create("b")
    bench.commit()
    assert set(bench.publisher.image.topics) == {"a", "b"}


def test_whoever_follows_the_log_has_the_same_image(bench: Bench) -> None:
    follower = MetadataPublisher(bench.host)
    made = Bench()
    made.lead()
    for batch in made.appended:
        follower.handle_commit([batch._replace(delta=None)])
    made.commit()
    assert follower.image.features == made.publisher.image.features
    assert follower.image.configs == made.publisher.image.configs
    assert follower.image.offset == made.publisher.image.offset


def test_who_hears_of_a_commit_finds_its_image(bench: Bench) -> None:
    seen = []
    bench.runtime.submit(
        CreateTopics([CreatableTopic(name="a", num_partitions=1, replication_factor=1)]),
        lambda reply: seen.append(set(bench.publisher.image.topics)),
    )
    bench.commit()
    assert seen == [{"a"}]


def test_what_changes_nothing_is_answered_in_the_same_turn(bench: Bench) -> None:
    bench.create("a", validate_only=True)
    assert bench.heard() == [("create a", "NONE")]
    bench.submit(AllocateProducerIds(1, broker_epoch=-7), "ids")
    assert bench.heard() == [("ids", "STALE_BROKER_EPOCH")]
    assert bench.appended == []


def test_what_was_not_committed_is_forgotten_with_the_lead(bench: Bench) -> None:
    bench.create("a")
    bench.create("b")
    bench.commit(1)
    bench.heard()
    bench.lose()
    assert bench.heard() == [("create b", "NOT_CONTROLLER")]
    bench.create("c")
    assert bench.heard() == [("create c", "NOT_CONTROLLER")]
    bench.lead()
    bench.create("b")
    bench.create("a")
    bench.commit()
    assert bench.heard() == [("create b", "NONE"), ("create a", "TOPIC_ALREADY_EXISTS")]
    assert bench.publisher.image.epoch == 2


def test_a_log_that_failed_is_told_as_such(bench: Bench) -> None:
    bench.create("a")
    bench.lose(ErrorCode.KAFKA_STORAGE_ERROR)
    bench.create("b")
    assert bench.heard() == [("create a", "KAFKA_STORAGE_ERROR"), ("create b", "KAFKA_STORAGE_ERROR")]


def test_what_cannot_be_appended_was_not_decided(bench: Bench) -> None:
    bench.refuses = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    bench.create("a")
    assert bench.heard() == [("create a", "UNKNOWN_SERVER_ERROR")]
    bench.refuses = None
    bench.create("a")
    bench.commit()
    assert bench.heard() == [("create a", "NONE")]


def test_who_fails_to_take_an_answer_holds_up_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(reply: object) -> None:
        raise RuntimeError("it cannot")

    bench.runtime.submit(CreateTopics([]), fail)
    bench.create("a")
    bench.commit()
    assert bench.heard() == [("create a", "NONE")]
    assert "Callback of a controller command failed" in caplog.text


def test_the_version_of_the_quorum_goes_up_with_the_command_that_asks_for_it(bench: Bench) -> None:
    for validate_only, expected in ((True, 0), (False, 1), (False, 1)):
        updates = {"kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE)}
        bench.submit(UpdateFeatures(updates, validate_only, bench.kraft_version), "kraft")
        bench.commit()
        assert bench.heard() == [("kraft", None)]
        assert bench.kraft_version == expected


def test_the_quorum_may_be_against_a_version_of_its_own(bench: Bench) -> None:
    bench.refuses_version = ApiError(ErrorCode.INVALID_UPDATE_VERSION, "a voter knows none such")
    updates = {
        "kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE),
        "group.version": FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE),
    }
    before = bench.publisher.image.features
    for validate_only in (True, False):
        bench.submit(UpdateFeatures(updates, validate_only), "kraft")
        bench.commit()
        fault = Fault(ErrorCode.INVALID_UPDATE_VERSION, "a voter knows none such")
        assert bench.heard() == [("kraft", fault)]
    assert (bench.publisher.image.features, bench.kraft_version) == (before, 0)
