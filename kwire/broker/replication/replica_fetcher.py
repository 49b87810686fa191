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

    def __init__(self, leader_id: int, number: int, around: FetcherPorts) -> None:
        self.leader_id = leader_id
        self.purpose = f"fetch-{number}"
        self._around = around
        self._host = around.host
        self._logger = around.host.logger("kwire.partition")
        self._session = FetchSessionHandler()
        self._followers: dict[TopicIdPartition, Follower] = {}
        self._offsets = LeaderOffsets(around, self._address, self.purpose)
        self._touched: dict[Follower, None] = {}
        """Those that the end of this turn is to look at."""
        self._throttled: dict[Follower, None] = {}
        """Those that wait until others have been copied for long enough."""
        self._is_staged = False
        self._is_asking = False
        self._pause: Timer | None = None
        self._ended = False
        self._is_unreachable = False
        """Whether that was told already."""

    def __repr__(self) -> str:
        return f"{self.purpose} from broker {self.leader_id}"

    def __len__(self) -> int:
        return len(self._followers)

    # --- who follows

    def follow(self, follower: Follower) -> None:
        """Fetch for it, too."""
        self._followers[follower.key] = follower
        refused: list[Follower] = []
        self._guarded(follower, follower.begin, refused)

    def forget(self, follower: Follower) -> None:
        """Fetch for it no more."""
        follower.move(FetchEvent.ENDED)
        if self._followers.get(follower.key) is follower:
            del self._followers[follower.key]
            self._touched.pop(follower, None)
            self._session.forget(follower.key)

    def stop(self) -> None:
        """Ask for nothing any more: the broker ends."""
        self._ended = True
        if self._pause is not None:
            self._pause.cancel()

    # --- the turn

    def _touch(self, follower: Follower) -> None:
        self._touched[follower] = None
        self._wake()

    def _wake(self) -> None:
        if not self._is_staged and not self._ended:
            self._is_staged = True
            self._around.stage(self)

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
                follower.move(FetchEvent.MUST_SYNC)
                self._session.forget(follower.key)
                follower.partition.sync(partial(self._synced, follower))
            elif self._is_held_back(follower):
                self._session.forget(follower.key)
                self._throttle(follower)
            else:
                self._session.follow(follower.key, follower.asked)
        self._ask()

    def _is_held_back(self, follower: Follower) -> bool:
        throttle, partition = self._around.throttle, follower.partition
        return (
            not follower.is_caught_up
            and throttle.covers(partition.topic, partition.index)
            and throttle.is_exceeded
        )

    def _throttle(self, follower: Follower) -> None:
        if not self._throttled:
            self._host.internode_clock.schedule(
                self._around.config.replica_fetch_backoff_ms, self._look_at_throttled
            )
        self._throttled[follower] = None

    def _look_at_throttled(self) -> None:
        throttled, self._throttled = self._throttled, {}
        for follower in throttled:
            if follower.state is not FetchState.ENDED:
                self._touch(follower)

    def _synced(self, follower: Follower, error: ApiError | None) -> None:
        # Also told so where the role has changed meanwhile, and the sync is still under way.
        if follower.state is FetchState.SYNCING:
            follower.move(FetchEvent.SYNCED)
            refused: list[Follower] = []
            self._guarded(follower, follower.take_held, refused)
            self._delay(refused)

    # --- asking

    def _address(self) -> PeerAddress | None:
        return self._around.address_of(self.leader_id)

    def _ask(self) -> None:
        if self._is_asking or self._pause is not None or self._ended or self._session.is_idle:
            return
        address = self._address()
        if address is None:
            self._unreachable("it is not registered")
            return
        config, around = self._around.config, self._around
        request = self._session.request(config.replica_fetch_max_bytes)
        request.max_wait_ms = config.replica_fetch_wait_max_ms
        request.min_bytes = config.replica_fetch_min_bytes
        request.max_bytes = config.replica_fetch_response_max_bytes
        if around.fetch_version >= FIRST_VERSION_WITH_REPLICA_STATE:
            request.replica_state = ReplicaState(replica_id=config.node_id, replica_epoch=around.broker_epoch)
        else:
            request.replica_id = config.node_id
        self._is_asking = True
        self._host.peers.send(
            address,
            self.purpose,
            request,
            deadline_ms=self._host.internode_clock.monotonic_ms() + config.replica_socket_timeout_ms,
            on_response=self._answered,
            max_version=around.fetch_version,
        )

    def _answered(self, answer: Message | PeerUnreachable) -> None:
        self._is_asking = False
        if self._ended:
            return
        if isinstance(answer, PeerUnreachable):
            self._session.failed()
            self._unreachable(str(answer))
            return
        assert isinstance(answer, FetchResponse)
        self._is_unreachable = False
        problem = self._session.answered(answer)
        if problem is not None:
            self._logger.info("%r begins a new session: %s", self, problem)
            if answer.error_code not in SESSION_LOST:
                self._rest()
        else:
            self._take(answer)
        self._wake()

    def _unreachable(self, reason: str) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            self._logger.warning("%r: the leader is not reached: %s", self, reason)
        self._rest()

    def _rest(self) -> None:
        self._pause = self._host.internode_clock.schedule(
            self._around.config.replica_fetch_backoff_ms, self._rested
        )

    def _rested(self) -> None:
        self._pause = None
        self._wake()

    # --- taking an answer

    def _take(self, answer: FetchResponse) -> None:
        sought: list[Follower] = []
        refused: list[Follower] = []
        for key, asked, data in self._session.fresh(answer):
            follower = self._followers[key]
            if asked.leader_epoch != follower.leader_epoch or follower.state is not FetchState.FETCHING:
                continue
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                follower.move(FetchEvent.OUT_OF_RANGE)
                sought.append(follower)
                self._session.forget(key)
            elif data.error_code:
                self._refuse(follower, data.error_code, refused)
            else:
                self._guarded(follower, partial(self._take_one, follower, data), refused)
        self._delay(refused)
        if sought:
            self._offsets.find(sought, self._found)

    def _take_one(self, follower: Follower, data: PartitionData) -> bool:
        diverging = data.diverging_epoch
        if diverging.epoch < 0:
            size_bytes = follower.take(data)
            throttle, partition = self._around.throttle, follower.partition
            if size_bytes and throttle.covers(partition.topic, partition.index):
                throttle.record(size_bytes)
            return True
        return diverging.end_offset >= 0 and follower.cut(data)

    def _guarded(self, follower: Follower, work: Callable[[], bool], refused: list[Follower]) -> None:
        """Do something to a log; `work` says whether there is any use in going on at once."""
        try:
            if not work():
                self._refuse(follower, ErrorCode.NONE, refused)
        except StorageError:
            pass  # its log is offline by now, and follows no more
        except ApiError as error:
            if error.code == ErrorCode.CORRUPT_MESSAGE:
                # It may have been read while the leader was cut: Kafka, too, just fetches it again.
                self._logger.error("%r: %s", follower, error)
                self._refuse(follower, ErrorCode.NONE, refused)
            elif error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self._fail(follower, str(error))
        except Exception:
            self._logger.exception("%r: the leader's answer cannot be taken", follower)
            self._fail(follower, "an unexpected failure")
        else:
            if follower.state is FetchState.FETCHING:
                self._touch(follower)

    def _found(self, follower: Follower, result: ErrorCode | tuple[int, int]) -> None:
        """The leader has said where its log begins and ends, or why it cannot say it."""
        if follower.state is not FetchState.SEEKING or self._ended:
            return
        refused: list[Follower] = []
        if isinstance(result, ErrorCode):
            self._refuse(follower, result, refused)
        else:
            follower.move(FetchEvent.FOUND)
            self._guarded(follower, partial(self._settle, follower, *result), refused)
        self._delay(refused)

    def _settle(self, follower: Follower, start_offset: int, end_offset: int) -> bool:
        follower.settle(start_offset, end_offset)
        return True

    # --- those that cannot go on

    def _refuse(self, follower: Follower, code: int, refused: list[Follower]) -> None:
        """The leader cannot answer for it now."""
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            # The epoch is the follower's own, or the answer would be stale: the metadata gets a newer one.
            self._fail(follower, "there is a later leader")
            return
        if code and code not in TRANSIENT:
            self._logger.error("%r: broker %d answers %s", follower, self.leader_id, ErrorCode(code).name)
        follower.move(FetchEvent.REFUSED)
        self._session.forget(follower.key)
        refused.append(follower)

    def _delay(self, refused: list[Follower]) -> None:
        if refused:
            backoff_ms = self._around.config.replica_fetch_backoff_ms
            self._host.internode_clock.schedule(backoff_ms, partial(self._delay_over, refused))

    def _delay_over(self, followers: Iterable[Follower]) -> None:
        for follower in followers:
            if follower.state is FetchState.DELAYED:
                follower.move(FetchEvent.DELAY_OVER)
                self._touch(follower)

    def _fail(self, follower: Follower, reason: str) -> None:
        """There is nothing for it until the metadata has another leader, or epoch."""
        self._logger.info("%r waits for the metadata: %s", follower, reason)
        if follower.state is not FetchState.ENDED:
            follower.move(FetchEvent.FAILED)
            self._session.forget(follower.key)
