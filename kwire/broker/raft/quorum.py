"""KRaft on one node: the state machine of the metadata quorum, with its I/O (Kafka's KafkaRaftManager).

The state machine (`machine.py`) elects leaders and raises the high watermark. This module executes the
machine's outputs in order. A worker writes votes and epochs to quorum-state; later outputs wait until that
file is durable.

If this node is the only voter, it has become leader and has committed its log before `start` returns. No
other node reads the log yet, so one sync at the end of the start is enough.

While other nodes follow the log, the leader regularly appends a NoOpRecord, so that followers can distinguish
an idle log from a lost leader (KIP-835). Without followers, the leader appends none, so that the disk can
idle; Kafka always appends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft import outputs as out
from kwire.broker.raft.decisions import Decisions, Leadership, OnBatches
from kwire.broker.raft.download import Download
from kwire.broker.raft.leading import Description
from kwire.broker.raft.machine import Machine
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.output_queue import OutputQueue
from kwire.broker.raft.quorum_state import ElectionFile
from kwire.broker.raft.raft_metrics import KafkaRaftMetrics
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.terms import Terms
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.raft.voters import ReplicaKey
from kwire.broker.raft.waiters import Waiters
from kwire.broker.raft.writes import Writes
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError
from kwire.host.host import Host, InternodeTime, PeerAddress, PeerUnreachable, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.wire.schema import Message

FETCHES: Final = "metadata"
ELECTIONS: Final = "quorum"
"""The purpose of connections for votes. A waiting Fetch would block them on a shared connection."""

LEAVING_MS: Final = 5_000
"""The maximum time that a stopping leader waits for the next leader, in ms, as in Kafka."""


class Quorum:
    """The metadata quorum on one of its voters or observers, with the metadata log."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        *,
        on_committed: OnBatches,
        on_restarted: OnBatches = lambda batches: None,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Take the callbacks.

        `on_committed` gets all committed batches in order. `on_restarted` gets the content of a snapshot that
        replaces all earlier batches. `on_failed` gets the reason why this node can no longer take part.
        """
        self.log: MetadataLog
        """The metadata log; it is set by `start`."""
        self.failed = False
        """Whether the log can no longer be written or followed, so that the node must stop."""
        self.metrics = KafkaRaftMetrics()
        self.is_shutting_down = False
        """Whether the node is stopping, so that requests must not wait any longer."""
        self._config = config
        self._host = host
        self._on_committed = on_committed
        self._on_restarted = on_restarted
        self._on_failed = on_failed
        self._leadership: Leadership | None = None
        self._machine: Machine | None = None
        self._listener = ""
        self._is_settled = True
        """Whether records are committed only after a sync. False while the only voter starts."""
        self._outputs = OutputQueue(self._do_one)
        self._decisions: Decisions
        self._writes: Writes
        self._download: Download
        self._election_file: ElectionFile
        self._timer: Timer | None = None
        self._timer_ms = InternodeTime(0)
        self._told: object = None
        self._told_to_vote: bool | None = None
        self._leader_watchers: list[Callable[[], None]] = []
        self._waiters = Waiters()
        self._on_left: Callable[[], None] | None = None
        self._logger = host.logger("kwire.raft")

    # --- start and stop

    def start(
        self,
        log: MetadataLog,
        cluster_id: str,
        leadership: Leadership | None = None,
        endpoints: Sequence[EndpointImage] = (),
    ) -> None:
        """Publish all records that are known to be committed, and join the quorum. `settle` must follow.

        `leadership` is None on observers. `endpoints` are the endpoints of this node as a voter. If this node
        is the only voter, it has published its complete log and is the leader of a new epoch when this method
        returns. Raises CorruptMetadata or StorageError.
        """
        self.log, self._leadership = log, leadership
        host, directory = self._host, log.log.directory
        self._decisions = Decisions(
            host,
            log,
            leadership,
            self._on_committed,
            self.metrics,
            idle_ms=cast(int, self._config.value("metadata.max.idle.interval.ms")),
        )
        self._writes = Writes(
            host,
            log,
            on_written=self._waiters.written,
            on_synced=self._synced,
            on_failed=self._fail,
        )
        log.recover()
        self._on_committed(log.read_snapshot())
        self._decisions.check_bootstrap(is_sole_voter=self.is_sole_voter)
        self._is_settled = not self.is_sole_voter
        if log.awaits_sync or (self._is_settled and leadership is not None):
            # The leader counts a voter's records as acknowledged, so they must be durable.
            log.flush()
        if not self._is_settled:
            log.advance_to(log.end_offset)
            self._on_committed(log.read_up_to(log.end_offset))
        self._election_file = ElectionFile(
            log.disk, host, directory, lambda error: self._fail(f"quorum-state cannot be written: {error}")
        )
        self._download = Download(
            host, log, self, on_complete=lambda: self._on_restarted(log.read_snapshot())
        )
        terms = Terms.from_config(
            self._config,
            log.node_id,
            log.directory_id,
            cluster_id,
            may_vote=leadership is not None,
            endpoints=endpoints,
        )
        self._listener = terms.listener
        now_ms = host.internode_clock.monotonic_ms()
        remembered = log.election()
        self._machine = machine = Machine(
            terms, log, host.random("quorum"), remembered=remembered, now_ms=now_ms
        )
        self._told = self._known()
        if not self.is_sole_voter:
            servers = ", ".join(map(str, terms.servers))
            self._logger.info("Looking for the quorum leader at %s", servers)
        self._after(machine.start(now_ms))
        if not self._is_settled:
            self._synced(log.end_offset)

    def settle(self) -> None:
        """Commit and publish what the only voter appended while it starts or stops. Raises StorageError.

        A node that starts or stops cannot wait for its event loop. One sync at the end of the start is
        enough, because no other node or client has seen any record before.
        """
        while self._decisions.are_open and self.is_sole_voter and not self.failed:
            if self._is_settled:
                self._sync_now()
            self._synced(self.log.end_offset)
        if not self._is_settled:
            self._sync_now()
            self._is_settled = True

    def _sync_now(self) -> None:
        try:
            self._writes.now()
        except StorageError as error:
            if self._is_settled:
                self._fail(f"the metadata log failed: {error}")
            raise

    def _synced(self, end_offset: int) -> None:
        if self._machine is not None:
            self._after(self._machine.synced(end_offset, self._host.internode_clock.monotonic_ms()))

    def leave(self, on_left: Callable[[], None]) -> None:
        """Resign, so that another voter is elected.

        `on_left` is called when this node may stop, at the latest after `LEAVING_MS`.
        """
        machine = self._machine
        if machine is None or self.is_sole_voter or self._on_left is not None:
            self._host.call_soon(on_left)
            return
        self._on_left = on_left
        if not machine.may_end:
            self._logger.info(
                "Controlled shutdown: waiting up to %d ms for another quorum leader", LEAVING_MS
            )
        self._host.internode_clock.schedule(LEAVING_MS, self._left)
        self._after(machine.stop(self._host.internode_clock.monotonic_ms()))

    def _left(self) -> None:
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            self._host.call_soon(on_left)

    def stop(self) -> None:
        """Leave the quorum because the node has stopped. An unfinished snapshot is abandoned."""
        self.end_waits()
        if self._machine is None:
            return
        self._unlead(ApiError(ErrorCode.NOT_CONTROLLER))
        self._machine = None
        self._outputs.clear()
        self._writes.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._election_file.close()
        self._download.drop()

    # --- the leader: `view.QuorumView`

    @property
    def leads(self) -> bool:
        """Whether this node is the leader, in `epoch`."""
        return self._machine is not None and self._machine.role is QuorumRole.LEADER

    @property
    def leader_id(self) -> int:
        """The id of the active controller; NO_LEADER if it is unknown."""
        machine = self._machine
        if machine is None or machine.role not in (QuorumRole.LEADER, QuorumRole.FOLLOWER):
            return NO_LEADER
        return machine.leader_id

    @property
    def advertised_leader_id(self) -> int:
        """The leader id for responses. Unlike `leader_id`, it stays set in elections and after resigning."""
        return NO_LEADER if self._machine is None else self._machine.leader_id

    @property
    def epoch(self) -> int:
        """The latest leader epoch that this node knows."""
        return 0 if self._machine is None else self._machine.epoch

    @property
    def kraft_version(self) -> int:
        """The kraft.version: 1 if the log contains the voters (KIP-853), and 0 otherwise."""
        return self.log.kraft_version if self._machine is None else self._machine.kraft_version

    @property
    def is_sole_voter(self) -> bool:
        """Whether this node is the only voter."""
        found = self.log.voters.find(ReplicaKey(self.log.node_id, self.log.directory_id))
        return found is not None and len(self.log.voters) == 1 and self._leadership is not None

    def leader_address(self) -> PeerAddress | None:
        """Return the active controller's address; None if it is unknown or is this node."""
        return None if self.leader_id == NO_LEADER or self._machine is None else self._machine.leader_address

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the leader, its epoch or its address."""
        self._leader_watchers.append(callback)

    def _tell(self) -> None:
        known = self._known()
        if known == self._told:
            return
        self._told = known
        who = "none" if self.leader_id == NO_LEADER else f"node {self.leader_id}"
        self._logger.info("Quorum leader: %s (leader epoch %d)", who, self.epoch)
        address = self.leader_address()
        if address is not None:
            self._host.peers.end_backoff(address)
        for watcher in self._leader_watchers:
            watcher()

    def _tell_whether_it_votes(self, *, is_voter: bool) -> None:
        if self._told_to_vote is not None:
            what = "now a voter of the quorum" if is_voter else "no longer a voter of the quorum"
            self._logger.info("This node is %s", what)
        self._told_to_vote = is_voter

    def _known(self) -> object:
        return self.leader_id, self.epoch, self.leader_address(), self.leads

    # --- execution of outputs

    def _after(self, outputs: Iterable[out.Output]) -> None:
        """Execute outputs, do everything that is due, and set the timer for the next `tick`."""
        self._do(outputs)
        machine = self._machine
        if machine is None:
            return
        now_ms = self._host.internode_clock.monotonic_ms()
        if machine.due_ms is not None and machine.due_ms <= now_ms:
            self._do(machine.tick(now_ms))
            machine = self._machine
        if machine is not None:
            self.metrics.observe(machine, self.log.node_id, now_ms)
        if self._outputs.is_idle:
            # Without an output, the leader becomes unknown while this node requests pre-votes.
            self._tell()
        if machine is not None and machine.is_voter is not self._told_to_vote:
            self._tell_whether_it_votes(is_voter=machine.is_voter)
        due_ms = None if machine is None else machine.due_ms
        if self._on_left is not None and machine is not None and machine.may_end:
            self._left()
        # A timer that fires too early only sets the next timer, so a Fetch does not have to move the timer.
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._host.internode_clock.schedule(max(0, due_ms - now_ms), self._timer_rings)

    def _timer_rings(self) -> None:
        self._timer = None
        self._after(())

    def _do(self, outputs: Iterable[out.Output]) -> None:
        for output in outputs:
            if isinstance(output, out.Unlead):
                # The controller must stop deciding at once, even if other outputs wait.
                self._unlead(ApiError(output.reason))
            else:
                self._outputs.add(output)
        try:
            self._outputs.run(self.log.disk)
        except ResourceShortage:
            if not self._is_settled:
                raise
            self._outputs.is_held = True
            self._host.internode_clock.schedule(SHORTAGE_RETRY_MS, self._release)
        except (CorruptMetadata, StorageError, ApiError) as error:
            if not self._is_settled:
                raise
            self._fail(f"the metadata log failed: {error}")

    def _release(self) -> None:
        """Execute outputs and send responses that had to wait."""
        self._outputs.is_held = False
        self._after(())
        self._outputs.call_released()

    def _do_one(self, output: out.Output) -> None:
        log, machine, now_ms = self.log, self._machine, self._host.internode_clock.monotonic_ms()
        if machine is None:
            return  # an earlier output has failed, and this node has left the quorum
        match output:
            case out.Send():
                self._send(output)
            case out.Reached():
                self._host.peers.end_backoff(output.address)
            case out.Respond():
                cast(out.Requester, output.requester).complete(output.response)
            case out.Remember():
                self._remember(output)
            case out.Tell():
                self._tell()
            case out.Unlead():
                pass
            case out.AppendControls():
                self._append_controls(output, machine)
            case out.Append():
                try:
                    count = log.append_fetched(output.records, epoch=output.epoch)
                    self.metrics.fetched_records.record(count, int(now_ms))
                except ValueError as error:
                    self._logger.error(
                        "Cannot append records of leader %d to __cluster_metadata-0, will fetch again: %s",
                        self.leader_id,
                        error,
                    )
                    machine.refused(now_ms)
                    return
                if self._leadership is not None:
                    self._writes.soon()
            case out.Advance():
                self._decisions.advance_to(output.high_watermark)
                self._waiters.call_all()
            case out.Truncate():
                self._logger.info(
                    "Truncating __cluster_metadata-0 to offset %d: the log of leader %d diverges there",
                    *(output.offset, self.leader_id),
                )
                log.truncate_to(output.offset)
                self._writes.soon()
            case out.BeginSnapshot():
                self._download.begin(output.snapshot)
            case out.AddToSnapshot():
                self._download.add(output.data)
            case out.DropSnapshot():
                self._download.drop()
            case out.Install():
                self._download.install()
            case out.Complain():
                tell = self._logger.error if output.is_fault else self._logger.warning
                tell("%s", output.text)
            case out.Fail():
                self._fail(output.reason)
            case _:
                assert_never(output)

    def _send(self, send: out.Send) -> None:
        def responded(response: Message | PeerUnreachable) -> None:
            if self._machine is None:
                return
            if isinstance(response, PeerUnreachable):
                self._logger.debug("Request to the quorum failed: %s", response)
            else:
                self.metrics.responses += 1
            self._after(
                self._machine.handle_response(
                    send.number, response, self._host.internode_clock.monotonic_ms()
                )
            )

        self.metrics.requests += 1
        purpose = FETCHES if isinstance(send.request, FetchRequest | FetchSnapshotRequest) else ELECTIONS
        self._host.peers.send(
            send.to,
            purpose,
            send.request,
            deadline_ms=send.deadline_ms,
            on_response=responded,
            to_controller=True,
        )

    def _remember(self, remember: out.Remember) -> None:
        if not self._is_settled:
            self.log.remember(remember.state)
            return
        if not remember.is_promise:
            self._election_file.remember(remember.state)
            return
        self._outputs.is_held = True
        self._election_file.remember(remember.state, self._release)

    def _fail(self, reason: str) -> None:
        """Stop the node, because it must not guess its metadata."""
        if self.failed:
            return
        self.failed = True
        self._unlead(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason))
        self.stop()
        self._host.call_soon(lambda: self._on_failed(reason))
        for watcher in self._leader_watchers:
            watcher()

    # --- requests to the quorum

    def handle_request(self, request: Message, requester: out.Requester) -> None:
        """Handle a request such as Vote or AddRaftVoter. `requester` gets the response, maybe later."""
        if self._machine is not None:
            now_ms = self._host.internode_clock.monotonic_ms()
            self._after(
                self._machine.handle_request(request, requester, now_ms, api_version=requester.api_version)
            )

    def when_synced(self, callback: Callable[[], None]) -> bool:
        """Return whether all votes and epochs of this node are durable. If not, call `callback` later.

        An epoch or a leadership must be durable before another node sees it, because a crash would undo it.
        """
        return self._outputs.when_released(callback)

    def describe(self) -> Description | None:
        """Return the state of the quorum, or None if this node is not the leader."""
        if self._machine is None or not self.leads:
            return None
        return self._machine.describe(self._host.internode_clock.monotonic_ms())

    def leader_endpoint(self, listener: str) -> PeerAddress | None:
        """Return the leader's address on a listener, or None if it is unknown."""
        machine = self._machine
        if machine is None:
            return None
        found = self.log.voters.address(machine.leader_id, listener)
        return machine.leader_address if found is None and listener == self._listener else found

    # --- downloads of snapshots: `download.Installs`

    def installed(self, *, succeeded: bool) -> None:
        """Continue after a fetched snapshot was installed or was found to be invalid."""
        if self._machine is not None:
            now_ms = self._host.internode_clock.monotonic_ms()
            self._machine.installed(now_ms)
            if not succeeded:
                self._machine.refused(now_ms)
            if self.log.awaits_sync:
                self._writes.soon()
            self._after(())

    def snapshot_failed(self, reason: str) -> None:
        """Stop the node, because a fetched snapshot could not be written."""
        self._fail(reason)

    # --- for the leader

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        """Append the controller's records, and return the offset of the last record.

        Raises ApiError UNKNOWN_SERVER_ERROR if atomic records exceed one batch, or KAFKA_STORAGE_ERROR.
        """
        offset = self._decisions.append(records, delta, atomic=atomic)
        self._write_soon()
        return offset

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> None:
        """Append the records that make the quorum dynamic (kraft.version 1).

        Raises ApiError if this node is not the leader, or if a voter does not support the version.
        """
        assert self._machine is not None
        self._after(self._machine.raise_kraft_version(version, validate_only=validate_only))

    def _append_controls(self, wanted: out.AppendControls, machine: Machine) -> None:
        if machine.role is not QuorumRole.LEADER or machine.epoch != wanted.epoch:
            return
        offset = self._decisions.append_controls(wanted.epoch, wanted.controls)
        self._do(machine.controls_appended(offset, self._host.internode_clock.monotonic_ms()))
        self._write_soon()

    def _write_soon(self) -> None:
        if self._is_settled:
            self._writes.soon()

    def _unlead(self, reason: ApiError) -> None:
        self._decisions.end(reason)
        self._waiters.call_all()

    # --- for followers

    @property
    def high_watermark(self) -> int:
        """The high watermark in Fetch responses; -1 if a new leader does not know it yet."""
        return -1 if self._machine is None else self._machine.high_watermark

    def is_voter(self, key: ReplicaKey) -> bool:
        """Return whether this replica is a voter."""
        return self.log.voters.find(key) is not None

    def record_fetch(self, key: ReplicaKey, offset: int) -> None:
        """Record that a replica has sent Fetch and has every record before `offset`."""
        assert self._machine is not None
        self._after(self._machine.fetched_by(key, offset, self._host.internode_clock.monotonic_ms()))
        self._decisions.are_followed()

    def heard_from(self, replica_id: int) -> None:
        """Handle that a replica has sent Fetch while this node is not its leader."""
        if self._machine is not None:
            self._after(self._machine.heard_from(replica_id))

    def record_snapshot_fetch(self, key: ReplicaKey) -> None:
        """Record that a replica has sent FetchSnapshot."""
        if self._machine is not None:
            self._machine.loaded_by(key, self._host.internode_clock.monotonic_ms())

    def wait(self, waiter: Callable[[], None], *, for_written: bool = False) -> None:
        """Call `waiter` once more records are committed or, with `for_written`, written.

        It is also called when this node loses the leadership or stops.
        """
        self._waiters.add(waiter, for_written=for_written)

    def cancel_wait(self, waiter: Callable[[], None]) -> None:
        """Remove a waiter that has not been called yet."""
        self._waiters.remove(waiter)

    def end_waits(self) -> None:
        """Complete all waiting requests, and stop appending NoOpRecords, because the node is stopping."""
        self.is_shutting_down = True
        if self._machine is not None:
            self._decisions.stop()
        self._waiters.call_all()
