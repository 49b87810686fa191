"""The broker lifecycle alone: its requests to the controller, and the triggers of each stage change."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kwire.broker.controller.commands import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    Command,
    OnDone,
    RegisterBroker,
)
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.node.broker_lifecycle import (
    CATCH_UP_INTERVAL_MS,
    FIRST_SHUTDOWN_INTERVAL_MS,
    KAFKA_STATES,
    SHUTDOWN_INTERVAL_MS,
    TRANSITIONS,
    BrokerLifecycleManager,
    LifecycleEvent,
    LifecycleSettings,
    LifecycleStage,
)
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.records import metadata as stored

EPOCH = 17
HEARTBEAT_MS = 2_000
REGISTRATION = RegisterBroker(1, Uuid(bytes(16)), [], {"share.version": (0, 0)}, None, [])
FENCED = BrokerHeartbeatReply(is_caught_up=True, is_fenced=True, should_shut_down=False)
UNFENCED = BrokerHeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)
SHUTDOWN_ALLOWED = BrokerHeartbeatReply(is_caught_up=True, is_fenced=True, should_shut_down=True)


class LifecycleHarness:
    """A broker lifecycle, and a controller whose responses the test gives."""

    def __init__(self) -> None:
        self.host = VirtualHost()
        self.pending: list[tuple[Command, OnDone[Any]]] = []
        self.image = MetadataImage()
        self.events: list[str] = []
        self.is_alone = False
        self.lifecycle = BrokerLifecycleManager(
            self,
            self.host,
            1,
            LifecycleSettings(HEARTBEAT_MS, 9_000, 60_000, 30_000, "User:node must be in super.users"),
            image=lambda: self.image,
            is_only_broker=lambda: self.is_alone,
            on_caught_up=lambda: self.events.append("caught up"),
            on_unfenced=lambda: self.events.append("unfenced"),
            on_shutdown_allowed=lambda: self.events.append("gone"),
            on_failed=self.events.append,
        )

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        assert not self.pending, "one request at a time"
        self.pending.append((command, on_done))

    def respond(self, reply: Any) -> Any:
        command, on_done = self.pending.pop(0)
        on_done(reply)
        self.host.run_pending()
        return command

    def heartbeat(self, reply: BrokerHeartbeatReply) -> BrokerHeartbeat:
        """Respond to the heartbeat that is due now, and return it."""
        self.host.advance(0)
        heartbeat = self.respond(reply)
        assert isinstance(heartbeat, BrokerHeartbeat)
        return heartbeat

    def publish(self, offset: int, *records: Any) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.apply(offset, 1)
        self.lifecycle.image_changed(self.image, delta)
        self.host.run_pending()

    def publish_registration(self, broker_epoch: int = EPOCH) -> None:
        record = stored.RegisterBrokerRecord(
            broker_id=1,
            broker_epoch=broker_epoch,
            incarnation_id=REGISTRATION.incarnation_id,
            end_points=[],
            features=[],
        )
        self.publish(broker_epoch + 2, record)

    def advance_to(self, stage: LifecycleStage) -> None:
        """Start, and advance to a stage up to UNFENCED, without a pending request."""
        self.lifecycle.start(REGISTRATION)
        if stage is LifecycleStage.STARTING:
            return
        self.respond(EPOCH)
        if stage is LifecycleStage.REGISTERED:
            self.heartbeat(FENCED)
            return
        self.publish_registration()
        self.heartbeat(FENCED)
        if stage is LifecycleStage.CAUGHT_UP:
            return
        self.lifecycle.opened()
        self.heartbeat(FENCED if stage is LifecycleStage.OPEN else UNFENCED)
        assert self.lifecycle.stage is stage


@pytest.fixture
def harness() -> LifecycleHarness:
    return LifecycleHarness()


def test_start_until_unfenced(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    assert (harness.lifecycle.stage, harness.lifecycle.broker_epoch) == (LifecycleStage.STARTING, -1)
    assert harness.respond(EPOCH) is REGISTRATION
    assert (harness.lifecycle.stage, harness.lifecycle.broker_epoch) == (LifecycleStage.REGISTERED, EPOCH)
    first = harness.heartbeat(FENCED)
    assert (first.broker_epoch, first.want_fence, first.want_shut_down) == (EPOCH, True, False)
    assert first.cordoned_log_dirs is None
    harness.publish(EPOCH + 5)
    assert harness.lifecycle.stage is LifecycleStage.REGISTERED, "the metadata may lack the registration"
    harness.publish_registration()
    assert (harness.lifecycle.stage, harness.events) == (LifecycleStage.CAUGHT_UP, ["caught up"])
    harness.host.advance(CATCH_UP_INTERVAL_MS)
    second = harness.heartbeat(FENCED)
    assert (second.current_metadata_offset, second.want_fence) == (EPOCH + 2, True)
    harness.lifecycle.opened()
    assert harness.heartbeat(FENCED).want_fence is False
    assert (harness.lifecycle.stage, harness.events) == (LifecycleStage.OPEN, ["caught up"])
    harness.host.advance(HEARTBEAT_MS)
    harness.heartbeat(UNFENCED)
    assert (harness.lifecycle.stage, harness.events) == (LifecycleStage.UNFENCED, ["caught up", "unfenced"])
    harness.host.advance(HEARTBEAT_MS - 1)
    assert harness.pending == []
    harness.host.advance(1)
    assert len(harness.pending) == 1


def test_registration_record_before_the_response_counts(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    harness.publish_registration()
    assert harness.lifecycle.stage is LifecycleStage.STARTING
    harness.respond(EPOCH)
    assert (harness.lifecycle.stage, harness.events) == (LifecycleStage.CAUGHT_UP, ["caught up"])


def test_start_completes_without_other_events(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    harness.publish_registration()
    (_, on_done), *harness.pending = harness.pending
    on_done(EPOCH)
    harness.lifecycle.opened()
    (heartbeat, on_done), *harness.pending = harness.pending
    assert isinstance(heartbeat, BrokerHeartbeat)
    assert not heartbeat.want_fence
    on_done(UNFENCED)
    assert harness.lifecycle.stage is LifecycleStage.UNFENCED


def test_retry_backoff_grows_and_is_reset(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    for pause_ms in (100, 200, 400, 800, 1_600, 3_200, 6_400, 9_000, 9_000):
        harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
        harness.host.advance(int(pause_ms * 0.97))
        assert harness.pending == []
        harness.host.advance(pause_ms - int(pause_ms * 0.97) + int(pause_ms * 0.03))
        assert [command for command, _ in harness.pending] == [REGISTRATION]
    harness.respond(EPOCH)
    harness.heartbeat(FENCED)
    harness.host.advance(CATCH_UP_INTERVAL_MS)
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.host.advance(110)
    assert len(harness.pending) == 1, "a success resets the backoff"


def test_duplicate_registration_is_retried_within_a_short_backoff(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    for _ in range(20):
        harness.respond(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        harness.host.advance(520)
        assert [command for command, _ in harness.pending] == [REGISTRATION]


def test_broker_registers_at_once_when_the_session_of_its_previous_run_ends(
    harness: LifecycleHarness,
) -> None:
    previous = stored.RegisterBrokerRecord(
        broker_id=1, broker_epoch=3, incarnation_id=Uuid(b"p" * 16), end_points=[], features=[], fenced=False
    )
    harness.publish(3, previous)
    harness.lifecycle.start(REGISTRATION)
    for _ in range(3):
        harness.respond(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        harness.host.advance(520)
    harness.respond(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
    harness.publish(4, stored.NoOpRecord())
    assert harness.pending == []
    fenced = stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=3, fenced=1)
    harness.publish(5, fenced)
    assert [command for command, _ in harness.pending] == [REGISTRATION]
    harness.respond(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
    harness.publish(6, stored.NoOpRecord())
    assert harness.pending == []


def test_new_controller_gets_a_heartbeat_at_once(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.lifecycle.send_now()
    assert len(harness.pending) == 1
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    harness.host.advance(90)
    assert harness.pending == [], "a failure backs off"


@pytest.mark.parametrize("stage", [LifecycleStage.STARTING, LifecycleStage.UNFENCED])
def test_new_controller_during_a_request_ends_the_backoff_of_its_failure(
    harness: LifecycleHarness, stage: LifecycleStage
) -> None:
    harness.advance_to(stage)
    harness.host.advance(HEARTBEAT_MS)
    for backoff_ms in (100, 200, 400, 800):
        harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
        harness.host.advance(2 * backoff_ms)
    harness.lifecycle.send_now()
    harness.respond(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    harness.host.advance(0)
    assert len(harness.pending) == 1
    harness.respond(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    harness.host.advance(90)
    assert harness.pending == []
    harness.host.advance(20)
    assert len(harness.pending) == 1, "the backoff starts from its minimum"


def test_session_timeout_only_fences_the_broker(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.host.advance(HEARTBEAT_MS)
    harness.heartbeat(FENCED)
    harness.host.advance(HEARTBEAT_MS)
    assert harness.heartbeat(UNFENCED).broker_epoch == EPOCH
    assert harness.events == ["caught up", "unfenced"]


def test_broker_that_reads_its_own_fencing_sends_a_heartbeat_at_once(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.host.advance(HEARTBEAT_MS)
    for _ in range(12):
        harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
        harness.host.advance(HEARTBEAT_MS * 11 // 10)
        assert len(harness.pending) == 1, "failures do not add heartbeats"
    harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
    for offset, fenced in ((EPOCH + 19, -1), (EPOCH + 20, 1)):
        assert harness.pending == []
        harness.publish(
            offset, stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=EPOCH, fenced=fenced)
        )
    assert harness.heartbeat(UNFENCED).current_metadata_offset == EPOCH + 20


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_unregistered_broker_registers_again(harness: LifecycleHarness, code: ErrorCode) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.host.advance(HEARTBEAT_MS)
    harness.respond(ApiError(code))
    harness.host.advance(110)
    assert harness.respond(EPOCH + 10) == REGISTRATION._replace(previous_broker_epoch=EPOCH)
    assert harness.lifecycle.broker_epoch == EPOCH + 10
    heartbeat = harness.heartbeat(UNFENCED)
    assert (heartbeat.broker_epoch, heartbeat.want_fence) == (EPOCH + 10, False)


def test_only_broker_of_a_combined_node_sends_no_heartbeats(harness: LifecycleHarness) -> None:
    harness.is_alone = True
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.host.advance(100 * HEARTBEAT_MS)
    assert harness.pending == []
    harness.publish(EPOCH + 20)
    harness.host.advance(0)
    assert harness.pending == []
    harness.is_alone = False
    harness.publish(EPOCH + 21)
    assert harness.heartbeat(UNFENCED).current_metadata_offset == EPOCH + 21


# --- shutdown


def test_controlled_shutdown(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.lifecycle.begin_controlled_shutdown()
    harness.lifecycle.begin_controlled_shutdown()
    assert harness.lifecycle.stage is LifecycleStage.CONTROLLED_SHUTDOWN
    heartbeat = harness.heartbeat(UNFENCED)
    assert (heartbeat.want_fence, heartbeat.want_shut_down) == (False, True)
    harness.host.advance(FIRST_SHUTDOWN_INTERVAL_MS)
    harness.heartbeat(UNFENCED)
    harness.host.advance(SHUTDOWN_INTERVAL_MS)
    assert harness.events == ["caught up", "unfenced"]
    harness.heartbeat(SHUTDOWN_ALLOWED)
    assert (harness.lifecycle.stage, harness.events[2:]) == (LifecycleStage.STOPPED, ["gone"])
    harness.host.advance(10 * HEARTBEAT_MS)
    assert (harness.pending, harness.host.timers) == ([], 0)


@pytest.mark.parametrize(
    "stage",
    [LifecycleStage.STARTING, LifecycleStage.REGISTERED, LifecycleStage.CAUGHT_UP, LifecycleStage.OPEN],
)
def test_shutdown_before_unfencing_ends_at_once(harness: LifecycleHarness, stage: LifecycleStage) -> None:
    harness.advance_to(stage)
    harness.lifecycle.begin_controlled_shutdown()
    harness.host.run_pending()
    assert (harness.lifecycle.stage, harness.events[-1:]) == (LifecycleStage.STOPPED, ["gone"])
    for _, on_done in list(harness.pending):
        on_done(EPOCH if stage is LifecycleStage.STARTING else UNFENCED)
    harness.publish_registration()
    harness.host.advance(100_000)
    assert (harness.lifecycle.stage, harness.host.timers) == (LifecycleStage.STOPPED, 0)


def test_shutdown_does_not_wait_for_a_pending_heartbeat(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.host.advance(HEARTBEAT_MS)
    harness.lifecycle.begin_controlled_shutdown()
    assert not harness.heartbeat(UNFENCED).want_shut_down
    assert harness.heartbeat(SHUTDOWN_ALLOWED).want_shut_down
    assert harness.lifecycle.stage is LifecycleStage.STOPPED


def test_registration_timeout_fails_the_broker(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION)
    for _ in range(20):
        if harness.pending:
            harness.respond(ApiError(ErrorCode.NOT_CONTROLLER))
        harness.host.advance(4_000)
    assert len(harness.events) == 1
    assert "initial.broker.registration.timeout.ms" in harness.events[0]


def test_registration_timeout_does_not_limit_the_catch_up(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.REGISTERED)
    harness.host.advance(100_000)
    assert harness.events == []


# --- directories


def test_heartbeats_report_failed_and_cordoned_directories(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    gone, full = Uuid(b"g" * 16), Uuid(b"f" * 16)
    harness.lifecycle.report_directories([gone], [full])
    assert harness.heartbeat(UNFENCED).offline_log_dirs == (gone,)
    harness.lifecycle.report_directories([gone], [full])
    assert harness.pending == [], "nothing has changed"
    harness.publish(EPOCH + 9, stored.FeatureLevelRecord(name="metadata.version", feature_level=30))
    harness.host.advance(HEARTBEAT_MS)
    heartbeat = harness.heartbeat(UNFENCED)
    assert (heartbeat.offline_log_dirs, heartbeat.cordoned_log_dirs) == ((gone,), (full,))
    harness.host.advance(40_000)
    assert harness.events == ["caught up", "unfenced"]


def test_unreported_failed_directory_fails_the_broker(harness: LifecycleHarness) -> None:
    harness.advance_to(LifecycleStage.UNFENCED)
    harness.lifecycle.report_directories([Uuid(b"g" * 16)], [])
    harness.host.advance(40_000)
    assert "log.dir.failure.timeout.ms" in harness.events[-1]


def test_directory_callback_runs_once_the_metadata_has_the_change(harness: LifecycleHarness) -> None:
    harness.lifecycle.start(REGISTRATION._replace(log_dirs=[Uuid(b"d" * 16)]))
    harness.respond(EPOCH)
    harness.publish_registration()
    harness.heartbeat(FENCED)
    harness.lifecycle.opened()
    harness.heartbeat(UNFENCED)
    harness.publish(EPOCH + 3, stored.FeatureLevelRecord(name="metadata.version", feature_level=14))
    assert harness.pending == []
    harness.publish(EPOCH + 4, stored.FeatureLevelRecord(name="metadata.version", feature_level=30))
    assert isinstance(harness.respond(EPOCH), RegisterBroker)
    assert harness.heartbeat(UNFENCED).broker_epoch == EPOCH


# --- log lines


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "belongs to another cluster than these log directories"),
        (ErrorCode.UNSUPPORTED_VERSION, "kafka-features downgrade --feature share.version=0"),
    ],
)
def test_registration_error_is_logged_once_with_advice(
    harness: LifecycleHarness, caplog: pytest.LogCaptureFixture, code: ErrorCode, said: str
) -> None:
    harness.publish(3, stored.FeatureLevelRecord(name="share.version", feature_level=1))
    harness.lifecycle.start(REGISTRATION)
    for _ in range(3):
        harness.respond(ApiError(code))
        harness.host.advance(1_000)
    assert caplog.text.count(said) == 1


def test_duplicate_broker_id_is_logged_after_the_session_timeout(
    harness: LifecycleHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    harness.lifecycle.start(REGISTRATION)
    for _ in range(60):
        harness.respond(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        harness.host.advance(520)
    events = [(record.levelname, record.message) for record in caplog.records]
    assert [level for level, _ in events] == ["INFO", "ERROR"]
    assert "previous run" in events[0][1]
    assert "Cannot register broker 1 (DUPLICATE_BROKER_REGISTRATION)" in events[1][1]


LEGAL = {
    (LifecycleStage.STARTING, LifecycleEvent.REGISTRATION_WRITTEN): LifecycleStage.REGISTERED,
    (LifecycleStage.REGISTERED, LifecycleEvent.REGISTRATION_SEEN): LifecycleStage.CAUGHT_UP,
    (LifecycleStage.CAUGHT_UP, LifecycleEvent.OPENED): LifecycleStage.OPEN,
    (LifecycleStage.OPEN, LifecycleEvent.UNFENCING_WRITTEN): LifecycleStage.UNFENCED,
    (LifecycleStage.STARTING, LifecycleEvent.SHUTDOWN_REQUESTED): LifecycleStage.STOPPED,
    (LifecycleStage.REGISTERED, LifecycleEvent.SHUTDOWN_REQUESTED): LifecycleStage.STOPPED,
    (LifecycleStage.CAUGHT_UP, LifecycleEvent.SHUTDOWN_REQUESTED): LifecycleStage.STOPPED,
    (LifecycleStage.OPEN, LifecycleEvent.SHUTDOWN_REQUESTED): LifecycleStage.STOPPED,
    (LifecycleStage.UNFENCED, LifecycleEvent.SHUTDOWN_REQUESTED): LifecycleStage.CONTROLLED_SHUTDOWN,
    (LifecycleStage.CONTROLLED_SHUTDOWN, LifecycleEvent.SHUTDOWN_ALLOWED): LifecycleStage.STOPPED,
}


@pytest.mark.parametrize("event", LifecycleEvent)
@pytest.mark.parametrize("stage", LifecycleStage)
def test_stage_change_is_legal_or_raises(
    harness: LifecycleHarness, stage: LifecycleStage, event: LifecycleEvent
) -> None:
    assert TRANSITIONS.keys() == KAFKA_STATES.keys() == set(LifecycleStage)
    harness.lifecycle.stage = stage
    following = LEGAL.get((stage, event))
    if following is None:
        with pytest.raises(AssertionError, match=f"event {event.name} in stage {stage.name}"):
            harness.lifecycle._transition(event)
        assert harness.lifecycle.stage is stage
    else:
        harness.lifecycle._transition(event)
        assert harness.lifecycle.stage is following
