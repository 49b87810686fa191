"""The quorum that keeps the metadata log. Today it has one voter, which leads it from its start to its end.

Who leads appends batches, which are committed once they are synced: what comes in one turn shares one write,
and all that comes while a sync is under way shares the next one (group commit). Committed batches go to one
who replays them, and then the leader hears up to where they go.

Others may fetch what is committed. While somebody does, the leader hears when the log has not moved for
metadata.max.idle.interval.ms, and writes something, so that who follows can tell a quiet log from a silent
leader (KIP-835). While nobody does the disk may rest, other than with Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.host.host import Host, PeerAddress, Timer
from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.followers import Followers, FollowerState, ReplicaKey
from kwire.broker.raft.lead import Lead
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.storage.disk import StorageError
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID, Uuid


class Leadership(Protocol):
    """What a node does while it leads the quorum."""

    def became_leader(self, epoch: int) -> None:
        """This node leads in a new epoch, and has replayed all that came before it."""

    def resigned(self, reason: ApiError) -> None:
        """It does not lead any more: what it appended and did not hear to be committed may never be."""

    def committed(self, offset: int) -> None:
        """Everything up to `offset` is committed, and was replayed."""

    def idle(self) -> None:
        """Nothing was appended for a while, and somebody follows the log: it should move."""


class QuorumDescription(NamedTuple):
    """How a quorum is doing that has one voter."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    directory_id: Uuid
    """Where the voter keeps the log; zero where the quorum is not dynamic."""
    endpoints: Sequence[tuple[str, str, int]]
    """Name, host and port of the listeners where the voter is reached."""
    observers: Sequence[FollowerState]
    """Who fetches the log and does not vote."""


class Quorum:
    """A quorum whose only voter is this node."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        *,
        on_committed: Callable[[Iterable[MetadataBatch]], None],
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_committed` gets what is committed, in its order, from the beginning of the log.

        `on_failed` is called with the reason once the log cannot be written any more.
        """
        self.log: MetadataLog
        self.lead: Lead
        """Set by `start`, as is the log."""
        self.leads = False
        """Whether this node is the leader, in `epoch`."""
        self.failed = False
        """The log cannot be written any more: the node should end."""
        self.is_ending = False
        """Whether nobody may wait for more any longer."""
        self._config = config
        self._host = host
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._leadership: Leadership | None = None
        self._endpoints: Sequence[EndpointImage] = ()
        self._leader_watchers: list[Callable[[], None]] = []
        self._appended: deque[MetadataBatch] = deque()
        self._is_settled = False
        self._write_asked = False
        self._sync_under_way = False
        self.followers = Followers()
        """Who fetches the log from this node."""
        self._waiters: dict[Callable[[], None], None] = {}
        self._idle_ms = cast(int, config.value("metadata.max.idle.interval.ms"))
        self._idle_timer: Timer | None = None
        self._idle_since_offset = -1
        self._logger = host.logger("kwire.metadata")

    # --- life

    def start(
        self, log: MetadataLog, leadership: Leadership, endpoints: Sequence[EndpointImage] = ()
    ) -> None:
        """Replay the log, and take the lead of it in a new epoch. To be followed by `settle`.

        `endpoints` are where this voter is reached. CorruptMetadata, StorageError.
        """
        self.log, self._leadership, self._endpoints = log, leadership, endpoints
        self._on_committed(self.log.read())
        self.lead = Lead(log, self._host.now_ms(), endpoints)
        self.leads = True
        leadership.became_leader(self.lead.epoch)
        self._leader_changed()

    def settle(self) -> None:
        """Have all committed that was appended, and what comes of that, before this returns. StorageError.

        For a node that starts or ends: nobody waits for its loop then. What a start appends needs only one
        sync, at its end: nobody outside hears of any of it before.
        """
        while self._appended and not self.failed:
            if self._is_settled:
                self._sync_now()
            self._commit_up_to(self.log.end_offset - 1)
        if not self._is_settled:
            self._sync_now()
            self._is_settled = True

    def _sync_now(self) -> None:
        try:
            self.log.commit()
            self.log.flush()
        except StorageError as error:
            if self._is_settled:
                self._fail(error)
            raise

    def stop(self) -> None:
        """Lead no more: the node has ended."""
        self.end_waits()
        if self.leads and self._leadership is not None:
            self.leads = False
            self._leadership.resigned(ApiError(ErrorCode.NOT_CONTROLLER))

    # --- for who asks who leads

    @property
    def leader_id(self) -> int:
        """This node, while it leads."""
        return self._config.node_id if self.leads else NO_LEADER

    @property
    def epoch(self) -> int:
        """The epoch that this node leads, or has led."""
        return self.lead.epoch

    def leader_address(self) -> PeerAddress | None:
        """None: it is this node, or nobody."""
        return None

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever this node begins or ends to lead."""
        self._leader_watchers.append(callback)

    def _leader_changed(self) -> None:
        for callback in self._leader_watchers:
            callback()

    # --- for who leads

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol: 1 where its voters stand in the log (KIP-853)."""
        return 0 if self.log.voters is None else 1

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        """Append what the leader decided, which makes `delta`; the offset of the last record.

        ApiError: UNKNOWN_SERVER_ERROR, with nothing appended, where atomic ones are too long for one batch.
        """
        base_offset = self.log.end_offset
        offset = self.lead.append(records, now_ms=self._host.now_ms(), atomic=atomic)
        found = [record for record, _ in records]
        self._appended.append(MetadataBatch(base_offset, offset, self.lead.epoch, found, delta=delta))
        if self._is_settled and not self._write_asked and not self._sync_under_way:
            self._write_asked = True
            self._host.call_soon(self._write)
        return offset

    def become_dynamic(self) -> None:
        """Append what makes the quorum dynamic (kraft.version 1), to be committed with what follows."""
        self.lead.become_dynamic(self._host.now_ms())

    def _write(self) -> None:
        """Write what this turn appended, and sync it in a worker."""
        self._write_asked = False
        if self.failed or not self._appended:
            return
        try:
            self.log.commit()
            work, finish = self.log.begin_flush()
        except StorageError as error:
            self._fail(error)
            return
        up_to_offset = self.log.end_offset - 1
        self._sync_under_way = True

        def done(result: object) -> None:
            self._sync_under_way = False
            if isinstance(result, BaseException):
                self._fail(result)
                return
            finish()
            self._commit_up_to(up_to_offset)
            if self._appended and not self._write_asked:
                self._write()

        self._host.run_in_worker(work, done)

    def _commit_up_to(self, offset: int) -> None:
        assert self._leadership is not None
        while self._appended and self._appended[0].last_offset <= offset:
            batch = self._appended.popleft()
            try:
                self._on_committed([batch])
            except CorruptMetadata as error:
                self._fail(error)
                return
            self._leadership.committed(batch.last_offset)
        self._wake_waiters()

    def _fail(self, error: BaseException) -> None:
        """A node in doubt about its metadata ends rather than guesses."""
        self._logger.critical("the metadata log failed, nothing can be changed any more: %s", error)
        self.failed, self.leads = True, False
        self._appended.clear()
        self.end_waits()
        self._host.call_soon(lambda: self._on_failed(f"the metadata log failed: {error}"))
        if self._leadership is not None:
            self._leadership.resigned(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
        self._leader_changed()

    # --- for who follows

    def is_fetched(self, key: ReplicaKey, offset: int) -> None:
        """Another node has everything before `offset`, and goes on from there."""
        self.followers.fetches(key, offset, self.log.end_offset, self._host.now_ms())
        if self._idle_timer is None and self._idle_ms > 0 and self.leads:
            self._idle_since_offset = self.log.end_offset
            self._idle_timer = self._host.schedule(self._idle_ms, self._idle)

    def _idle(self) -> None:
        self._idle_timer = None
        if not self.leads or not self.followers.heard_since(self._host.now_ms()):
            return
        if self.log.end_offset == self._idle_since_offset and self._leadership is not None:
            self._leadership.idle()
        self._idle_since_offset = self.log.end_offset
        self._idle_timer = self._host.schedule(self._idle_ms, self._idle)

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` once, when more is committed or the lead ends."""
        self._waiters[waiter] = None

    def wait_no_more(self, waiter: Callable[[], None]) -> None:
        """Do not call it, if it was not called yet."""
        self._waiters.pop(waiter, None)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter()

    def end_waits(self) -> None:
        """Let everyone go who waits, and write nothing more of ourselves: the node ends."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.is_ending, self._idle_ms = True, 0
        self._wake_waiters()

    # --- for who asks

    def describe(self) -> QuorumDescription:
        """How the quorum of this node is doing."""
        log, config = self.log, self._config
        directory_id, endpoints = ZERO_UUID, self._own_endpoints()
        if log.voters is not None:
            voter = log.voters.voters[0]
            directory_id = voter.voter_directory_id
            endpoints = [(endpoint.name, endpoint.host, endpoint.port) for endpoint in voter.endpoints]
        return QuorumDescription(
            config.node_id,
            self.epoch,
            log.high_watermark,
            log.end_offset,
            directory_id,
            endpoints,
            self.followers.heard_since(self._host.now_ms()),
        )

    def _own_endpoints(self) -> list[tuple[str, str, int]]:
        """Of the only voter, this node, in whatever way it is written in controller.quorum.voters."""
        config = self._config
        named = cast("list[str]", config.value("controller.quorum.voters"))
        if named and config.controller_listener_names:
            host, _, port = named[0].partition("@")[2].rpartition(":")
            return [(config.controller_listener_names[0], host.strip("[]"), int(port))]
        return [(one.name, one.host, one.port) for one in self._endpoints]
