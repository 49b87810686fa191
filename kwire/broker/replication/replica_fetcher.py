"""A fetcher for partitions of one leader: one Fetch at a time, in one incremental fetch session.

A response is processed in the turn of the event loop in which it arrives: batches are staged and logs are
truncated. At the end of the turn the fetcher writes the staged batches. Only then does the next Fetch report
the new log end offsets to the leader.

A partition never blocks the other partitions. It leaves the session while its log is synced, while it backs
off, or while the leader's offsets are requested.

If the leader waits for records, it would notice another partition only with the next Fetch, up to
`replica.fetch.wait.max.ms` later, and acks=all writes to the partition would wait for that. So the fetcher
sends an ApiVersions request: kwire's leaders then complete the Fetch at once (decision 0001). Apache Kafka's
leaders respond to both later.

The backoff after an error is `replica.fetch.backoff.ms`, as in Apache Kafka. Two errors usually last only
some milliseconds: the leader does not accept connections yet, because it has just been unfenced, or the
leader does not have the metadata yet that this broker has. After these errors, the backoff begins at
`FIRST_BACKOFF_MS` and doubles up to `replica.fetch.backoff.ms`. New metadata for a partition of an
unreachable leader ends the backoff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kwire import __version__
from kwire.broker.replication.fetch_session_handler import FetchSessionHandler
from kwire.broker.replication.fetcher_ports import FetcherPorts
from kwire.broker.replication.follower import FetchEvent, FetchState, Follower
from kwire.broker.replication.leader_offsets import LeaderOffsets
from kwire.broker.storage.disk import ResourceShortage, StorageError
from kwire.host.host import PeerAddress, PeerUnreachable, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.fetch import (
    FIRST_VERSION_WITH_REPLICA_STATE,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from kwire.wire.primitives import TopicIdPartition
from kwire.wire.schema import Message

TRANSIENT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Errors that a leader returns while its metadata is older or newer than this broker's metadata."""

SESSION_LOST: Final = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
"""Errors that concern only the fetch session. The leader can serve a new session at once."""


FIRST_BACKOFF_MS: Final = 50
"""The first backoff after an error that is usually short."""


class ReplicaFetcher:
    """A fetcher for one leader. A leader may have several fetchers, each with a share of the partitions."""

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
        """Followers that `commit` processes at the end of this turn."""
        self._throttled: dict[Follower, None] = {}
        """Followers that wait because the replication quota is exceeded."""
        self._is_staged = False
        self._in_flight = False
        self._is_wait_ended = False
        """Whether the leader was requested to complete the Fetch in flight."""
        self._backoff: Timer | None = None
        self._failures = 0
        """The number of consecutive requests that did not reach the leader."""
        self._is_stopped = False
        self._is_unreachable_logged = False

    def __len__(self) -> int:
        return len(self._followers)

    # --- followers

    def add(self, follower: Follower) -> None:
        """Start to fetch for a follower."""
        self._followers[follower.key] = follower
        if self._backoff is not None:
            self._backoff.cancel()
            self._backoff, self._failures = None, 0
            self._end_backoff_of_connection()
        self._start(follower)

    def _start(self, follower: Follower) -> None:
        if self._followers.get(follower.key) is not follower or self._is_stopped:
            return
        try:
            follower.start()
        except ResourceShortage:
            backoff_ms = self._ports.config.replica_fetch_backoff_ms
            self._host.internode_clock.schedule(backoff_ms, partial(self._start, follower))
        except StorageError:
            pass  # the log is already offline, and its follower was removed
        except Exception:
            self._handle_internal_error(follower)
        else:
            self._touch(follower)

    def remove(self, follower: Follower) -> None:
        """Stop fetching for a follower."""
        follower.transition(FetchEvent.ENDED)
        if self._followers.get(follower.key) is follower:
            del self._followers[follower.key]
            self._touched.pop(follower, None)
            self._session.remove(follower.key)

    def stop(self) -> None:
        """Send no more requests because the broker is shutting down."""
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
        """Write what was fetched in this turn, then send the next Fetch."""
        self._is_staged = False
        touched, self._touched = self._touched, {}
        to_retry: list[Follower] = []
        for follower in touched:
            try:
                must_sync = follower.has_staged and follower.commit()
            except ResourceShortage:
                if follower.state is FetchState.FETCHING:
                    self._retry_later(follower, ErrorCode.NONE, to_retry)
                continue
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
        self._schedule_retry(to_retry)
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
        # A change of role also ends the wait with an error, possibly while the sync is still running.
        if follower.state is FetchState.SYNCING:
            follower.transition(FetchEvent.SYNCED)
            to_retry: list[Follower] = []
            self._guarded(follower, follower.stage_held, to_retry)
            self._schedule_retry(to_retry)

    # --- requests

    def _address(self) -> PeerAddress | None:
        return self._ports.address_of(self.leader_id)

    def _send_fetch(self) -> None:
        if self._is_stopped or self._backoff is not None or self._session.is_empty:
            return
        if self._in_flight:
            if self._session.has_new_positions and not self._is_wait_ended:
                self._end_wait()
            return
        address = self._address()
        if address is None:
            self._leader_unreachable(self._ports.missing_address(self.leader_id))
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
        self._in_flight, self._is_wait_ended = True, False
        self._host.peers.send(
            address,
            self.purpose,
            request,
            deadline_ms=self._host.internode_clock.monotonic_ms() + config.replica_socket_timeout_ms,
            on_response=self._handle_response,
            max_version=ports.fetch_version,
        )

    def _end_wait(self) -> None:
        """Let the leader complete the Fetch in flight."""
        self._is_wait_ended = True
        address = self._address()
        if address is not None:
            self._host.peers.send(
                address,
                self.purpose,
                ApiVersionsRequest(client_software_name="kwire", client_software_version=__version__),
                deadline_ms=self._host.internode_clock.monotonic_ms()
                + self._ports.config.replica_socket_timeout_ms,
                on_response=lambda response: None,
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
            self._logger.info(
                "Replica fetcher %s starts a new fetch session with leader broker %d: %s",
                *(self.purpose, self.leader_id, problem),
            )
            if response.error_code not in SESSION_LOST:
                self._back_off(self._ports.config.replica_fetch_backoff_ms)
        else:
            self._failures = 0
            self._process_response(response)
        self._stage()

    def _leader_unreachable(self, reason: str) -> None:
        if not self._is_unreachable_logged:
            self._is_unreachable_logged = True
            self._logger.warning(
                "Replica fetcher %s cannot reach leader broker %d, will retry: %s",
                *(self.purpose, self.leader_id, reason),
            )
        self._failures += 1
        self._back_off(self._short_backoff_ms(self._failures))

    def _back_off(self, backoff_ms: int) -> None:
        self._backoff = self._host.internode_clock.schedule(backoff_ms, self._backoff_over)

    def _short_backoff_ms(self, failures: int) -> int:
        return min(self._ports.config.replica_fetch_backoff_ms, FIRST_BACKOFF_MS << min(failures - 1, 20))

    def _end_backoff_of_connection(self) -> None:
        address = self._address()
        if address is not None:
            self._host.peers.end_backoff(address)

    def _backoff_over(self) -> None:
        self._backoff = None
        self._stage()

    # --- responses

    def _process_response(self, response: FetchResponse) -> None:
        out_of_range: list[Follower] = []
        to_retry: list[Follower] = []
        for key, position, data in self._session.fetched_partitions(response):
            follower = self._followers[key]
            if position.leader_epoch != follower.leader_epoch or follower.state is not FetchState.FETCHING:
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
            if size_bytes and self._ports.is_being_added(partition):
                partition.topic_metrics.reassignment_bytes_in += size_bytes
            return True
        return diverging.end_offset >= 0 and follower.truncate_to_leader(data)

    def _guarded(self, follower: Follower, work: Callable[[], bool], to_retry: list[Follower]) -> None:
        """Run `work` on a follower's log, and handle its errors.

        If `work` returns False or has failed temporarily, the follower backs off and is added to `to_retry`.
        """
        try:
            if not work():
                self._retry_later(follower, ErrorCode.NONE, to_retry)
        except ResourceShortage:
            self._retry_later(follower, ErrorCode.NONE, to_retry)
        except StorageError:
            pass  # the log is already offline, and its follower was removed
        except ApiError as error:
            if error.code == ErrorCode.CORRUPT_MESSAGE:
                # The leader may have truncated its log during the read. As Kafka does, fetch again.
                self._logger.error(
                    "Cannot append records fetched for %s from leader broker %d, will fetch again: %s",
                    *(follower.partition.log.name, self.leader_id, error),
                )
                self._retry_later(follower, ErrorCode.NONE, to_retry)
            elif error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self._await_metadata(follower, str(error))
            elif follower.partition.log.failure is None:
                # The process had no free descriptor. The leader still has the batches.
                self._retry_later(follower, ErrorCode.NONE, to_retry)
        except Exception:
            self._handle_internal_error(follower)
        else:
            if follower.state is FetchState.FETCHING:
                follower.transient_errors = 0
                self._touch(follower)

    def _handle_internal_error(self, follower: Follower) -> None:
        self._logger.exception(
            "Cannot process the response of leader broker %d for %s because of an internal error",
            *(self.leader_id, follower.partition.log.name),
        )
        self._await_metadata(follower, "internal error")

    def _offsets_listed(self, follower: Follower, result: ErrorCode | tuple[int, int]) -> None:
        """Continue with the leader's log start and log end offset, or with an error."""
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

    # --- errors

    def _retry_later(self, follower: Follower, code: int, to_retry: list[Follower]) -> None:
        """Back off after the leader returned `code` for this partition, and add the follower to `to_retry`.

        NONE means that the response was not usable. After FENCED_LEADER_EPOCH, fetching stops instead.
        """
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            # The response is for the follower's current epoch, so this broker will soon receive newer
            # metadata.
            self._await_metadata(follower, "the leader has a later leader epoch")
            return
        if code and code not in TRANSIENT:
            self._logger.error(
                "Cannot fetch %s, will retry: leader broker %d returned %s",
                *(follower.partition.log.name, self.leader_id, ErrorCode(code).name),
            )
        follower.transition(FetchEvent.LEADER_ERROR)
        self._session.remove(follower.key)
        follower.transient_errors = follower.transient_errors + 1 if code in TRANSIENT else 0
        to_retry.append(follower)

    def _schedule_retry(self, to_retry: list[Follower]) -> None:
        by_backoff: dict[int, list[Follower]] = {}
        for follower in to_retry:
            backoff_ms = self._ports.config.replica_fetch_backoff_ms
            if follower.transient_errors:
                backoff_ms = self._short_backoff_ms(follower.transient_errors)
            by_backoff.setdefault(backoff_ms, []).append(follower)
        for backoff_ms, followers in by_backoff.items():
            self._host.internode_clock.schedule(backoff_ms, partial(self._retry, followers))

    def _retry(self, followers: Iterable[Follower]) -> None:
        for follower in followers:
            if follower.state is FetchState.BACKING_OFF:
                follower.transition(FetchEvent.BACKOFF_OVER)
                self._touch(follower)

    def _await_metadata(self, follower: Follower, reason: str) -> None:
        """Stop fetching until the metadata has another leader or leader epoch."""
        self._logger.info(
            "Stopped fetching %s at leader epoch %d until the metadata has another leader or leader "
            "epoch: %s",
            *(follower.partition.log.name, follower.leader_epoch, reason),
        )
        if follower.state is not FetchState.ENDED:
            follower.transition(FetchEvent.FAILED)
            self._session.remove(follower.key)
