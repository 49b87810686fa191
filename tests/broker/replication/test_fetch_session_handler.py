"""Fetch sessions of a follower, request by request."""

from __future__ import annotations

from kwire.broker.replication.fetch_session_handler import MAX_EPOCH, FetchPosition, FetchSessionHandler
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kwire.wire.primitives import Uuid

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
NAMES = {A: "a", B: "b"}


def content_of(request: FetchRequest) -> tuple[int, int, list[str], list[str]]:
    """Return session id, session epoch, fetched positions and forgotten partitions."""
    return (
        request.session_id,
        request.session_epoch,
        [
            f"{NAMES[topic.topic_id]}{one.partition}@{one.fetch_offset}"
            for topic in request.topics
            for one in topic.partitions
        ],
        [
            f"{NAMES[gone.topic_id]}{index}"
            for gone in request.forgotten_topics_data
            for index in gone.partitions
        ],
    )


def answer(
    *keys: tuple[Uuid, int], session_id: int = 7, error: int = 0, throttle_ms: int = 0
) -> FetchResponse:
    return FetchResponse(
        throttle_time_ms=throttle_ms,
        session_id=session_id,
        error_code=error,
        responses=[
            FetchableTopicResponse(
                topic_id=topic_id,
                partitions=[PartitionData(partition_index=index, error_code=0, high_watermark=0)],
            )
            for topic_id, index in keys
        ],
    )


def at(offset: int) -> FetchPosition:
    return FetchPosition(offset, 4, 3, 0)


def started_session() -> FetchSessionHandler:
    """Return a session with three partitions."""
    session = FetchSessionHandler()
    for key in ((A, 0), (A, 1), (B, 0)):
        session.add(key, at(1))
    assert content_of(session.build_request(10)) == (0, 0, ["a0@1", "a1@1", "b0@1"], [])
    assert session.handle_response(answer((A, 0), (B, 0), (A, 1))) is None
    return session


def test_request_has_only_changes_and_a_response_advances_the_epoch() -> None:
    session = started_session()
    session.add((A, 1), at(2))
    session.add((A, 0), at(1))
    session.remove((B, 0))
    assert content_of(session.build_request(10)) == (7, 1, ["a1@2"], ["b0"])
    assert session.handle_response(answer()) is None
    assert content_of(session.build_request(10)) == (7, 2, [], [])
    assert len(session) == 2


def test_partition_removed_and_added_before_a_request_is_not_forgotten() -> None:
    session = started_session()
    session.remove((A, 0))
    session.add((A, 0), at(1))
    assert content_of(session.build_request(10)) == (7, 1, ["a0@1"], [])
    session.remove((A, 0))
    session.remove((A, 0))
    assert content_of(session.build_request(10))[3] == ["a0"]


def test_error_or_incomplete_response_starts_a_new_session() -> None:
    session = started_session()
    session.remove((A, 0))
    session.reset()
    assert content_of(session.build_request(10)) == (7, 0, ["a1@1", "b0@1"], [])
    assert session.handle_response(answer((A, 1))) is not None
    assert content_of(session.build_request(10))[:2] == (7, 0)
    assert (
        session.handle_response(answer(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        == "INVALID_FETCH_SESSION_EPOCH"
    )
    assert content_of(session.build_request(10))[:2] == (7, 0)
    assert session.handle_response(answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)) is not None
    assert content_of(session.build_request(10))[:2] == (0, 0)
    assert session.handle_response(answer(throttle_ms=5)) is not None
    assert content_of(session.build_request(10))[:2] == (0, 0)
    assert session.handle_response(answer((A, 1), (B, 0), (A, 5))) is None
    assert content_of(session.build_request(10)) == (7, 1, [], [])


def test_full_requests_if_the_leader_has_no_session_slot() -> None:
    session = started_session()
    session.build_request(10)
    assert session.handle_response(answer(session_id=0)) is None
    for _ in range(2):
        assert content_of(session.build_request(10))[:3] == (0, 0, ["a0@1", "a1@1", "b0@1"])
        assert session.handle_response(answer((A, 0), (A, 1), (B, 0), session_id=0)) is None


def test_session_epoch_wraps_to_1() -> None:
    session = started_session()
    session.epoch = MAX_EPOCH
    session.build_request(10)
    assert session.handle_response(answer()) is None
    assert session.epoch == 1


def test_response_for_a_partition_changed_since_the_request_is_ignored() -> None:
    session = started_session()
    session.build_request(10)
    session.add((A, 0), at(9))
    session.remove((B, 0))
    session.add((B, 1), at(0))
    found = session.fetched_partitions(answer((A, 0), (A, 1), (B, 0), (B, 1)))
    assert [(key, asked) for key, asked, _ in found] == [((A, 1), at(1))]


def test_session_is_empty_once_the_leader_forgot_all_partitions() -> None:
    session = FetchSessionHandler()
    assert session.is_empty
    session = started_session()
    for key in ((A, 0), (A, 1), (B, 0)):
        session.remove(key)
    assert (session.is_empty, len(session)) == (False, 0)
    assert content_of(session.build_request(10))[3] == ["a0", "a1", "b0"]
    assert session.handle_response(answer(session_id=0)) is None
    assert session.is_empty
