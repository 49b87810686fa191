"""A broker's life alone, move by move: what it asks of the controller, and what takes it further."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import Command, OnDone, RegisterBroker, ShutDownBroker, UnfenceBroker
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.node.life import MOVES, RETRY_BACKOFF_MS, BrokerLife, Event, Stage
from kwire.testing.virtual import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid

EPOCH = 17
REGISTRATION = RegisterBroker(1, Uuid(bytes(16)), [], {}, None, [])


class Bench:
    """A broker, and a controller that answers when a test says so."""

    def __init__(self) -> None:
        self.host = VirtualHost()
        self.asked: list[tuple[Command, OnDone[Any]]] = []
        self.image = MetadataImage()
        self.told: list[str] = []
        self.life = BrokerLife(
            self, self.host, 1, image=lambda: self.image, on_unfenced=lambda: self.told.append("unfenced")
        )

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        self.asked.append((command, on_done))

    def answer(self, reply: Any) -> Command:
        command, on_done = self.asked.pop(0)
        on_done(reply)
        return command

    def publish(self, offset: int) -> None:
        delta = MetadataDelta(self.image)
        self.image = delta.finish(offset, 1)
        self.life.image_changed(self.image, delta)

    def come_to(self, stage: Stage) -> None:
        """The way there, but for LEAVING."""
        steps = {
            Stage.REGISTERED: lambda: (self.life.start(REGISTRATION), self.answer(EPOCH)),
            Stage.CAUGHT_UP: lambda: self.publish(EPOCH),
            Stage.UNFENCED: lambda: self.answer(None),
        }
        for reached, step in steps.items():
            if self.life.stage is not stage:
                step()
                assert self.life.stage is reached


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_registers_and_goes_on_when_its_metadata_has_that(bench: Bench) -> None:
    assert (bench.life.stage, bench.life.broker_epoch) == (Stage.STARTING, -1)
    bench.life.start(REGISTRATION)
    assert bench.life.stage is Stage.STARTING
    assert bench.answer(EPOCH) is REGISTRATION
    assert (bench.life.stage, bench.life.broker_epoch) == (Stage.REGISTERED, EPOCH)
    bench.publish(EPOCH - 1)
    assert (bench.life.stage, bench.asked) == (Stage.REGISTERED, [])
    bench.publish(EPOCH)
    assert bench.life.stage is Stage.CAUGHT_UP
    bench.publish(EPOCH + 1)
    assert len(bench.asked) == 1, "it asks once"
    assert bench.told == []
    assert bench.answer(None) == UnfenceBroker(1)
    assert (bench.life.stage, bench.told) == (Stage.UNFENCED, ["unfenced"])


def test_metadata_that_was_there_before_the_answer_counts(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    bench.publish(EPOCH + 3)
    assert bench.life.stage is Stage.STARTING
    bench.answer(EPOCH)
    assert bench.life.stage is Stage.CAUGHT_UP


@pytest.mark.parametrize("stage", [Stage.STARTING, Stage.CAUGHT_UP])
def test_it_asks_again_while_there_is_no_controller(bench: Bench, stage: Stage) -> None:
    bench.come_to(stage)
    if stage is Stage.STARTING:
        bench.life.start(REGISTRATION)
    for _ in range(3):
        refused = bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
        assert (bench.life.stage, bench.asked) == (stage, [])
        bench.host.advance(RETRY_BACKOFF_MS)
        assert [command for command, _ in bench.asked] == [refused]
    assert bench.host.timers == 0


@pytest.mark.parametrize("stage", [Stage.REGISTERED, Stage.CAUGHT_UP, Stage.UNFENCED])
def test_it_leaves_from_wherever_it_is_known(bench: Bench, stage: Stage) -> None:
    bench.come_to(stage)
    open_questions = list(bench.asked)
    bench.life.leave()
    assert bench.life.stage is Stage.LEAVING
    assert [command for command, _ in bench.asked[len(open_questions) :]] == [ShutDownBroker(1)]
    for _, on_done in open_questions:
        on_done(None)
    bench.publish(EPOCH)
    assert bench.life.stage is Stage.LEAVING
    assert bench.told == (["unfenced"] if stage is Stage.UNFENCED else [])


def test_nobody_is_told_of_the_end_of_one_that_nobody_knows(bench: Bench) -> None:
    bench.life.start(REGISTRATION)
    bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
    bench.life.leave()
    bench.host.advance(10 * RETRY_BACKOFF_MS)
    assert (bench.life.stage, bench.asked, bench.host.timers) == (Stage.LEAVING, [], 0)


def test_an_end_that_nobody_takes_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.come_to(Stage.UNFENCED)
    bench.life.leave()
    bench.answer(ApiError(ErrorCode.NOT_CONTROLLER))
    assert "the controller did not take the end of this broker" in caplog.text


LEGAL = {
    (Stage.STARTING, Event.REGISTRATION_WRITTEN): Stage.REGISTERED,
    (Stage.REGISTERED, Event.REGISTRATION_SEEN): Stage.CAUGHT_UP,
    (Stage.CAUGHT_UP, Event.UNFENCING_WRITTEN): Stage.UNFENCED,
    (Stage.STARTING, Event.END_ASKED): Stage.LEAVING,
    (Stage.REGISTERED, Event.END_ASKED): Stage.LEAVING,
    (Stage.CAUGHT_UP, Event.END_ASKED): Stage.LEAVING,
    (Stage.UNFENCED, Event.END_ASKED): Stage.LEAVING,
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("stage", Stage)
def test_every_move_is_legal_or_a_fault_of_ours(bench: Bench, stage: Stage, event: Event) -> None:
    assert MOVES.keys() == set(Stage)
    bench.life.stage = stage
    following = LEGAL.get((stage, event))
    if following is None:
        with pytest.raises(AssertionError, match=f"{event.name} comes in the stage {stage.name}"):
            bench.life._move(event)
        assert bench.life.stage is stage
    else:
        bench.life._move(event)
        assert bench.life.stage is following
