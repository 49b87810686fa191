"""Commands that arrive between the election of a leader and the activation of its controller."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.activation_queue import ActivationQueue
from kwire.broker.controller.commands import AllocateProducerIds
from kwire.wire.errors import ApiError, ErrorCode

COMMANDS = [AllocateProducerIds(1, 17), AllocateProducerIds(2, 18)]


class FakeRuntime:
    """A controller that records commands and events."""

    def __init__(self) -> None:
        self.is_active = False
        self.calls: list[Any] = []

    def submit(self, command: Any, on_done: Any) -> None:
        self.calls.append(command)
        if not self.is_active:
            on_done(ApiError(ErrorCode.NOT_CONTROLLER))

    def became_leader(self, epoch: int) -> None:
        self.calls.append(f"leader in {epoch}")
        self.is_active = True

    def resigned(self, reason: ApiError) -> None:
        self.is_active = False

    def committed(self, offset: int) -> None:
        self.calls.append(f"committed {offset}")

    def idle(self) -> None:
        self.calls.append("idle")


class QueueHarness:
    def __init__(self) -> None:
        self.leads = False
        self.runtime = FakeRuntime()
        self.queue = ActivationQueue(self.runtime, lambda: self.leads)  # type: ignore[arg-type]
        self.replies: list[Any] = []

    def submit_all(self) -> None:
        for command in COMMANDS:
            self.queue.submit(command, self.replies.append)

    def set_leads(self, *, leads: bool) -> None:
        self.leads = leads
        self.queue.leader_changed()


@pytest.fixture
def harness() -> QueueHarness:
    return QueueHarness()


def test_commands_for_a_new_leader_run_once_its_controller_is_active(harness: QueueHarness) -> None:
    harness.set_leads(leads=True)
    harness.submit_all()
    assert (harness.runtime.calls, harness.replies) == ([], [])
    harness.queue.became_leader(3)
    assert harness.runtime.calls == ["leader in 3", *COMMANDS]
    harness.submit_all()
    assert harness.runtime.calls == ["leader in 3", *COMMANDS, *COMMANDS]


def test_commands_are_refused_if_the_leader_resigns_before_its_controller_is_active(
    harness: QueueHarness,
) -> None:
    harness.set_leads(leads=True)
    harness.submit_all()
    harness.set_leads(leads=False)
    assert [reply.code for reply in harness.replies] == [ErrorCode.NOT_CONTROLLER] * 2
    harness.set_leads(leads=True)
    harness.queue.became_leader(5)
    assert harness.runtime.calls == [*COMMANDS, "leader in 5"], "each command runs at most once"


def test_node_that_is_not_the_leader_refuses_commands_at_once(harness: QueueHarness) -> None:
    harness.submit_all()
    assert [reply.code for reply in harness.replies] == [ErrorCode.NOT_CONTROLLER] * 2


def test_commits_and_idle_times_reach_the_controller(harness: QueueHarness) -> None:
    harness.queue.committed(7)
    harness.queue.idle()
    assert harness.runtime.calls == ["committed 7", "idle"]
