"""A session, request after request, as a leader would see it."""

from __future__ import annotations

from kwire.broker.replication.fetch_session_handler import MAX_EPOCH, FetchPosition, FetchSessionHandler
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kwire.wire.primitives import Uuid

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
NAMES = {A: "a", B: "b"}


def told(request: FetchRequest) -> tuple[int, int, list[str], list[str]]:
    """Session id and epoch, what is fetched from where, and what is not fetched any more."""
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


def begun() -> FetchSessionHandler:
    """A session of three partitions."""
    session = FetchSessionHandler()
    for key in ((A, 0), (A, 1), (B, 0)):
        session.add(key, at(1))
    assert told(session.build_request(10)) == (0, 0, ["a0@1", "a1@1", "b0@1"], [])
    assert session.handle_response(answer((A, 0), (B, 0), (A, 1))) is None
    return session


def test_a_request_says_what_has_changed_and_an_answer_moves_on() -> None:
    session = begun()
    session.add((A, 1), at(2))
    session.add((A, 0), at(1))
    session.remove((B, 0))
    assert told(session.build_request(10)) == (7, 1, ["a1@2"], ["b0"])
    assert session.handle_response(answer()) is None
    assert told(session.build_request(10)) == (7, 2, [], [])
    assert len(session) == 2


def test_what_is_forgotten_and_followed_again_before_a_request_is_never_taken_back() -> None:
    session = begun()
    session.remove((A, 0))
    session.add((A, 0), at(1))
    assert told(session.build_request(10)) == (7, 1, ["a0@1"], [])
    session.remove((A, 0))
    session.remove((A, 0))
    assert told(session.build_request(10))[3] == ["a0"]


def test_an_answer_that_is_not_known_or_not_whole_begins_a_new_session() -> None:
    session = begun()
    session.remove((A, 0))
    session.reset()
    assert told(session.build_request(10)) == (7, 0, ["a1@1", "b0@1"], [])
    assert session.handle_response(answer((A, 1))) is not None
    assert told(session.build_request(10))[:2] == (7, 0)
    assert (
        session.handle_response(answer(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        == "INVALID_FETCH_SESSION_EPOCH"
    )
    assert told(session.build_request(10))[:2] == (7, 0)
    assert session.handle_response(answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)) is not None
    assert told(session.build_request(10))[:2] == (0, 0)
    assert session.handle_response(answer(throttle_ms=5)) is not None
    assert told(session.build_request(10))[:2] == (0, 0)
    assert session.handle_response(answer((A, 1), (B, 0), (A, 5))) is None
    assert told(session.build_request(10)) == (7, 1, [], [])


def test_a_leader_without_room_for_sessions_is_asked_for_everything_each_time() -> None:
    session = begun()
    session.build_request(10)
    assert session.handle_response(answer(session_id=0)) is None
    for _ in range(2):
        assert told(session.build_request(10))[:3] == (0, 0, ["a0@1", "a1@1", "b0@1"])
        assert session.handle_response(answer((A, 0), (A, 1), (B, 0), session_id=0)) is None


def test_the_epoch_of_a_session_begins_again_with_one() -> None:
    session = begun()
    session.epoch = MAX_EPOCH
    session.build_request(10)
    assert session.handle_response(answer()) is None
    assert session.epoch == 1


def test_what_has_changed_since_the_request_makes_its_answer_stale() -> None:
    session = begun()
    session.build_request(10)
    session.add((A, 0), at(9))
    session.remove((B, 0))
    session.add((B, 1), at(0))
    found = session.fetched_partitions(answer((A, 0), (A, 1), (B, 0), (B, 1)))
    assert [(key, asked) for key, asked, _ in found] == [((A, 1), at(1))]


def test_a_session_without_partitions_is_idle_once_the_leader_knows() -> None:
    session = FetchSessionHandler()
    assert session.is_empty
    session = begun()
    for key in ((A, 0), (A, 1), (B, 0)):
        session.remove(key)
    assert (session.is_empty, len(session)) == (False, 0)
    assert told(session.build_request(10))[3] == ["a0", "a1", "b0"]
    assert session.handle_response(answer(session_id=0)) is None
    assert session.is_empty
