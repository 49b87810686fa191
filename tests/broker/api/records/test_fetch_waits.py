"""Fetches that wait: in sessions that end meanwhile, at compaction gaps, and until the broker shuts down."""

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
    """Send the request on a new connection, and return the connection."""
    client = harness.connect()
    client.submit(FETCH_VERSION, request)
    harness.turn()
    return client


def receive_response(harness: NodeHarness, client: Any) -> Any:
    return client.receive(FETCH_VERSION, FetchRequest)


@pytest.mark.parametrize("closed_by", ["another connection", "the same connection", "the end of the broker"])
def test_a_session_can_end_while_one_of_its_fetches_waits(harness: NodeHarness, closed_by: str) -> None:
    harness.produce("a")
    session_id = receive_response(harness, send(harness, fetch(1, max_wait_ms=0, session_epoch=0))).session_id
    assert session_id
    waiting = send(harness, fetch(session_id=session_id, session_epoch=1, min_bytes=100_000))
    harness.produce("a")
    emptying = fetch(session_id=session_id, session_epoch=2, forget=True, max_wait_ms=0)
    if closed_by == "the same connection":
        waiting.submit(FETCH_VERSION, emptying)
        harness.turn()
    else:
        assert receive_response(harness, send(harness, emptying)).session_id == 0
    assert len(waiting.channel.slots) == (2 if closed_by == "the same connection" else 1)
    if closed_by == "the end of the broker":
        harness.node.begin_shutdown()
    else:
        harness.host.advance(60_000)
    first = waiting.channel.slots[0]
    assert first.completed
    if closed_by != "the same connection":
        assert receive_response(harness, waiting).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("transaction", [False, True])
def test_a_compaction_gap_at_a_segment_end_does_not_complete_a_fetch(
    harness: NodeHarness, *, transaction: bool
) -> None:
    for _ in range(10):
        harness.produce("a")
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    log.roll(harness.host.now_ms())
    # The cleaner leaves such a gap when it removes old tombstones.
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
    assert receive_response(harness, waiting) is None
    harness.host.advance(60_000)
    assert receive_response(harness, waiting).responses[0].partitions[0].error_code == ErrorCode.NONE
    small_fetch = send(harness, fetch(5, min_bytes=5_000))
    assert receive_response(harness, small_fetch) is None


def test_a_waiting_fetch_whose_read_fails_returns_an_error(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = send(harness, fetch(0))
    monkeypatch.setattr(Log, "read", lambda *asked, **limits: 1 / 0)
    harness.node.begin_shutdown()
    assert receive_response(harness, waiting).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
