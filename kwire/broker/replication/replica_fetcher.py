"""Fetches from one leader for those partitions that follow it: one request at a time, in one session.

An answer is taken within the turn that it comes in: batches are staged, logs cut, partitions held back. When
the turn ends, all is written, and only then the next request tells the leader how long the logs are.

What concerns one partition holds up no other: it is left out of the session until its disk is done, its back-
off is over, or the leader has said where its log begins and ends. A leader that is not reached is left alone
for `replica.fetch.backoff.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kwire.broker.replication.fetch_session_handler import FetchSessionHandler, TopicIdPartition
from kwire.broker.replication.fetcher_ports import FetcherPorts
from kwire.broker.replication.follower import FetchEvent, FetchState, Follower
from kwire.broker.replication.leader_offsets import LeaderOffsets
from kwire.broker.storage.disk import StorageError
from kwire.host.host import PeerAddress, PeerUnreachable, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    FIRST_VERSION_WITH_REPLICA_STATE,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from kwire.wire.schema import Message

TRANSIENT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""What a leader answers that has not heard of its leadership yet, or has heard of another's."""

SESSION_LOST: Final = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
"""What a leader answers that can serve, and does not know the session, or knows it otherwise."""


class ReplicaFetcher:
    """The fetcher of one leader; a leader may have several, each with a share of the partitions."""

    def __init__(self, leader_id: int, number: int, ports: FetcherPorts) -> None:
        self.leader_id = leader_id
        self.purpose = f"fetch-{number}"
        self._ports = ports
        self._host = ports.host
        self._logger = ports.host.logger("kwire.partition")
        self._session = FetchSessionHandler()
        self._followers: dict[TopicIdPartition, Follower] = {}
        self._offsets = LeaderOffsets(ports, self._address, self.purpose)
        self._touched: dict[Follower, None] = {}
        """Those that the end of this turn is to look at."""
        self._throttled: dict[Follower, None] = {}
        """Those that wait until others have been copied for long enough."""
        self._is_staged = False
        self._in_flight = False
        self._backoff: Timer | None = None
        self._is_stopped = False
        self._is_unreachable_logged = False
        """Whether that was told already."""

    def __repr__(self) -> str:
        return f"{self.purpose} from broker {self.leader_id}"

    def __len__(self) -> int:
        return len(self._followers)

    # --- who follows

    def add(self, follower: Follower) -> None:
        """Fetch for it, too."""
        self._followers[follower.key] = follower
        to_retry: list[Follower] = []
        self._guarded(follower, follower.start, to_retry)

    def remove(self, follower: Follower) -> None:
        """Fetch for it no more."""
        follower.transition(FetchEvent.ENDED)
        if self._followers.get(follower.key) is follower:
            del self._followers[follower.key]
            self._touched.pop(follower, None)
            self._session.remove(follower.key)

    def stop(self) -> None:
        """Ask for nothing any more: the broker ends."""
        self._is_stopped = True
        if self._backoff is not None:
            self._backoff.cancel()

    # --- the turn

    def _touch(self, follower: Follower) -> None:
        self._touched[follower] = None
        self._stage()

    def _stage(self) -> None:
        if not self._is_staged and not self._is_stopped:
            self._is_staged = True
            self._ports.stage(self)

    def commit(self) -> None:
        """The turn ends: write what was fetched, then ask for more."""
        self._is_staged = False
        touched, self._touched = self._touched, {}
        for follower in touched:
            must_sync = follower.has_staged and follower.commit()
            if follower.state is not FetchState.FETCHING:
                continue
            log = follower.partition.log
            if must_sync or log.awaits_sync or log.has_unrecoverable_records:
                follower.transition(FetchEvent.MUST_SYNC)
                self._session.remove(follower.key)
                follower.partition.sync(partial(self._synced, follower))
            elif self._is_throttled(follower):
                self._session.remove(follower.key)
                self._throttle(follower)
            else:
                self._session.add(follower.key, follower.fetch_position)
        self._send_fetch()

    def _is_throttled(self, follower: Follower) -> bool:
        quota, partition = self._ports.quota, follower.partition
        return (
            not follower.is_caught_up
            and quota.is_throttled(partition.topic, partition.index)
            and quota.is_quota_exceeded
        )

    def _throttle(self, follower: Follower) -> None:
        if not self._throttled:
            self._host.internode_clock.schedule(
                self._ports.config.replica_fetch_backoff_ms, self._check_throttled
            )
        self._throttled[follower] = None

    def _check_throttled(self) -> None:
        throttled, self._throttled = self._throttled, {}
        for follower in throttled:
            if follower.state is not FetchState.ENDED:
                self._touch(follower)

    def _synced(self, follower: Follower, error: ApiError | None) -> None:
        # Also told so where the role has changed meanwhile, and the sync is still under way.
        if follower.state is FetchState.SYNCING:
            follower.transition(FetchEvent.SYNCED)
            to_retry: list[Follower] = []
            self._guarded(follower, follower.stage_held, to_retry)
            self._schedule_retry(to_retry)

    # --- asking

    def _address(self) -> PeerAddress | None:
        return self._ports.address_of(self.leader_id)

    def _send_fetch(self) -> None:
        if self._in_flight or self._backoff is not None or self._is_stopped or self._session.is_empty:
            return
        address = self._address()
        if address is None:
            self._leader_unreachable("it is not registered")
            return
        config, ports = self._ports.config, self._ports
        request = self._session.build_request(config.replica_fetch_max_bytes)
        request.max_wait_ms = config.replica_fetch_wait_max_ms
        request.min_bytes = config.replica_fetch_min_bytes
        request.max_bytes = config.replica_fetch_response_max_bytes
        if ports.fetch_version >= FIRST_VERSION_WITH_REPLICA_STATE:
            request.replica_state = ReplicaState(replica_id=config.node_id, replica_epoch=ports.broker_epoch)
        else:
            request.replica_id = config.node_id
        self._in_flight = True
        self._host.peers.send(
            address,
            self.purpose,
            request,
            deadline_ms=self._host.internode_clock.monotonic_ms() + config.replica_socket_timeout_ms,
            on_response=self._handle_response,
            max_version=ports.fetch_version,
        )

    def _handle_response(self, response: Message | PeerUnreachable) -> None:
        self._in_flight = False
        if self._is_stopped:
            return
        if isinstance(response, PeerUnreachable):
            self._session.reset()
            self._leader_unreachable(str(response))
            return
        assert isinstance(response, FetchResponse)
        self._is_unreachable_logged = False
        problem = self._session.handle_response(response)
        if problem is not None:
            self._logger.info("%r begins a new session: %s", self, problem)
            if response.error_code not in SESSION_LOST:
                self._back_off()
        else:
            self._process_response(response)
        self._stage()

    def _leader_unreachable(self, reason: str) -> None:
        if not self._is_unreachable_logged:
            self._is_unreachable_logged = True
            self._logger.warning("%r: the leader is not reached: %s", self, reason)
        self._back_off()

    def _back_off(self) -> None:
        self._backoff = self._host.internode_clock.schedule(
            self._ports.config.replica_fetch_backoff_ms, self._backoff_over
        )

    def _backoff_over(self) -> None:
        self._backoff = None
        self._stage()

    # --- taking an answer

    def _process_response(self, response: FetchResponse) -> None:
        out_of_range: list[Follower] = []
        to_retry: list[Follower] = []
        for key, fetch_position, data in self._session.fetched_partitions(response):
            follower = self._followers[key]
            if (
                fetch_position.leader_epoch != follower.leader_epoch
                or follower.state is not FetchState.FETCHING
            ):
                continue
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                follower.transition(FetchEvent.OUT_OF_RANGE)
                out_of_range.append(follower)
                self._session.remove(key)
            elif data.error_code:
                self._retry_later(follower, data.error_code, to_retry)
            else:
                self._guarded(follower, partial(self._process_partition, follower, data), to_retry)
        self._schedule_retry(to_retry)
        if out_of_range:
            self._offsets.find(out_of_range, self._offsets_listed)

    def _process_partition(self, follower: Follower, data: PartitionData) -> bool:
        diverging = data.diverging_epoch
        if diverging.epoch < 0:
            size_bytes = follower.stage_fetched(data)
            quota, partition = self._ports.quota, follower.partition
            if size_bytes and quota.is_throttled(partition.topic, partition.index):
                quota.record(size_bytes)
            return True
        return diverging.end_offset >= 0 and follower.truncate_to_leader(data)

    def _guarded(self, follower: Follower, work: Callable[[], bool], to_retry: list[Follower]) -> None:
        """Do something to a log; `work` says whether there is any use in going on at once."""
        try:
            if not work():
                self._retry_later(follower, ErrorCode.NONE, to_retry)
        except StorageError:
            pass  # its log is offline by now, and follows no more
        except ApiError as error:
            if error.code == ErrorCode.CORRUPT_MESSAGE:
                # It may have been read while the leader was cut: Kafka, too, just fetches it again.
                self._logger.error("%r: %s", follower, error)
                self._retry_later(follower, ErrorCode.NONE, to_retry)
            elif error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self._await_metadata(follower, str(error))
        except Exception:
            self._logger.exception("%r: the leader's answer cannot be taken", follower)
            self._await_metadata(follower, "an unexpected failure")
        else:
            if follower.state is FetchState.FETCHING:
                self._touch(follower)

    def _offsets_listed(self, follower: Follower, result: ErrorCode | tuple[int, int]) -> None:
        """The leader has said where its log begins and ends, or why it cannot say it."""
        if follower.state is not FetchState.LISTING_OFFSETS or self._is_stopped:
            return
        to_retry: list[Follower] = []
        if isinstance(result, ErrorCode):
            self._retry_later(follower, result, to_retry)
        else:
            follower.transition(FetchEvent.OFFSETS_LISTED)
            self._guarded(follower, partial(self._resolve_out_of_range, follower, *result), to_retry)
        self._schedule_retry(to_retry)

    def _resolve_out_of_range(self, follower: Follower, start_offset: int, end_offset: int) -> bool:
        follower.resolve_out_of_range(start_offset, end_offset)
        return True

    # --- those that cannot go on

    def _retry_later(self, follower: Follower, code: int, to_retry: list[Follower]) -> None:
        """The leader cannot answer for it now."""
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            # The epoch is the follower's own, or the answer would be stale: the metadata gets a newer one.
            self._await_metadata(follower, "there is a later leader")
            return
        if code and code not in TRANSIENT:
            self._logger.error("%r: broker %d answers %s", follower, self.leader_id, ErrorCode(code).name)
        follower.transition(FetchEvent.LEADER_ERROR)
        self._session.remove(follower.key)
        to_retry.append(follower)

    def _schedule_retry(self, to_retry: list[Follower]) -> None:
        if to_retry:
            backoff_ms = self._ports.config.replica_fetch_backoff_ms
            self._host.internode_clock.schedule(backoff_ms, partial(self._retry, to_retry))

    def _retry(self, followers: Iterable[Follower]) -> None:
        for follower in followers:
            if follower.state is FetchState.BACKING_OFF:
                follower.transition(FetchEvent.BACKOFF_OVER)
                self._touch(follower)

    def _await_metadata(self, follower: Follower, reason: str) -> None:
        """There is nothing for it until the metadata has another leader, or epoch."""
        self._logger.info("%r waits for the metadata: %s", follower, reason)
        if follower.state is not FetchState.ENDED:
            follower.transition(FetchEvent.FAILED)
            self._session.remove(follower.key)
