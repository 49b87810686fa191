"""Regular expressions that are matched against many topics, in several turns of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from kwire.coordinator.groups.consumer.member import LEAVING_EPOCH
from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.groups.consumer.subscriptions import MIN_RESOLVE_INTERVAL_MS, SLICE_TOPICS
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.coordinator.coordinator_harness import CoordinatorHarness, Reply

TOPICS: Final = 4 * SLICE_TOPICS + 1


class Turns:
    """The decisions about topics in each command of a timer, and an action after the first slice."""

    def __init__(self, harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = [0]
        self.after_first_slice: Callable[[], None] = lambda: None
        schedule = harness.host.schedule

        def counting(delay_ms: int, callback: Callable[[], None]) -> Any:
            def due() -> None:
                if self.counts[-1]:
                    if len(self.counts) == 1:
                        self.after_first_slice()
                    self.counts.append(0)
                callback()

            return schedule(delay_ms, due)

        monkeypatch.setattr(harness.host, "schedule", counting)

    def may_describe(self, topic: str) -> bool:
        self.counts[-1] += 1
        return not topic.endswith("7")


@pytest.fixture
def large(harness: CoordinatorHarness) -> CoordinatorHarness:
    for number in range(TOPICS):
        harness.topics.put(f"t{number}", 1)
    return harness


def send(
    harness: CoordinatorHarness,
    turns: Turns,
    epoch: int = 0,
    *,
    member: str = "m",
    expression: str = "t.*|late",
) -> Reply:
    """Send a heartbeat of a member with a regular expression."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_regex=expression,
        topic_partitions=None if epoch else [],
    )
    reply = Reply()
    client = ClientIdentity("c", "/127.0.0.1", turns.may_describe)
    harness.service.consumer_heartbeat(request, client, 1, reply)
    return reply


def heartbeat(harness: CoordinatorHarness, turns: Turns, epoch: int = 0) -> int:
    """Send a heartbeat, finish the resolution that it starts, and return the member's epoch."""
    reply = send(harness, turns, epoch)
    harness.advance(0)
    harness.advance(0)
    assert not reply.error
    member_epoch: int = reply.value.member_epoch
    return member_epoch


def subscribed(harness: CoordinatorHarness) -> set[str]:
    return {
        name
        for group in harness.service.shard_for("g").machine.consumer.groups.values()
        for name in group.counts
    }


def test_topics_are_matched_in_several_turns(
    large: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(large, monkeypatch)
    heartbeat(large, turns)
    assert sum(turns.counts) == TOPICS
    assert max(turns.counts) == SLICE_TOPICS
    assert subscribed(large) == {f"t{number}" for number in range(TOPICS) if number % 10 != 7}


def test_a_topic_that_is_created_meanwhile_is_found_by_the_next_resolution(
    large: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(large, monkeypatch)

    def create() -> None:
        large.topics.put("late", 1)
        large.service.topics_changed(["late"], created=True)

    turns.after_first_slice = create
    epoch = heartbeat(large, turns)
    assert "late" in large.topics.topics
    assert "late" not in subscribed(large)
    large.advance(MIN_RESOLVE_INTERVAL_MS + 1)
    heartbeat(large, turns, epoch)
    assert "late" in subscribed(large)


def test_a_member_that_leaves_meanwhile_leaves_no_matches(
    large: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(large, monkeypatch)
    left: list[Reply] = []
    turns.after_first_slice = lambda: left.append(send(large, turns, LEAVING_EPOCH))
    heartbeat(large, turns)
    assert [reply.error for reply in left] == [ErrorCode.NONE]
    assert sum(turns.counts) == TOPICS
    assert not subscribed(large)
    heartbeat(large, turns)
    assert "t1" in subscribed(large), "the group can be resolved again"


def test_waiting_slices_take_no_place_among_pending_results(
    large: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(large, monkeypatch)
    large.ports.held = []
    send(large, turns)
    large.advance(0)
    large.advance(0)
    assert sum(turns.counts) == TOPICS
    pending = large.service.shard_for("g")._pending_results
    assert len(pending) == 2, "the request, and the resolved expression"


def test_many_expressions_are_matched_in_several_turns(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SLICE_TOPICS // 2):
        harness.topics.put(f"t{number}", 1)
    turns = Turns(harness, monkeypatch)
    for number in range(6):
        send(harness, turns, member=f"m{number}", expression=f"t.*|late{number}")
    harness.advance(0)
    harness.advance(0)
    harness.advance(MIN_RESOLVE_INTERVAL_MS + 1)
    send(harness, turns, member="m6", expression="t.*|late6")
    harness.advance(0)
    harness.advance(0)
    assert sum(turns.counts) >= 7 * (SLICE_TOPICS // 2)
    assert max(turns.counts) == SLICE_TOPICS
