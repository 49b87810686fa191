"""Fetch sessions. KIP-227."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.api.records.fetch_sessions import (
    FetchContext,
    FetchSessionCache,
    NameOf,
    next_epoch,
)
from kwire.host.host import InternodeTime
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from kwire.wire.primitives import Uuid

V12 = 12
V13 = 13
TOPIC_ID = Uuid(bytes(range(16)))
EVICTION_MS = 120_000
START = InternodeTime(0)


def cache(slots: int = 80) -> FetchSessionCache:
    return FetchSessionCache(slots, EVICTION_MS, random.Random(7))


def names() -> NameOf:
    return {TOPIC_ID: "t"}.get


def request(session_id: int = 0, epoch: int = 0, *, partitions: dict[int, int] | None = None) -> FetchRequest:
    """Return a fetch of topic t, with fetch offsets by partition index."""
    requested = [
        FetchPartition(partition=index, fetch_offset=offset) for index, offset in (partitions or {}).items()
    ]
    topics = [FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=requested)] if requested else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def respond(context: FetchContext, now_ms: InternodeTime = START, **expected: Any) -> tuple[int, list[int]]:
    """Respond to each partition alike, and return the session id and the partitions in the response."""
    fetched = [
        (target, PartitionData(partition_index=target.index, records=b"", **expected))
        for target in context.targets.values()
    ]
    session_id, sent = context.trim(fetched, now_ms)
    return session_id, [data.partition_index for _, data in sent]


def test_an_incremental_response_contains_only_changed_partitions() -> None:
    sessions = cache()
    full = sessions.context(request(partitions={0: 0, 1: 0}), V12, names(), START)
    session_id, expected = respond(full, high_watermark=5)
    assert session_id > 0
    assert expected == [0, 1]

    nothing_new = sessions.context(request(session_id, 1), V12, names(), START)
    assert respond(nothing_new, high_watermark=5) == (session_id, [])

    moved = sessions.context(request(session_id, 2, partitions={1: 5}), V12, names(), START)
    assert [target.fetch_offset for target in moved.targets.values()] == [0, 5]
    assert respond(moved, high_watermark=6) == (session_id, [0, 1])


def test_a_partition_with_data_moves_to_the_end() -> None:
    sessions = cache()
    session_id, _ = respond(sessions.context(request(partitions={0: 0, 1: 0}), V12, names(), START))
    context = sessions.context(request(session_id, 1), V12, names(), START)
    first, second = context.targets.values()
    context.trim([(first, PartitionData(records=b"data")), (second, PartitionData(records=b""))], START)
    again = sessions.context(request(session_id, 2), V12, names(), START)
    assert [target.index for target in again.targets.values()] == [1, 0]


def test_an_error_is_repeated_and_its_end_is_returned() -> None:
    sessions = cache()
    session_id, _ = respond(
        sessions.context(request(partitions={0: 0}), V12, names(), START), high_watermark=5
    )
    failing = sessions.context(request(session_id, 1), V12, names(), START)
    assert respond(failing, high_watermark=5, error_code=6)[1] == [0]
    well_again = sessions.context(request(session_id, 2), V12, names(), START)
    assert respond(well_again, high_watermark=5)[1] == [0]


@pytest.mark.parametrize(
    ("requested", "forgotten", "expected"),
    [({}, [0], []), ({1: 7}, [1, 0], [1]), ({0: 7}, [0], [0]), ({2: 7, 1: 7}, [0, 1, 2], [2, 1])],
    ids=["nothing", "another", "itself", "two"],
)
@pytest.mark.parametrize("version", [V12, V13])
def test_a_session_ends_when_its_last_partition_is_forgotten(
    requested: dict[int, int], forgotten: list[int], expected: list[int], version: int
) -> None:
    sessions = cache()
    session_id, _ = respond(sessions.context(request(partitions={0: 0}), version, names(), START))
    forgetting = request(session_id, 1, partitions=requested)
    forgetting.forgotten_topics_data = [ForgottenTopic(topic="t", topic_id=TOPIC_ID, partitions=forgotten)]
    last = sessions.context(forgetting, version, names(), START)
    assert all(target.fetch_offset == 7 for target in last.targets.values())
    assert respond(last) == (0, expected)
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
    known, _ = respond(sessions.context(request(partitions={0: 0}), V12, names(), START))
    requested = known if session_id == "known" else known + 1
    with pytest.raises(ApiError) as error:
        sessions.context(request(requested, epoch), version, names(), START)
    assert error.value.code == code


def test_a_final_full_fetch_closes_its_session() -> None:
    sessions = cache()
    session_id, _ = respond(sessions.context(request(partitions={0: 0}), V12, names(), START))
    last = sessions.context(request(session_id, -1, partitions={0: 0}), V12, names(), START)
    assert respond(last) == (0, [0])
    assert len(sessions) == 0


def test_a_response_to_an_outdated_session_epoch_is_an_error() -> None:
    sessions = cache()
    session_id, _ = respond(sessions.context(request(partitions={0: 0}), V12, names(), START))
    slow = sessions.context(request(session_id, 1), V12, names(), START)
    sessions.context(request(session_id, 2), V12, names(), START)
    with pytest.raises(ApiError) as error:
        respond(slow)
    assert error.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def make_session(sessions: FetchSessionCache, size: int, at_ms: int, *, replica_id: int = -1) -> int:
    """Fetch this number of partitions. Return the id of the new session, or 0 if none was created."""
    fetch = request(partitions=dict.fromkeys(range(size), 0))
    fetch.replica_id = replica_id
    new_id, _ = respond(sessions.context(fetch, V12, names(), START + at_ms), START + at_ms)
    return new_id


def use_session(sessions: FetchSessionCache, session_id: int, epoch: int, at_ms: int) -> None:
    respond(sessions.context(request(session_id, epoch), V12, names(), START + at_ms), START + at_ms)


def test_a_full_cache_creates_no_session_until_one_is_stale() -> None:
    sessions = cache(slots=1)
    first = make_session(sessions, 1, 0)
    assert first
    assert make_session(sessions, 9, EVICTION_MS) == 0, "the session is not stale yet"
    second = make_session(sessions, 1, EVICTION_MS + 1)
    assert second not in (0, first)
    assert len(sessions) == 1


def test_a_larger_session_evicts_one_that_was_old_at_its_last_use() -> None:
    sessions = cache(slots=1)
    first = make_session(sessions, 2, 0)
    use_session(sessions, first, 1, EVICTION_MS)
    assert make_session(sessions, 9, EVICTION_MS + 1000) == 0, "only the age at the last use counts"
    use_session(sessions, first, 2, EVICTION_MS + 1001)
    assert make_session(sessions, 2, EVICTION_MS + 1002) == 0, "an equal size is not larger"
    second = make_session(sessions, 3, EVICTION_MS + 1002)
    assert second
    with pytest.raises(ApiError) as error:
        use_session(sessions, first, 3, EVICTION_MS + 1003)
    assert error.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_replica_evicts_consumers_and_no_recent_replica() -> None:
    sessions = cache(slots=1)
    assert make_session(sessions, 5, 0)
    replica_session = make_session(sessions, 1, 1, replica_id=7)
    assert replica_session
    assert make_session(sessions, 9, 2, replica_id=7) == 0
    use_session(sessions, replica_session, 1, EVICTION_MS + 2)
    assert make_session(sessions, 9, EVICTION_MS + 3) == 0, "a consumer never evicts a replica"
    assert make_session(sessions, 9, EVICTION_MS + 3, replica_id=7)


def test_there_are_as_many_sessions_as_slots() -> None:
    sessions = cache(slots=3)
    new_id = [make_session(sessions, 1, 0) for _ in range(4)]
    assert len(set(new_id)) == 4
    assert new_id[3] == 0
    sessions.context(request(new_id[1], -1), V12, names(), START)
    assert make_session(sessions, 1, 0) not in new_id


def test_the_least_recently_used_session_is_evicted() -> None:
    sessions = cache(slots=2)
    first, second = make_session(sessions, 1, 0), make_session(sessions, 1, 1)
    use_session(sessions, first, 1, 2)
    assert make_session(sessions, 1, EVICTION_MS + 2)
    with pytest.raises(ApiError) as error:
        use_session(sessions, second, 1, EVICTION_MS + 2)
    assert error.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    use_session(sessions, first, 2, EVICTION_MS + 2)


def test_without_slots_there_are_no_sessions() -> None:
    sessions = cache(slots=0)
    assert respond(sessions.context(request(partitions={0: 0}), V12, names(), START)) == (0, [0])


@pytest.mark.parametrize("session_id", [2**31 - 1, -1, -(2**31)])
def test_an_unknown_session_id_is_not_found(session_id: int) -> None:
    with pytest.raises(ApiError) as error:
        cache().context(request(session_id, 1), V12, names(), START)
    assert error.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_partitions_are_in_the_order_of_the_first_response() -> None:
    sessions = cache()
    full = sessions.context(request(partitions={2: 0, 0: 0, 1: 0}), V12, names(), START)
    missing, first, second = full.targets.values()
    nothing = PartitionData(records=b"")
    session_id, _ = full.trim(
        [(first, nothing), (second, nothing), (missing, PartitionData(error_code=3))], START
    )
    again = sessions.context(request(session_id, 1, partitions={3: 0, 2: 5}), V12, names(), START)
    assert [target.index for target in again.targets.values()] == [0, 1, 2, 3]


def test_an_unknown_topic_id_is_resolved_once_the_topic_exists() -> None:
    sessions = cache()
    nothing_known: NameOf = lambda topic_id: None  # noqa: E731
    full = sessions.context(request(partitions={0: 0}), V13, nothing_known, START)
    assert [target.topic for target in full.targets.values()] == [None]
    session_id, _ = respond(full)
    later = sessions.context(request(session_id, 1), V13, names(), START)
    assert [target.topic for target in later.targets.values()] == ["t"]


def test_session_epochs_wrap_past_zero() -> None:
    assert next_epoch(0) == 1
    assert next_epoch(0x7FFFFFFF) == 1
    assert next_epoch(-1) == -1
