"""The replica fetcher: its requests, and its reactions to responses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from kwire.broker.replication.replica_fetcher import FIRST_BACKOFF_MS
from kwire.broker.replication.roles import Role
from kwire.broker.storage.checkpoints import OffsetCheckpoints
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
from kwire.wire.primitives import TopicPartition
from tests.broker.replication.follower_harness import (
    BROKER_EPOCH,
    TOPIC_ID,
    FollowerHarness,
    Sent,
    data,
    fetch_positions_of,
    leader_batches,
)

BACKOFF_MS = 1_000
LAST_OFFSET_DELTA_AT = 23


def harness_at(end: int = 3, *, epoch: int = 4, partitions: int = 1) -> FollowerHarness:
    """Return a follower with records of epoch 3, the first two of which are committed."""
    harness = FollowerHarness()
    harness.follow(partitions, epoch=epoch)
    records = leader_batches(0, *[3] * end)
    harness.fetch(*(data(records, index=index, high_watermark=2) for index in range(partitions)))
    return harness


def run_workers(harness: FollowerHarness, work: list[WorkerTask]) -> None:
    """Run the queued work of the workers and its callbacks."""
    while work:
        work.pop(0).deliver()
        harness.host.run_pending()


# --- asking


def test_fetch_request_fields() -> None:
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
    assert (topic.topic_id, harness.fetch_positions) == (TOPIC_ID, {0: (0, 4, -1), 1: (0, 4, -1)})


def test_partitions_are_distributed_over_fetchers_and_leaders() -> None:
    harness = FollowerHarness({"num.replica.fetchers": "2"})
    harness.follow(3)
    assert [(sent.purpose, sorted(fetch_positions_of(sent))) for sent in harness.sent] == [
        ("fetch-0", [0, 2]),
        ("fetch-1", [1]),
    ]
    harness.sent.clear()
    harness.change(1, leader=3)
    (sent,) = harness.sent
    assert (sent.to.port, sent.purpose, fetch_positions_of(sent)) == (9003, "fetch-1", {1: (0, 5, -1)})


def test_fetched_records_are_written_before_the_next_fetch() -> None:
    harness = FollowerHarness()
    harness.follow(2)
    harness.fetch(data(leader_batches(0, 3, 3, 4), high_watermark=2), data(index=1))
    assert harness.fetch_positions == {0: (3, 4, 4)}
    log = harness.log()
    assert (log.written_end_offset, log.high_watermark, log.leader_epochs) == (3, 2, [(3, 0), (4, 2)])
    harness.respond_empty()
    assert harness.fetch_positions == {}
    harness.fetch(data(high_watermark=3))
    assert (log.high_watermark, harness.fetch_positions) == (3, {})


def test_high_watermark_is_limited_by_the_log_end_and_never_decreases() -> None:
    harness = harness_at(3)
    for leader_high_watermark, expected in ((9, 3), (1, 3)):
        harness.fetch(data(high_watermark=leader_high_watermark))
        assert harness.log().high_watermark == expected


def test_log_start_offset_follows_the_leaders() -> None:
    harness = harness_at(3)
    harness.fetch(data(high_watermark=3, log_start_offset=2))
    (sent,) = harness.sent
    assert harness.log().log_start_offset == 2
    assert [one.log_start_offset for topic in sent.request.topics for one in topic.partitions] == [2]


def test_log_start_within_a_batch_fetches_that_batch() -> None:
    harness = FollowerHarness()
    harness.follow()
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    respond_offsets(harness, start=7, end=20)
    harness.respond_empty()
    assert harness.fetch_positions == {0: (7, 4, -1)}
    wide = bytearray(leader_batches(5, 3))
    wide[LAST_OFFSET_DELTA_AT : LAST_OFFSET_DELTA_AT + 4] = (9).to_bytes(4, "big")
    update_crc(wide, 0, len(wide))
    work = harness.host.hold_work()
    harness.fetch(data(bytes(wide), high_watermark=20, log_start_offset=7))
    log = harness.log()
    assert (log.segment_base_offsets, log.log_end_offset, log.awaits_sync, harness.fetch_positions) == (
        [5],
        5,
        True,
        {},
    )
    run_workers(harness, work)
    harness.respond_empty()
    assert (log.segment_base_offsets, log.log_start_offset, log.log_end_offset) == ([5], 7, 15)
    assert harness.fetch_positions == {0: (15, 4, 3)}


def test_config_change_redistributes_partitions_over_fetchers() -> None:
    harness = FollowerHarness()
    harness.follow(4)
    harness.config.update({"num.replica.fetchers": "2"}, {})
    harness.fetchers.config_changed()
    harness.turn()
    first, second = harness.sent
    assert (first.purpose, second.purpose, sorted(fetch_positions_of(second))) == (
        "fetch-0",
        "fetch-1",
        [1, 3],
    )
    harness.sent.remove(second)
    harness.fetch(*(data(index=index) for index in range(4)))
    (sent,) = harness.sent
    assert (sorted(fetch_positions_of(sent)), sent.request.forgotten_topics_data[0].partitions) == (
        [0, 2],
        [1, 3],
    )


# --- where the logs differ


def test_truncation_to_the_diverging_epoch_is_synced_before_the_next_fetch() -> None:
    harness = harness_at(5)
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    log = harness.log()
    assert (log.log_end_offset, log.awaits_sync) == (4, True)
    (sent,) = harness.sent
    assert (fetch_positions_of(sent), sent.request.forgotten_topics_data[0].partitions) == ({}, [0])
    for task in work:
        task.deliver()
    harness.host.run_pending()
    harness.respond_empty()
    assert harness.fetch_positions == {0: (4, 4, 3)}
    harness.fetch(data(leader_batches(4, 4), high_watermark=5))
    assert log.leader_epochs == [(3, 0), (4, 4)]


@pytest.mark.parametrize(
    ("diverging", "then"),
    [
        ((3, 3), (3, 5, 3)),  # the epoch is known: truncate to the leader's end of it
        ((3, 9), (4, 5, 3)),  # the follower's end of the epoch is earlier
        ((2, 1), (1, 5, 1)),  # the epoch is unknown: the previous epoch is checked next
        (
            (0, 1),
            (0, 5, -1),
        ),  # older than every epoch: truncate to the first epoch's start or the leader's end
    ],
)
def test_truncation_offset_by_diverging_epoch(diverging: tuple[int, int], then: tuple[int, int, int]) -> None:
    harness = FollowerHarness()
    harness.follow(epoch=5)
    harness.fetch(data(leader_batches(0, 1, 3, 3, 3, 4), high_watermark=0))
    harness.fetch(data(diverging=diverging))
    harness.respond_empty()
    assert harness.fetch_positions == {0: then}


def test_truncation_without_effect_backs_off() -> None:
    harness = harness_at(3)
    harness.fetch(data(diverging=(3, 3)))
    assert (harness.log().log_end_offset, harness.fetch_positions) == (3, {})
    harness.respond_empty()
    for wrong in ((3, -1), (3, 3)):
        assert not harness.sent
        harness.host.advance(BACKOFF_MS)
        assert harness.fetch_positions == {0: (3, 4, 3)}
        harness.fetch(data(diverging=wrong))
        assert harness.fetch_positions == {}
        harness.respond_empty()
    assert harness.log().log_end_offset == 3


def test_high_watermark_of_a_diverging_response_counts_if_the_epoch_is_known() -> None:
    harness = harness_at(5)
    harness.fetch(data(diverging=(2, 1), high_watermark=4))
    assert harness.log().high_watermark == 0
    harness = harness_at(5)
    harness.fetch(data(diverging=(3, 4), high_watermark=9))
    assert (harness.log().log_end_offset, harness.log().high_watermark) == (4, 4)


def test_log_without_epochs_is_truncated_to_the_high_watermark() -> None:
    harness = FollowerHarness()
    harness.follow()
    harness.fetch(data(leader_batches(0, -1, -1, -1), high_watermark=2))
    assert harness.fetch_positions == {0: (3, 4, -1)}
    harness.change(leader=3)
    harness.sent.pop(0)
    assert harness.fetch_positions == {0: (2, 5, -1)}


def respond_offsets(harness: FollowerHarness, *, start: int, end: int, error: int = 0) -> list[Sent]:
    """Respond with the leader's log start and end offsets."""
    asked = [sent for sent in harness.sent if isinstance(sent.request, ListOffsetsRequest)]
    assert [sent.request.topics[0].partitions[0].timestamp for sent in asked] == [-1, -2]
    for sent, offset in zip(asked, (end, start), strict=True):
        harness.sent.remove(sent)
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=error, offset=offset)
        topics = [ListOffsetsTopicResponse(name="t", partitions=[found])]
        harness.respond(sent, ListOffsetsResponse(topics=topics))
    return asked


@pytest.mark.parametrize(
    ("start", "end", "then"),
    [
        (0, 1, (1, 4, 3)),  # an unclean leader that is behind
        (0, 3, (3, 4, 3)),  # the leader's log has grown meanwhile
        (7, 9, (7, 4, -1)),  # the follower's offset is below the log start
    ],
)
def test_offset_out_of_range_uses_the_leaders_offsets(
    start: int, end: int, then: tuple[int, int, int]
) -> None:
    harness = harness_at(3)
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    first, _ = respond_offsets(harness, start=start, end=end)
    assert (first.request.replica_id, first.max_version, first.purpose) == (1, 11, "fetch-0")
    assert first.request.topics[0].partitions[0].current_leader_epoch == 4
    harness.respond_empty()
    assert harness.fetch_positions == {0: then}
    assert harness.log().log_start_offset == (7 if start == 7 else 0)


def test_list_offsets_error_is_retried_later() -> None:
    harness = harness_at(3)
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    respond_offsets(harness, start=-1, end=-1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    harness.respond_empty()
    assert harness.fetch_positions == {}
    harness.host.advance(BACKOFF_MS)
    assert harness.fetch_positions == {0: (3, 4, 3)}
    harness.fetch(data(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    respond_offsets(harness, start=-1, end=-1, error=ErrorCode.FENCED_LEADER_EPOCH)
    harness.host.advance(BACKOFF_MS)
    harness.respond_empty()
    assert harness.fetch_positions == {}


# --- what fails


@pytest.mark.parametrize(
    ("code", "backoff_ms"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FIRST_BACKOFF_MS),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FIRST_BACKOFF_MS),
        (ErrorCode.UNKNOWN_TOPIC_ID, FIRST_BACKOFF_MS),
        (ErrorCode.KAFKA_STORAGE_ERROR, BACKOFF_MS),
        (ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, BACKOFF_MS),
    ],
)
def test_partition_error_backs_off_only_that_partition(code: ErrorCode, backoff_ms: int) -> None:
    harness = harness_at(3, partitions=2)
    harness.fetch(data(error=code), data(leader_batches(3, 4), index=1))
    (sent,) = harness.sent
    assert (fetch_positions_of(sent), sent.request.forgotten_topics_data[0].partitions) == (
        {1: (4, 4, 4)},
        [0],
    )
    harness.host.advance(backoff_ms - 1)
    harness.respond_empty()
    assert harness.fetch_positions == {}
    harness.host.advance(1)
    harness.respond_empty()
    assert harness.fetch_positions == {0: (3, 4, 3)}


def test_backoff_after_errors_of_different_metadata_doubles_and_is_reset() -> None:
    harness = harness_at(3)
    for backoff_ms in (50, 100, 200, 400, 800, 1_000, 1_000):
        harness.fetch(data(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        harness.respond_empty()
        harness.host.advance(backoff_ms - 1)
        assert not harness.sent
        harness.host.advance(1)
        assert harness.fetch_positions == {0: (3, 4, 3)}
    harness.fetch(data(leader_batches(3, 4)))
    harness.fetch(data(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    harness.respond_empty()
    harness.host.advance(FIRST_BACKOFF_MS)
    assert harness.fetch_positions == {0: (4, 4, 4)}


def test_fenced_follower_waits_for_a_metadata_change() -> None:
    harness = harness_at(3)
    harness.fetch(data(error=ErrorCode.FENCED_LEADER_EPOCH))
    harness.host.advance(60_000)
    harness.respond_empty()
    assert harness.fetch_positions == {}
    harness.change(leader=2)
    assert harness.fetch_positions == {0: (3, 5, 3)}


def test_corrupt_batch_is_fetched_again_later() -> None:
    harness = harness_at(3, partitions=2)
    broken = bytearray(leader_batches(3, 4, 4))
    broken[-1] ^= 1
    harness.fetch(data(bytes(broken)), data(leader_batches(3, 4), index=1))
    assert harness.fetch_positions == {1: (4, 4, 4)}
    assert harness.log().log_end_offset == 3
    harness.host.advance(BACKOFF_MS)
    harness.respond_empty()
    assert harness.fetch_positions == {0: (3, 4, 3)}


def test_unreachable_leader_backs_off_and_gets_a_full_request() -> None:
    harness = harness_at(3, partitions=2)
    for backoff_ms in (50, 100, 200, 400, 800, 1_000, 1_000):
        harness.fail_fetch()
        harness.host.advance(backoff_ms - 1)
        assert not harness.sent
        harness.host.advance(1)
        (sent,) = harness.sent
        assert (sent.request.session_epoch, sorted(fetch_positions_of(sent))) == (0, [0, 1])
    harness.fetch(data(leader_batches(3, 4)), data(index=1))
    harness.fail_fetch()
    harness.host.advance(FIRST_BACKOFF_MS)
    assert len(harness.sent) == 1


def test_new_partition_ends_the_wait_of_the_leader() -> None:
    harness = harness_at(3)
    assert harness.ended_waits == []
    for partitions in (2, 3):
        harness.follow(partitions)
        assert harness.ended_waits == [(PeerAddress("b2", 9002), "fetch-0")], "one request is enough"
    harness.respond_empty()
    assert sorted(harness.fetch_positions) == [1, 2]
    harness.respond_empty()
    harness.respond_empty()
    assert len(harness.ended_waits) == 1


def test_new_metadata_ends_the_backoff_of_an_unreachable_leader() -> None:
    harness = harness_at(3)
    for _ in range(6):
        harness.fail_fetch()
        harness.host.advance(BACKOFF_MS)
    harness.fail_fetch()
    assert not harness.sent
    harness.change(leader=2)
    assert harness.fetch_positions == {0: (3, 5, 3)}
    assert harness.ended_backoffs == [PeerAddress("b2", 9002)]


def test_unknown_fetch_session_is_recreated_at_once() -> None:
    harness = harness_at(3)
    harness.fetch(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    (sent,) = harness.sent
    assert (sent.request.session_id, sent.request.session_epoch, fetch_positions_of(sent)) == (
        0,
        0,
        {0: (3, 4, 3)},
    )


def test_request_level_error_backs_off() -> None:
    harness = harness_at(3)
    harness.fetch(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert not harness.sent
    harness.host.advance(BACKOFF_MS)
    assert harness.fetch_positions == {0: (3, 4, 3)}


def test_log_failure_takes_its_directory_offline() -> None:
    harness = harness_at(3, partitions=2)
    harness.logs.handle_log_failure(harness.log(), StorageError("broken"))
    harness.turn()
    assert [harness.partition(index).role for index in range(2)] == [
        Role.OFFLINE
    ] * 2  # both logs are in one directory
    harness.fetch(data(leader_batches(3, 4)))
    (sent,) = harness.sent
    assert sent.request.forgotten_topics_data[0].partitions == [0, 1]


# --- changes of leaders


def test_response_of_an_old_leader_is_ignored() -> None:
    harness = harness_at(3)
    old = harness.take()
    harness.change(leader=3)
    assert harness.fetch_positions == {0: (3, 5, 3)}
    new = harness.take()
    harness.respond(old, fetch_response(data(leader_batches(3, 4), high_watermark=3)))
    assert (harness.log().log_end_offset, harness.log().high_watermark) == (3, 2)
    harness.sent.clear()
    harness.respond(new, fetch_response(data(leader_batches(3, 5), high_watermark=3)))
    assert (harness.log().log_end_offset, harness.fetch_positions) == (4, {0: (4, 5, 5)})


def fetch_response(*partitions: PartitionData) -> FetchResponse:
    return FetchResponse(
        session_id=5, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))]
    )


def test_follower_that_becomes_leader_writes_fetched_records_and_stops_fetching() -> None:
    harness = harness_at(3)
    sent = harness.take()

    def both_in_one_turn() -> None:
        sent.on_response(fetch_response(data(leader_batches(3, 4), high_watermark=3)))
        harness.change(leader=1)

    harness.host.call_soon(both_in_one_turn)
    harness.turn()
    assert (harness.partition().role, harness.log().written_end_offset, harness.fetch_positions) == (
        Role.LEADER,
        4,
        {},
    )
    assert harness.log().leader_epochs[-1] == (5, 4)


@pytest.mark.parametrize("leader", [1, 2])
def test_truncation_below_the_recovery_point_is_checkpointed_before_the_next_append(leader: int) -> None:
    """After a power loss, log recovery would not check unsynced records before the old recovery point."""
    harness = harness_at(5)
    harness.log().flush()
    harness.logs.write_checkpoints()
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    if leader == 1:
        harness.change(leader=1)
    assert recovery_points(harness) == {("t", 0): 5}
    while recovery_points(harness) != {("t", 0): 4}:
        work.pop(0).deliver()
        harness.host.run_pending()
        assert harness.log().awaits_sync
    run_workers(harness, work)
    if leader == 2:
        harness.respond_empty()
        assert harness.fetch_positions == {0: (4, 4, 3)}
    assert (harness.partition().role is Role.LEADER) == (leader == 1)
    harness.disk.power_cut(random.Random(1))
    assert recovery_points(harness) == {("t", 0): 4}


def test_truncation_after_the_recovery_point_writes_no_checkpoint() -> None:
    harness = harness_at(5)
    harness.logs.write_checkpoints()
    harness.fetch(data(diverging=(3, 4)))
    assert not harness.log().awaits_sync
    assert harness.log().recovery_point == 4
    assert recovery_points(harness) == {("t", 0): 0}


def recovery_points(harness: FollowerHarness) -> Mapping[TopicPartition, int]:
    """Return the recovery points that the checkpoint file has."""
    return OffsetCheckpoints.read(harness.disk, "/d").recovery_points


def test_becoming_leader_waits_for_the_sync_of_a_truncation() -> None:
    harness = harness_at(5)
    harness.log().flush()
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    harness.change(leader=1)
    harness.change(leader=1)
    assert (harness.partition().role, harness.log().awaits_sync, harness.fetch_positions) == (
        Role.FOLLOWER,
        True,
        {},
    )
    assert not harness.disk.is_synced(f"{harness.log().directory}/{0:020d}.log")
    run_workers(harness, work)
    assert (harness.partition().role, harness.log().awaits_sync) == (Role.LEADER, False)
    assert harness.disk.is_synced(f"{harness.log().directory}/{0:020d}.log")
    assert harness.log().log_end_offset == 4


def test_truncated_follower_stays_follower_if_the_leader_changes_again() -> None:
    harness = harness_at(5)
    work = harness.host.hold_work()
    harness.fetch(data(diverging=(3, 4)))
    harness.change(leader=1)
    harness.change(leader=2)
    run_workers(harness, work)
    assert (harness.partition().role, harness.log().awaits_sync) == (Role.FOLLOWER, False)


@pytest.mark.parametrize("change", [{}, {"isr": [2, 1]}, {"leader": 2, "isr": [2, 1]}])
def test_new_log_fetches_again_once_its_directory_is_durable(change: dict[str, Any]) -> None:
    """The leader counts fetched offsets as replicated, so a fetch must wait for durability."""
    harness = FollowerHarness()
    work = harness.host.hold_work()
    harness.follow()
    harness.fetch(data(leader_batches(0, 4, 4, 4), high_watermark=0))
    assert (harness.log().log_end_offset, harness.log().is_recoverable, harness.fetch_positions) == (
        3,
        False,
        {},
    )
    if change:
        harness.change(**change)
    harness.respond_empty()
    harness.turn()
    assert (harness.log().is_recoverable, harness.fetch_positions) == (False, {})
    run_workers(harness, work)
    assert harness.log().is_recoverable
    assert [offset for offset, *_ in harness.fetch_positions.values()] == [3]


def test_no_fetch_without_a_known_leader() -> None:
    harness = harness_at(3)
    harness.take()
    harness.change(leader=-1)
    harness.change(leader=7, replicas=[7, 1])
    assert not harness.sent
    harness.host.advance(BACKOFF_MS)
    assert not harness.sent


def test_stopped_fetchers_send_nothing() -> None:
    harness = harness_at(3)
    harness.fetchers.stop()
    harness.fetch(data(leader_batches(3, 4)))
    harness.change(leader=3)
    harness.host.advance(BACKOFF_MS)
    assert (harness.sent, harness.log().log_end_offset) == ([], 3)


def test_flush_per_message_precedes_the_next_fetch() -> None:
    harness = FollowerHarness({"log.flush.interval.messages": "1"})
    harness.follow()
    work = harness.host.hold_work()
    harness.fetch(data(leader_batches(0, 3), high_watermark=0))
    assert (harness.fetch_positions, harness.log().written_end_offset, harness.log().recovery_point) == (
        {},
        1,
        0,
    )
    for task in work:
        task.deliver()
    harness.host.run_pending()
    harness.respond_empty()
    assert (harness.fetch_positions, harness.log().recovery_point) == ({0: (1, 4, 3)}, 1)


def test_fetch_has_only_changed_partitions() -> None:
    harness = FollowerHarness()
    harness.follow(100)
    harness.fetch(*(data(index=index) for index in range(100)))
    harness.fetch(data(leader_batches(0, 4), index=7))
    assert harness.fetch_positions == {7: (1, 4, 4)}
