"""What a fetcher asks its leader, and what it makes of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.replication.roles import Role
from kwire.broker.storage.disk import StorageError
from kwire.host.host import PeerAddress
from kwire.testing.virtual_host import WorkerTask
from kwire.wire.batch import update_crc
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kwire.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.broker.replication.follower_harness import (
    BROKER_EPOCH,
    TOPIC_ID,
    FollowerHarness,
    Sent,
    asked_of,
    data,
    stored,
)

BACKOFF_MS = 1_000
LAST_OFFSET_DELTA_AT = 23


def harness_at(end: int = 3, *, epoch: int = 4, partitions: int = 1) -> FollowerHarness:
    """A follower that has some records of epoch 3, the first two of which are committed."""
    harness = FollowerHarness()
    harness.follow(partitions, epoch=epoch)
    records = stored(0, *[3] * end)
    harness.fetch(*(data(records, index=index, high_watermark=2) for index in range(partitions)))
    return harness


def finish(harness: FollowerHarness, work: list[WorkerTask]) -> None:
    """Have workers do what they were given, and what comes of that."""
    while work:
        work.pop(0).deliver()
        harness.host.run_pending()


# --- asking


def test_a_fetch_says_who_asks_and_from_where() -> None:
    harness = FollowerHarness()
    harness.follow(2)
    (sent,) = harness.sent
    request = sent.request
    assert (sent.to, sent.purpose, sent.max_version) == (PeerAddress("b2", 9002), "fetch-0", 18)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (1, BROKER_EPOCH)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10485760)
    assert sent.deadline_ms - harness.host.monotonic_ms() == 30_000
    (topic,) = request.topics
    assert {one.partition_max_bytes for one in topic.partitions} == {1048576}
    assert (topic.topic_id, harness.asked) == (TOPIC_ID, {0: (0, 4, -1), 1: (0, 4, -1)})


def test_partitions_are_shared_out_over_fetchers_and_leaders() -> None:
    harness = FollowerHarness({"num.replica.fetchers": "2"})
    harness.follow(3)
    assert [(sent.purpose, sorted(asked_of(sent))) for sent in harness.sent] == [
        ("fetch-0", [0, 2]),
        ("fetch-1", [1]),
    ]
    harness.sent.clear()
    harness.change(1, leader=3)
    (sent,) = harness.sent
    assert (sent.to.port, sent.purpose, asked_of(sent)) == (9003, "fetch-1", {1: (0, 5, -1)})


def test_what_is_fetched_is_written_before_more_is_asked_for() -> None:
    harness = FollowerHarness()
    harness.follow(2)
    harness.fetch(data(stored(0, 3, 3, 4), high_watermark=2), data(index=1))
    assert harness.asked == {0: (3, 4, 4)}
    log = harness.log()
    assert (log.written_end_offset, log.high_watermark, log.leader_epochs) == (3, 2, [(3, 0), (4, 2)])
    harness.idle()
    assert harness.asked == {}
    harness.fetch(data(high_watermark=3))
    assert (log.high_watermark, harness.asked) == (3, {})


def test_a_high_watermark_reaches_no_further_than_the_log_and_never_goes_back() -> None:
    harness = harness_at(3)
    for told, expected in ((9, 3), (1, 3)):
        harness.fetch(data(high_watermark=told))
        assert harness.log().high_watermark == expected


def test_the_log_starts_where_the_leaders_does() -> None:
    harness = harness_at(3)
    harness.fetch(data(high_watermark=3, log_start_offset=2))
    (sent,) = harness.sent
    assert harness.log().log_start_offset == 2
    assert [one.log_start_offset for topic in sent.request.topics for one in topic.partitions] == [2]


def test_a_log_that_begins_within_a_batch_is_followed_from_that_batch() -> None:
    harness = FollowerHarness()
    harness.follow()
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    offsets(harness, start=7, end=20)
    harness.idle()
    assert harness.asked == {0: (7, 4, -1)}
    wide = bytearray(stored(5, 3))
    wide[LAST_OFFSET_DELTA_AT : LAST_OFFSET_DELTA_AT + 4] = (9).to_bytes(4, "big")
    update_crc(wide, 0, len(wide))
    work = harness.host.hold_work()
    harness.fetch(data(bytes(wide), high_watermark=20, log_start_offset=7))
    log = harness.log()
    assert (log.segment_base_offsets, log.log_end_offset, log.awaits_sync, harness.asked) == (
        [5],
        5,
        True,
        {},
    )
    finish(harness, work)
    harness.idle()
    assert (log.segment_base_offsets, log.log_start_offset, log.log_end_offset) == ([5], 7, 15)
    assert harness.asked == {0: (15, 4, 3)}


def test_a_change_of_settings_shares_partitions_out_anew() -> None:
    harness = FollowerHarness()
    harness.follow(4)
    harness.config.update({"num.replica.fetchers": "2"}, {})
    harness.fetchers.config_changed()
    harness.turn()
    first, second = harness.sent
    assert (first.purpose, second.purpose, sorted(asked_of(second))) == ("fetch-0", "fetch-1", [1, 3])
    harness.sent.remove(second)
    harness.fetch(*(data(index=index) for index in range(4)))
    (sent,) = harness.sent
    assert (sorted(asked_of(sent)), sent.request.forgotten_topics_data[0].partitions) == ([0, 2], [1, 3])


# --- where the logs differ


def test_a_log_is_cut_to_the_end_that_both_have_and_synced_before_it_goes_on() -> None:
    harness = harness_at(5)
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    log = harness.log()
    assert (log.log_end_offset, log.awaits_sync) == (4, True)
    (sent,) = harness.sent
    assert (asked_of(sent), sent.request.forgotten_topics_data[0].partitions) == ({}, [0])
    for task in work:
        task.deliver()
    harness.host.run_pending()
    harness.idle()
    assert harness.asked == {0: (4, 4, 3)}
    harness.fetch(data(stored(4, 4), high_watermark=5))
    assert log.leader_epochs == [(3, 0), (4, 4)]


@pytest.mark.parametrize(
    ("diverging", "then"),
    [
        ((3, 3), (3, 5, 3)),  # the epoch is known: up to where the leader had ended it
        ((3, 9), (4, 5, 3)),  # or the follower, whose next one the leader does not have
        ((2, 1), (1, 5, 1)),  # it is not known: the one before it is asked about next
        ((0, 1), (0, 5, -1)),  # it is older than any: to where the first began, or the leader ended it
    ],
)
def test_a_common_end_is_looked_for_by_epochs(diverging: tuple[int, int], then: tuple[int, int, int]) -> None:
    harness = FollowerHarness()
    harness.follow(epoch=5)
    harness.fetch(data(stored(0, 1, 3, 3, 3, 4), high_watermark=0))
    harness.fetch(data(diverging=diverging))
    harness.idle()
    assert harness.asked == {0: then}


def test_a_leader_that_has_a_log_cut_where_it_ends_is_not_asked_at_once_again() -> None:
    harness = harness_at(3)
    harness.fetch(data(diverging=(3, 3)))
    assert (harness.log().log_end_offset, harness.asked) == (3, {})
    harness.idle()
    for wrong in ((3, -1), (3, 3)):
        assert not harness.sent
        harness.host.advance(BACKOFF_MS)
        assert harness.asked == {0: (3, 4, 3)}
        harness.fetch(data(diverging=wrong))
        assert harness.asked == {}
        harness.idle()
    assert harness.log().log_end_offset == 3


def test_what_is_told_beside_the_common_end_counts_where_that_is_found() -> None:
    harness = harness_at(5)
    harness.fetch(data(diverging=(2, 1), high_watermark=4))
    assert harness.log().high_watermark == 0
    harness = harness_at(5)
    harness.fetch(data(diverging=(3, 4), high_watermark=9))
    assert (harness.log().log_end_offset, harness.log().high_watermark) == (4, 4)


def test_a_log_without_epochs_is_cut_to_what_was_committed() -> None:
    harness = FollowerHarness()
    harness.follow()
    harness.fetch(data(stored(0, -1, -1, -1), high_watermark=2))
    assert harness.asked == {0: (3, 4, -1)}
    harness.change(leader=3)
    harness.sent.pop(0)
    assert harness.asked == {0: (2, 5, -1)}


def offsets(harness: FollowerHarness, *, start: int, end: int, error: int = 0) -> list[Sent]:
    """Answer where the leader's log begins and ends."""
    asked = [sent for sent in harness.sent if isinstance(sent.request, ListOffsetsRequest)]
    assert [sent.request.topics[0].partitions[0].timestamp for sent in asked] == [-1, -2]
    for sent, offset in zip(asked, (end, start), strict=True):
        harness.sent.remove(sent)
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=error, offset=offset)
        topics = [ListOffsetsTopicResponse(name="t", partitions=[found])]
        harness.answer(sent, ListOffsetsResponse(topics=topics))
    return asked


@pytest.mark.parametrize(
    ("start", "end", "then"),
    [
        (0, 1, (1, 4, 3)),  # an unclean leader, which is behind
        (0, 3, (3, 4, 3)),  # it has grown meanwhile
        (7, 9, (7, 4, -1)),  # this replica was away for too long
    ],
)
def test_an_offset_that_is_out_of_range_is_settled_by_the_leaders(
    start: int, end: int, then: tuple[int, int, int]
) -> None:
    harness = harness_at(3)
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    first, _ = offsets(harness, start=start, end=end)
    assert (first.request.replica_id, first.max_version, first.purpose) == (1, 11, "fetch-0")
    assert first.request.topics[0].partitions[0].current_leader_epoch == 4
    harness.idle()
    assert harness.asked == {0: then}
    assert harness.log().log_start_offset == (7 if start == 7 else 0)


def test_a_leader_that_cannot_tell_its_offsets_is_asked_again_later() -> None:
    harness = harness_at(3)
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    offsets(harness, start=-1, end=-1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    harness.idle()
    assert harness.asked == {}
    harness.host.advance(BACKOFF_MS)
    assert harness.asked == {0: (3, 4, 3)}
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    offsets(harness, start=-1, end=-1, error=ErrorCode.FENCED_LEADER_EPOCH)
    harness.host.advance(BACKOFF_MS)
    harness.idle()
    assert harness.asked == {}


# --- what fails


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
    ],
)
def test_a_partition_that_is_refused_waits_alone(code: ErrorCode) -> None:
    harness = harness_at(3, partitions=2)
    harness.fetch(data(error=code), data(stored(3, 4), index=1))
    (sent,) = harness.sent
    assert (asked_of(sent), sent.request.forgotten_topics_data[0].partitions) == ({1: (4, 4, 4)}, [0])
    harness.host.advance(BACKOFF_MS - 1)
    harness.idle()
    assert harness.asked == {}
    harness.host.advance(1)
    harness.idle()
    assert harness.asked == {0: (3, 4, 3)}


def test_a_fenced_follower_waits_for_the_metadata() -> None:
    harness = harness_at(3)
    harness.fetch(data(error=ErrorCode.FENCED_LEADER_EPOCH))
    harness.host.advance(60_000)
    harness.idle()
    assert harness.asked == {}
    harness.change(leader=2)
    assert harness.asked == {0: (3, 5, 3)}


def test_corrupt_batches_are_fetched_again_and_others_go_on() -> None:
    harness = harness_at(3, partitions=2)
    broken = bytearray(stored(3, 4, 4))
    broken[-1] ^= 1
    harness.fetch(data(bytes(broken)), data(stored(3, 4), index=1))
    assert harness.asked == {1: (4, 4, 4)}
    assert harness.log().log_end_offset == 3
    harness.host.advance(BACKOFF_MS)
    harness.idle()
    assert harness.asked == {0: (3, 4, 3)}


def test_a_leader_that_is_not_reached_is_left_alone_and_then_asked_for_all() -> None:
    harness = harness_at(3, partitions=2)
    harness.fail_fetch()
    harness.host.advance(BACKOFF_MS - 1)
    assert not harness.sent
    harness.host.advance(1)
    (sent,) = harness.sent
    assert (sent.request.session_epoch, sorted(asked_of(sent))) == (0, [0, 1])


def test_a_session_that_the_leader_has_forgotten_is_begun_anew_at_once() -> None:
    harness = harness_at(3)
    harness.fetch(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    (sent,) = harness.sent
    assert (sent.request.session_id, sent.request.session_epoch, asked_of(sent)) == (0, 0, {0: (3, 4, 3)})


def test_a_leader_that_serves_nothing_is_left_alone() -> None:
    harness = harness_at(3)
    harness.fetch(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert not harness.sent
    harness.host.advance(BACKOFF_MS)
    assert harness.asked == {0: (3, 4, 3)}


def test_a_log_that_fails_is_offline_and_the_others_are_followed() -> None:
    harness = harness_at(3, partitions=2)
    harness.logs.handle_log_failure(harness.log(), StorageError("broken"))
    harness.turn()
    assert [harness.partition(index).role for index in range(2)] == [
        Role.OFFLINE
    ] * 2  # one directory for both
    harness.fetch(data(stored(3, 4)))
    (sent,) = harness.sent
    assert sent.request.forgotten_topics_data[0].partitions == [0, 1]


# --- changes of leaders


def test_an_answer_that_comes_after_a_change_of_leader_changes_nothing() -> None:
    harness = harness_at(3)
    old = harness.take()
    harness.change(leader=3)
    assert harness.asked == {0: (3, 5, 3)}
    new = harness.take()
    harness.answer(old, answer(data(stored(3, 4), high_watermark=3)))
    assert (harness.log().log_end_offset, harness.log().high_watermark) == (3, 2)
    harness.sent.clear()
    harness.answer(new, answer(data(stored(3, 5), high_watermark=3)))
    assert (harness.log().log_end_offset, harness.asked) == (4, {0: (4, 5, 5)})


def answer(*partitions: PartitionData) -> FetchResponse:
    return FetchResponse(
        session_id=5, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))]
    )


def test_who_leads_has_written_what_it_fetched_and_fetches_no_more() -> None:
    harness = harness_at(3)
    sent = harness.take()

    def both_in_one_turn() -> None:
        sent.on_response(answer(data(stored(3, 4), high_watermark=3)))
        harness.change(leader=1)

    harness.host.call_soon(both_in_one_turn)
    harness.turn()
    assert (harness.partition().role, harness.log().written_end_offset, harness.asked) == (Role.LEADER, 4, {})
    assert harness.log().leader_epochs[-1] == (5, 4)


def test_a_log_that_was_cut_leads_once_that_is_synced() -> None:
    harness = harness_at(5)
    harness.log().flush()
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    harness.change(leader=1)
    harness.change(leader=1)
    assert (harness.partition().role, harness.log().awaits_sync, harness.asked) == (Role.FOLLOWER, True, {})
    assert not harness.disk.is_synced(f"{harness.log().directory}/{0:020d}.log")
    finish(harness, work)
    assert (harness.partition().role, harness.log().awaits_sync) == (Role.LEADER, False)
    assert harness.disk.is_synced(f"{harness.log().directory}/{0:020d}.log")
    assert harness.log().log_end_offset == 4


def test_a_log_that_was_cut_does_not_lead_where_another_does_meanwhile() -> None:
    harness = harness_at(5)
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    harness.change(leader=1)
    harness.change(leader=2)
    finish(harness, work)
    assert (harness.partition().role, harness.log().awaits_sync) == (Role.FOLLOWER, False)


@pytest.mark.parametrize("change", [{}, {"isr": [2, 1]}, {"leader": 2, "isr": [2, 1]}])
def test_a_new_log_asks_for_no_more_before_it_is_in_its_place(change: dict[str, Any]) -> None:
    """Whatever changes meanwhile: the leader would take what it asks from for what it has for good."""
    harness = FollowerHarness()
    work = harness.host.hold_work()
    harness.follow()
    harness.fetch(data(stored(0, 4, 4, 4), high_watermark=0))
    assert (harness.log().log_end_offset, harness.log().is_recoverable, harness.asked) == (3, False, {})
    if change:
        harness.change(**change)
    harness.idle()
    harness.turn()
    assert (harness.log().is_recoverable, harness.asked) == (False, {})
    finish(harness, work)
    assert harness.log().is_recoverable
    assert [offset for offset, *_ in harness.asked.values()] == [3]


def test_nobody_is_asked_where_nobody_leads_or_is_not_known() -> None:
    harness = harness_at(3)
    harness.take()
    harness.change(leader=-1)
    harness.change(leader=7, replicas=[7, 1])
    assert not harness.sent
    harness.host.advance(BACKOFF_MS)
    assert not harness.sent


def test_a_broker_that_stops_asks_for_nothing() -> None:
    harness = harness_at(3)
    harness.fetchers.stop()
    harness.fetch(data(stored(3, 4)))
    harness.change(leader=3)
    harness.host.advance(BACKOFF_MS)
    assert (harness.sent, harness.log().log_end_offset) == ([], 3)


def test_where_each_message_is_to_be_flushed_the_leader_hears_of_it_then() -> None:
    harness = FollowerHarness({"log.flush.interval.messages": "1"})
    harness.follow()
    work = harness.host.hold_work()
    harness.fetch(data(stored(0, 3), high_watermark=0))
    assert (harness.asked, harness.log().written_end_offset, harness.log().recovery_point) == ({}, 1, 0)
    for task in work:
        task.deliver()
    harness.host.run_pending()
    harness.idle()
    assert (harness.asked, harness.log().recovery_point) == ({0: (1, 4, 3)}, 1)


def test_idle_partitions_cost_nothing() -> None:
    harness = FollowerHarness()
    harness.follow(100)
    harness.fetch(*(data(index=index) for index in range(100)))
    harness.fetch(data(stored(0, 4), index=7))
    assert harness.asked == {7: (1, 4, 4)}
