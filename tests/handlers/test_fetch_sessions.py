"""Fetch sessions as a client sees them. KIP-227."""

from __future__ import annotations

import random

import pytest

from broker.handlers.fetch_sessions import FetchSessionCache, TopicNames, next_epoch
from kwire.errors import ApiError, ErrorCode
from kwire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from kwire.primitives import Uuid

V12 = 12
V13 = 13
TOPIC_ID = Uuid(bytes(range(16)))
EVICTION_MS = 120_000


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, EVICTION_MS, random.Random(7))


def names() -> TopicNames:
    return TopicNames({TOPIC_ID: "t"})


def request(session_id: int = 0, epoch: int = 0, *, partitions: dict[int, int] | None = None) -> FetchRequest:
    """A fetch of topic t: partition index to fetch offset."""
    asked = [
        FetchPartition(partition=index, fetch_offset=offset) for index, offset in (partitions or {}).items()
    ]
    topics = [FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=asked)] if asked else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def answer(context: object, now_ms: int = 0, **told: int) -> tuple[int, list[int]]:
    """Answer every partition of the context alike; the session id and the partitions that are told of."""
    fetched = [
        (target, PartitionData(partition_index=target.index, records=b"", **told))
        for target in context.targets.values()  # type: ignore[attr-defined]
    ]
    session_id, sent = context.trim(fetched, now_ms)  # type: ignore[attr-defined]
    return session_id, [data.partition_index for _, data in sent]


def test_an_incremental_fetch_names_only_what_changed() -> None:
    sessions = cache()
    full = sessions.context(request(partitions={0: 0, 1: 0}), V12, names(), 0)
    session_id, told = answer(full, high_watermark=5)
    assert session_id > 0
    assert told == [0, 1]

    nothing_new = sessions.context(request(session_id, 1), V12, names(), 0)
    assert answer(nothing_new, high_watermark=5) == (session_id, [])

    moved = sessions.context(request(session_id, 2, partitions={1: 5}), V12, names(), 0)
    assert [target.fetch_offset for target in moved.targets.values()] == [0, 5]
    assert answer(moved, high_watermark=6) == (session_id, [0, 1])


def test_a_partition_that_had_data_goes_to_the_back() -> None:
    sessions = cache()
    session_id, _ = answer(sessions.context(request(partitions={0: 0, 1: 0}), V12, names(), 0))
    context = sessions.context(request(session_id, 1), V12, names(), 0)
    first, second = context.targets.values()
    context.trim([(first, PartitionData(records=b"data")), (second, PartitionData(records=b""))], 0)
    again = sessions.context(request(session_id, 2), V12, names(), 0)
    assert [target.index for target in again.targets.values()] == [1, 0]


def test_an_error_is_told_each_time_and_its_end_too() -> None:
    sessions = cache()
    session_id, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), 0), high_watermark=5)
    failing = sessions.context(request(session_id, 1), V12, names(), 0)
    assert answer(failing, high_watermark=5, error_code=6)[1] == [0]
    well_again = sessions.context(request(session_id, 2), V12, names(), 0)
    assert answer(well_again, high_watermark=5)[1] == [0]


def test_forgotten_partitions_end_the_session_with_the_last_of_them() -> None:
    sessions = cache()
    session_id, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), 0))
    forgetting = request(session_id, 1)
    forgetting.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[0])]
    assert answer(sessions.context(forgetting, V12, names(), 0)) == (0, [])
    assert len(sessions) == 0


@pytest.mark.parametrize(
    ("session_id", "epoch", "version", "code"),
    [
        ("unknown", 1, V12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("known", 7, V12, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("known", 1, V13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_session_errors(session_id: str, epoch: int, version: int, code: ErrorCode) -> None:
    sessions = cache()
    known, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), 0))
    asked = known if session_id == "known" else known + 1
    with pytest.raises(ApiError) as error:
        sessions.context(request(asked, epoch), version, names(), 0)
    assert error.value.code == code


def test_a_full_fetch_ends_the_session_it_names_and_a_final_one_gets_none() -> None:
    sessions = cache()
    session_id, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), 0))
    last = sessions.context(request(session_id, -1, partitions={0: 0}), V12, names(), 0)
    assert answer(last) == (0, [0])
    assert len(sessions) == 0


def test_a_response_after_the_session_moved_on_is_an_error() -> None:
    sessions = cache()
    session_id, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), 0))
    slow = sessions.context(request(session_id, 1), V12, names(), 0)
    sessions.context(request(session_id, 2), V12, names(), 0)
    with pytest.raises(ApiError) as error:
        answer(slow)
    assert error.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_full_cache_gives_no_session_until_one_is_stale() -> None:
    sessions = cache(slots=1)
    first, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), 0))
    assert answer(sessions.context(request(partitions={0: 0}), V12, names(), 1), 1)[0] == 0
    later = EVICTION_MS + 1
    second, _ = answer(sessions.context(request(partitions={0: 0}), V12, names(), later), later)
    assert second not in (0, first)
    assert len(sessions) == 1


def test_an_unknown_topic_id_is_resolved_once_the_topic_is_there() -> None:
    sessions = cache()
    nothing_known = TopicNames({})
    full = sessions.context(request(partitions={0: 0}), V13, nothing_known, 0)
    assert [target.topic for target in full.targets.values()] == [None]
    session_id, _ = answer(full)
    later = sessions.context(request(session_id, 1), V13, names(), 0)
    assert [target.topic for target in later.targets.values()] == ["t"]


def test_session_epochs_wrap_past_zero() -> None:
    assert next_epoch(0) == 1
    assert next_epoch(0x7FFFFFFF) == 1
    assert next_epoch(-1) == -1
