"""A broker's life alone, move by move: what it asks of the controller, and what takes it further."""

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
LET_GO = BrokerHeartbeatReply(is_caught_up=True, is_fenced=True, should_shut_down=True)


class Bench:
    """A broker, and a controller that answers when a test says so."""

    def __init__(self) -> None:
        self.host = VirtualHost()
        self.asked: list[tuple[Command, OnDone[Any]]] = []
        self.image = MetadataImage()
        self.told: list[str] = []
        self.is_alone = False
        self.life = BrokerLifecycleManager(
            self,
            self.host,
            1,
            LifecycleSettings(HEARTBEAT_MS, 9_000, 60_000, 30_000),
            image=lambda: self.image,
            is_only_broker=lambda: self.is_alone,
            on_caught_up=lambda: self.told.append("caught up"),
            on_unfenced=lambda: self.told.append("unfenced"),
            on_shutdown_allowed=lambda: self.told.append("gone"),
            on_failed=self.told.append,
        )

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        assert not self.asked, "one is under way at a time"
        self.asked.append((command, on_done))

    def answer(self, reply: Any) -> Any:
        command, on_done = self.asked.pop(0)
        on_done(reply)
        self.host.run_pending()
        return command

    def heartbeat(self, reply: BrokerHeartbeatReply) -> BrokerHeartbeat:
        """What is asked now, without time to pass."""
        self.host.advance(0)
        heartbeat = self.answer(reply)
        assert isinstance(heartbeat, BrokerHeartbeat)
        return heartbeat

    def publish(self, offset: int, *records: Any) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.apply(offset, 1)
        self.life.image_changed(self.image, delta)
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

    def come_to(self, stage: LifecycleStage) -> None:
        """The way there, but for LEAVING and GONE; with nothing under way."""
        self.life.start(REGISTRATION)
        if stage is LifecycleStage.STARTING:
            return
        self.answer(EPOCH)
        if stage is LifecycleStage.REGISTERED:
            self.heartbeat(FENCED)
            return
        self.publish_registration()
        self.heartbeat(FENCED)
        if stage is LifecycleStage.CAUGHT_UP:
            return
        self.life.opened()
        self.heartbeat(FENCED if stage is LifecycleStage.OPEN else UNFENCED)
        assert self.life.stage is stage


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_way_in(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    assert (bench.life.stage, bench.life.broker_epoch) == (LifecycleStage.STARTING, -1)
    assert bench.answer(EPOCH) is REGISTRATION
    assert (bench.life.stage, bench.life.broker_epoch) == (LifecycleStage.REGISTERED, EPOCH)
    first = bench.heartbeat(FENCED)
    assert (first.broker_epoch, first.want_fence, first.want_shut_down) == (EPOCH, True, False)
    assert first.cordoned_log_dirs is None
    bench.publish(EPOCH + 5)
    assert bench.life.stage is LifecycleStage.REGISTERED, "the metadata may be there without the registration"
    bench.publish_registration()
    assert (bench.life.stage, bench.told) == (LifecycleStage.CAUGHT_UP, ["caught up"])
    bench.host.advance(CATCH_UP_INTERVAL_MS)
    second = bench.heartbeat(FENCED)
    assert (second.current_metadata_offset, second.want_fence) == (EPOCH + 2, True)
    bench.life.opened()
    assert bench.heartbeat(FENCED).want_fence is False
    assert (bench.life.stage, bench.told) == (LifecycleStage.OPEN, ["caught up"])
    bench.host.advance(HEARTBEAT_MS)
    bench.heartbeat(UNFENCED)
    assert (bench.life.stage, bench.told) == (LifecycleStage.UNFENCED, ["caught up", "unfenced"])
    bench.host.advance(HEARTBEAT_MS - 1)
    assert bench.asked == []
    bench.host.advance(1)
    assert len(bench.asked) == 1


def test_metadata_that_was_there_before_the_answer_counts(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    bench.publish_registration()
    assert bench.life.stage is LifecycleStage.STARTING
    bench.answer(EPOCH)
    assert (bench.life.stage, bench.told) == (LifecycleStage.CAUGHT_UP, ["caught up"])


def test_all_of_it_can_happen_while_nothing_else_does(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    bench.publish_registration()
    (_, on_done), *bench.asked = bench.asked
    on_done(EPOCH)
    bench.life.opened()
    (heartbeat, on_done), *bench.asked = bench.asked
    assert isinstance(heartbeat, BrokerHeartbeat)
    assert not heartbeat.want_fence
    on_done(UNFENCED)
    assert bench.life.stage is LifecycleStage.UNFENCED


def test_it_asks_again_with_growing_pauses(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    for pause_ms in (100, 200, 400, 800, 1_600, 3_200, 6_400, 9_000, 9_000):
        bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
        bench.host.advance(int(pause_ms * 0.97))
        assert bench.asked == []
        bench.host.advance(pause_ms - int(pause_ms * 0.97) + int(pause_ms * 0.03))
        assert [command for command, _ in bench.asked] == [REGISTRATION]
    bench.answer(EPOCH)
    bench.heartbeat(FENCED)
    bench.host.advance(CATCH_UP_INTERVAL_MS)
    bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
    bench.host.advance(110)
    assert len(bench.asked) == 1, "the pauses begin anew after a success"


def test_the_end_of_its_last_session_is_not_missed_for_long(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    for _ in range(20):
        bench.answer(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        bench.host.advance(520)
        assert [command for command, _ in bench.asked] == [REGISTRATION]


def test_a_new_controller_is_asked_at_once(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
    bench.life.send_now()
    assert len(bench.asked) == 1
    bench.life.send_now()
    bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
    assert bench.asked == [], "never at once after a failure"


def test_a_lost_session_is_only_a_fence(bench: Bench) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    bench.host.advance(HEARTBEAT_MS)
    bench.heartbeat(FENCED)
    bench.host.advance(HEARTBEAT_MS)
    assert bench.heartbeat(UNFENCED).broker_epoch == EPOCH
    assert bench.told == ["caught up", "unfenced"]


def test_who_reads_of_its_own_fence_after_failures_says_at_once_that_it_lives(bench: Bench) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    bench.host.advance(HEARTBEAT_MS)
    for _ in range(12):
        bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
        bench.host.advance(HEARTBEAT_MS * 11 // 10)
        assert len(bench.asked) == 1, "however often it has failed, it is asked as often as it would be"
    bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
    for offset, fenced in ((EPOCH + 19, -1), (EPOCH + 20, 1)):
        assert bench.asked == []
        bench.publish(
            offset, stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=EPOCH, fenced=fenced)
        )
    assert bench.heartbeat(UNFENCED).current_metadata_offset == EPOCH + 20


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_one_that_was_forgotten_registers_again(bench: Bench, code: ErrorCode) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    bench.host.advance(HEARTBEAT_MS)
    bench.answer(ApiError(code))
    bench.host.advance(110)
    assert bench.answer(EPOCH + 10) == REGISTRATION._replace(previous_broker_epoch=EPOCH)
    assert bench.life.broker_epoch == EPOCH + 10
    heartbeat = bench.heartbeat(UNFENCED)
    assert (heartbeat.broker_epoch, heartbeat.want_fence) == (EPOCH + 10, False)


def test_a_broker_that_is_alone_with_itself_says_nothing(bench: Bench) -> None:
    bench.is_alone = True
    bench.come_to(LifecycleStage.UNFENCED)
    bench.host.advance(100 * HEARTBEAT_MS)
    assert bench.asked == []
    bench.publish(EPOCH + 20)
    bench.host.advance(0)
    assert bench.asked == []
    bench.is_alone = False
    bench.publish(EPOCH + 21)
    assert bench.heartbeat(UNFENCED).current_metadata_offset == EPOCH + 21


# --- the end


def test_the_way_out(bench: Bench) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    bench.life.begin_controlled_shutdown()
    bench.life.begin_controlled_shutdown()
    assert bench.life.stage is LifecycleStage.CONTROLLED_SHUTDOWN
    heartbeat = bench.heartbeat(UNFENCED)
    assert (heartbeat.want_fence, heartbeat.want_shut_down) == (False, True)
    bench.host.advance(FIRST_SHUTDOWN_INTERVAL_MS)
    bench.heartbeat(UNFENCED)
    bench.host.advance(SHUTDOWN_INTERVAL_MS)
    assert bench.told == ["caught up", "unfenced"]
    bench.heartbeat(LET_GO)
    assert (bench.life.stage, bench.told[2:]) == (LifecycleStage.STOPPED, ["gone"])
    bench.host.advance(10 * HEARTBEAT_MS)
    assert (bench.asked, bench.host.timers) == ([], 0)


@pytest.mark.parametrize(
    "stage",
    [LifecycleStage.STARTING, LifecycleStage.REGISTERED, LifecycleStage.CAUGHT_UP, LifecycleStage.OPEN],
)
def test_whoever_leads_nothing_just_goes(bench: Bench, stage: LifecycleStage) -> None:
    bench.come_to(stage)
    bench.life.begin_controlled_shutdown()
    bench.host.run_pending()
    assert (bench.life.stage, bench.told[-1:]) == (LifecycleStage.STOPPED, ["gone"])
    for _, on_done in list(bench.asked):
        on_done(EPOCH if stage is LifecycleStage.STARTING else UNFENCED)
    bench.publish_registration()
    bench.host.advance(100_000)
    assert (bench.life.stage, bench.host.timers) == (LifecycleStage.STOPPED, 0)


def test_it_leaves_behind_the_heartbeat_that_is_under_way(bench: Bench) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    bench.host.advance(HEARTBEAT_MS)
    bench.life.begin_controlled_shutdown()
    assert not bench.heartbeat(UNFENCED).want_shut_down
    assert bench.heartbeat(LET_GO).want_shut_down
    assert bench.life.stage is LifecycleStage.STOPPED


def test_who_is_never_registered_gives_up(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    for _ in range(20):
        if bench.asked:
            bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
        bench.host.advance(4_000)
    assert len(bench.told) == 1
    assert "initial.broker.registration.timeout.ms" in bench.told[0]


def test_one_that_registered_in_time_may_take_long_for_the_rest(bench: Bench) -> None:
    bench.come_to(LifecycleStage.REGISTERED)
    bench.host.advance(100_000)
    assert bench.told == []


# --- directories


def test_what_becomes_of_directories_is_in_the_heartbeats(bench: Bench) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    gone, full = Uuid(b"g" * 16), Uuid(b"f" * 16)
    bench.life.report_directories([gone], [full])
    assert bench.heartbeat(UNFENCED).offline_log_dirs == (gone,)
    bench.life.report_directories([gone], [full])
    assert bench.asked == [], "nothing is new"
    bench.publish(EPOCH + 9, stored.FeatureLevelRecord(name="metadata.version", feature_level=30))
    bench.host.advance(HEARTBEAT_MS)
    heartbeat = bench.heartbeat(UNFENCED)
    assert (heartbeat.offline_log_dirs, heartbeat.cordoned_log_dirs) == ((gone,), (full,))
    bench.host.advance(40_000)
    assert bench.told == ["caught up", "unfenced"]


def test_who_cannot_tell_of_a_failed_directory_gives_up(bench: Bench) -> None:
    bench.come_to(LifecycleStage.UNFENCED)
    bench.life.report_directories([Uuid(b"g" * 16)], [])
    bench.host.advance(40_000)
    assert "log.dir.failure.timeout.ms" in bench.told[-1]


def test_directories_are_told_when_the_cluster_has_come_to_know_of_them(bench: Bench) -> None:
    bench.life.start(REGISTRATION._replace(log_dirs=[Uuid(b"d" * 16)]))
    bench.answer(EPOCH)
    bench.publish_registration()
    bench.heartbeat(FENCED)
    bench.life.opened()
    bench.heartbeat(UNFENCED)
    bench.publish(EPOCH + 3, stored.FeatureLevelRecord(name="metadata.version", feature_level=14))
    assert bench.asked == []
    bench.publish(EPOCH + 4, stored.FeatureLevelRecord(name="metadata.version", feature_level=30))
    assert isinstance(bench.answer(EPOCH), RegisterBroker)
    assert bench.heartbeat(UNFENCED).broker_epoch == EPOCH


# --- what the operator hears


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "belongs to another cluster than these log directories"),
        (ErrorCode.UNSUPPORTED_VERSION, "kafka-features downgrade --feature share.version=0"),
    ],
)
def test_a_refusal_is_told_once_with_what_to_do(
    bench: Bench, caplog: pytest.LogCaptureFixture, code: ErrorCode, said: str
) -> None:
    bench.publish(3, stored.FeatureLevelRecord(name="share.version", feature_level=1))
    bench.life.start(REGISTRATION)
    for _ in range(3):
        bench.answer(ApiError(code))
        bench.host.advance(1_000)
    assert caplog.text.count(said) == 1


def test_a_twin_is_told_of_once_the_last_life_must_be_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.life.start(REGISTRATION)
    for _ in range(60):
        bench.answer(ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        bench.host.advance(520)
    told = [(record.levelname, record.message) for record in caplog.records]
    assert [level for level, _ in told] == ["INFO", "ERROR"]
    assert "last run" in told[0][1]
    assert "another broker runs with node.id 1" in told[1][1]


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
def test_every_move_is_legal_or_a_fault_of_ours(
    bench: Bench, stage: LifecycleStage, event: LifecycleEvent
) -> None:
    assert TRANSITIONS.keys() == KAFKA_STATES.keys() == set(LifecycleStage)
    bench.life.stage = stage
    following = LEGAL.get((stage, event))
    if following is None:
        with pytest.raises(AssertionError, match=f"event {event.name} in stage {stage.name}"):
            bench.life._transition(event)
        assert bench.life.stage is stage
    else:
        bench.life._transition(event)
        assert bench.life.stage is following
