"""Fetches that wait: in sessions that end meanwhile, where compaction left a gap, until the broker ends."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.storage.log.log import Log
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.node_harness import FETCH_VERSION, NodeHarness

READ_COMMITTED = 1


def fetch(offset: int | None = None, *, forget: bool = False, **fields: Any) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset or 0, partition_max_bytes=1 << 20)
    return FetchRequest(
        **{"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, **fields},
        topics=[] if offset is None else [FetchTopic(topic="a", partitions=[partition])],
        forgotten_topics_data=[ForgottenTopic(topic="a", partitions=[0])] if forget else [],
    )


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a")
    return harness


def send(harness: NodeHarness, request: FetchRequest) -> Any:
    """A connection on which it was sent."""
    client = harness.connect()
    client.submit(FETCH_VERSION, request)
    harness.turn()
    return client


def answer(harness: NodeHarness, client: Any) -> Any:
    return client.receive(FETCH_VERSION, FetchRequest)


@pytest.mark.parametrize("how", ["another connection", "the same connection", "the end of the broker"])
def test_a_session_may_be_emptied_while_a_fetch_of_it_waits(harness: NodeHarness, how: str) -> None:
    harness.produce("a")
    session_id = answer(harness, send(harness, fetch(1, max_wait_ms=0, session_epoch=0))).session_id
    assert session_id
    waiting = send(harness, fetch(session_id=session_id, session_epoch=1, min_bytes=100_000))
    harness.produce("a")
    emptying = fetch(session_id=session_id, session_epoch=2, forget=True, max_wait_ms=0)
    if how == "the same connection":
        waiting.submit(FETCH_VERSION, emptying)
        harness.turn()
    else:
        assert answer(harness, send(harness, emptying)).session_id == 0
    assert len(waiting.channel.slots) == (2 if how == "the same connection" else 1)
    if how == "the end of the broker":
        harness.node.begin_shutdown()
    else:
        harness.host.advance(60_000)
    first = waiting.channel.slots[0]
    assert first.completed
    if how != "the same connection":
        assert answer(harness, waiting).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("transaction", [False, True])
def test_a_gap_at_the_end_of_a_segment_is_no_reason_to_answer(
    harness: NodeHarness, *, transaction: bool
) -> None:
    for _ in range(10):
        harness.produce("a")
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    log.roll(harness.host.now_ms())
    # What the cleaner leaves of tombstones whose time is over.
    log.segments[0].truncate_to(5, log.config, harness.host.now_ms())
    log._segments.forget_positions()
    if transaction:
        records = build(
            [(harness.host.now_ms(), None, b"open", [])],
            base_offset=10,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append_stored(memoryview(records))
        log.commit()
        log.high_watermark = log.log_end_offset
    waiting = send(harness, fetch(5, isolation_level=READ_COMMITTED))
    assert answer(harness, waiting) is None
    harness.host.advance(60_000)
    assert answer(harness, waiting).responses[0].partitions[0].error_code == ErrorCode.NONE
    few = send(harness, fetch(5, min_bytes=5_000))
    assert answer(harness, few) is None


def test_a_fetch_that_fails_when_it_is_read_again_is_answered(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = send(harness, fetch(0))
    monkeypatch.setattr(Log, "read", lambda *asked, **limits: 1 / 0)
    harness.node.begin_shutdown()
    assert answer(harness, waiting).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
