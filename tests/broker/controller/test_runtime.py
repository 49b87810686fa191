"""The runtime of the active controller: the state that it decides on, and when it responds."""

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
from kwire.broker.metadata.batches import MetadataBatch
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
from tests.broker.controller.conftest import DIRECTORY, StubConfigRules


class RuntimeHarness:
    """A runtime on a log in memory, which commits when a test requests it."""

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
        self.append_error: ApiError | None = None
        self.version_error: ApiError | None = None
        self.runtime = ControllerRuntime(
            Controller(1, StubConfigRules(), TopicDefaults(1, 1)),
            self,
            self.publisher,
            self.host,
            heartbeats=BrokerHeartbeatManager(1, session_timeout_ms=9_000),
            periods=periods,
            bootstrap=lambda: self.bootstrap,
        )
        self.responses: list[object] = []

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        if self.append_error is not None:
            raise self.append_error
        base_offset, self.end_offset = self.end_offset, self.end_offset + len(records)
        found = [record for record, _ in records]
        self.appended.append(MetadataBatch(base_offset, self.end_offset - 1, self.epoch, found, delta=delta))
        return self.end_offset - 1

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> None:
        if self.version_error is not None:
            raise self.version_error
        if not validate_only:
            self.kraft_version = version

    def become_active(self) -> None:
        self.epoch += 1
        self.runtime.became_leader(self.epoch)

    def commit(self, batches: int | None = None) -> None:
        """Commit batches as the quorum does: replay each batch, then notify the runtime."""
        for batch in self.appended[:batches]:
            self.publisher.handle_commit([batch])
            self.runtime.committed(batch.last_offset)
        del self.appended[:batches]

    def resign(self, code: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        """Lose the leadership to a controller that has no uncommitted batch."""
        self.appended.clear()
        self.end_offset = self.publisher.image.offset + 1
        self.runtime.resigned(ApiError(code))

    def submit(self, command: Command, name: str) -> None:
        def done(reply: Any) -> None:
            if isinstance(reply, ApiError):
                self.responses.append((name, reply.code.name))
            elif isinstance(command, CreateTopics):
                self.responses.append((name, ErrorCode(reply[0].error_code).name))
            else:
                self.responses.append((name, reply))

        before = list(self.responses)
        self.runtime.submit(command, done)
        assert self.responses == before, "no callback runs before submit returns"

    def create(self, name: str, *, validate_only: bool = False) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=-1, assignments=[], configs=[])
        self.submit(CreateTopics([topic], validate_only), f"create {name}")

    def take_responses(self) -> list[object]:
        self.host.run_pending()
        take_responses, self.responses = self.responses, []
        return take_responses


@pytest.fixture
def harness() -> RuntimeHarness:
    """Return an active runtime of a cluster with one broker."""
    other = RuntimeHarness()
    other.become_active()
    endpoints = [EndpointImage("PLAINTEXT", "127.0.0.1", 9092)]
    registration = RegisterBroker(1, Uuid(bytes(16)), endpoints, registered_features(), None, [DIRECTORY])
    other.submit(registration, "register")
    other.commit()
    offset = other.publisher.image.offset
    other.submit(BrokerHeartbeat(1, offset, offset, want_fence=False, want_shut_down=False), "unfence")
    other.commit()
    other.responses.clear()
    return other


def test_an_inactive_controller_returns_not_controller() -> None:
    harness = RuntimeHarness()
    assert not harness.runtime.is_active
    harness.create("a")
    assert harness.take_responses() == [("create a", "NOT_CONTROLLER")]
    assert harness.appended == []


def test_the_first_active_controller_writes_the_bootstrap_records() -> None:
    harness = RuntimeHarness()
    harness.become_active()
    assert harness.runtime.is_active
    [batch] = harness.appended
    assert isinstance(batch.records[0], BeginTransactionRecord)
    harness.commit()
    assert harness.publisher.image.metadata_version == dict(default_features())["metadata.version"]
    harness.resign()
    harness.become_active()
    assert harness.appended == [], "the bootstrap records are written once"


def test_an_unfinished_metadata_transaction_is_aborted(harness: RuntimeHarness) -> None:
    harness.resign()
    begun = MetadataBatch(harness.end_offset, harness.end_offset, 2, [BeginTransactionRecord(name="t")])
    harness.end_offset += 1
    harness.publisher.handle_commit([begun])
    harness.become_active()
    [batch] = harness.appended
    assert [type(record) for record in batch.records] == [AbortTransactionRecord]
    harness.commit()
    assert not harness.publisher.is_transaction_open


def test_a_command_sees_uncommitted_changes(harness: RuntimeHarness) -> None:
    harness.create("a")
    harness.create("b")
    harness.create("a")
    assert len(harness.appended) == 2
    assert harness.take_responses() == [], (
        "an error also waits until the state that it depends on is committed"
    )
    harness.commit(1)
    assert harness.take_responses() == [("create a", "NONE")]
    harness.commit()
    assert harness.take_responses() == [("create b", "NONE"), ("create a", "TOPIC_ALREADY_EXISTS")]


def test_decided_deltas_are_published(harness: RuntimeHarness) -> None:
    harness.create("a")
    [batch] = harness.appended
    assert batch.delta is not None
    assert batch.delta.image is harness.publisher.image
    harness.create("b")
    harness.commit()
    assert set(harness.publisher.image.topics) == {"a", "b"}


def test_a_follower_of_the_log_has_the_same_image(harness: RuntimeHarness) -> None:
    follower = MetadataPublisher(harness.host)
    other = RuntimeHarness()
    other.become_active()
    for batch in other.appended:
        follower.handle_commit([batch._replace(delta=None)])
    other.commit()
    assert follower.image.features == other.publisher.image.features
    assert follower.image.configs == other.publisher.image.configs
    assert follower.image.offset == other.publisher.image.offset


def test_a_callback_sees_the_image_of_its_commit(harness: RuntimeHarness) -> None:
    seen = []
    harness.runtime.submit(
        CreateTopics([CreatableTopic(name="a", num_partitions=1, replication_factor=1)]),
        lambda reply: seen.append(set(harness.publisher.image.topics)),
    )
    harness.commit()
    assert seen == [{"a"}]


def test_a_command_without_records_gets_a_response_in_the_same_turn(harness: RuntimeHarness) -> None:
    harness.create("a", validate_only=True)
    assert harness.take_responses() == [("create a", "NONE")]
    harness.submit(AllocateProducerIds(1, broker_epoch=-7), "ids")
    assert harness.take_responses() == [("ids", "STALE_BROKER_EPOCH")]
    assert harness.appended == []


def test_uncommitted_changes_are_dropped_on_resignation(harness: RuntimeHarness) -> None:
    harness.create("a")
    harness.create("b")
    harness.commit(1)
    harness.take_responses()
    harness.resign()
    assert harness.take_responses() == [("create b", "NOT_CONTROLLER")]
    harness.create("c")
    assert harness.take_responses() == [("create c", "NOT_CONTROLLER")]
    harness.become_active()
    harness.create("b")
    harness.create("a")
    harness.commit()
    assert harness.take_responses() == [("create b", "NONE"), ("create a", "TOPIC_ALREADY_EXISTS")]
    assert harness.publisher.image.epoch == 2


def test_commands_after_a_log_failure_return_storage_error(harness: RuntimeHarness) -> None:
    harness.create("a")
    harness.resign(ErrorCode.KAFKA_STORAGE_ERROR)
    harness.create("b")
    assert harness.take_responses() == [
        ("create a", "KAFKA_STORAGE_ERROR"),
        ("create b", "KAFKA_STORAGE_ERROR"),
    ]


def test_a_failed_append_discards_the_decision(harness: RuntimeHarness) -> None:
    harness.append_error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    harness.create("a")
    assert harness.take_responses() == [("create a", "UNKNOWN_SERVER_ERROR")]
    harness.append_error = None
    harness.create("a")
    harness.commit()
    assert harness.take_responses() == [("create a", "NONE")]


def test_a_failing_callback_does_not_stop_the_others(
    harness: RuntimeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(reply: object) -> None:
        raise RuntimeError("planned failure")

    harness.runtime.submit(CreateTopics([]), fail)
    harness.create("a")
    harness.commit()
    assert harness.take_responses() == [("create a", "NONE")]
    assert "The callback of a controller command failed" in caplog.text


def test_update_features_raises_the_kraft_version(harness: RuntimeHarness) -> None:
    for validate_only, expected in ((True, 0), (False, 1), (False, 1)):
        updates = {"kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE)}
        harness.submit(UpdateFeatures(updates, validate_only, harness.kraft_version), "kraft")
        harness.commit()
        assert harness.take_responses() == [("kraft", None)]
        assert harness.kraft_version == expected


def test_a_refused_kraft_version_stops_all_updates(harness: RuntimeHarness) -> None:
    harness.version_error = ApiError(ErrorCode.INVALID_UPDATE_VERSION, "a voter knows none such")
    updates = {
        "kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE),
        "group.version": FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE),
    }
    before = harness.publisher.image.features
    for validate_only in (True, False):
        harness.submit(UpdateFeatures(updates, validate_only), "kraft")
        harness.commit()
        fault = Fault(ErrorCode.INVALID_UPDATE_VERSION, "a voter knows none such")
        assert harness.take_responses() == [("kraft", fault)]
    assert (harness.publisher.image.features, harness.kraft_version) == (before, 0)
