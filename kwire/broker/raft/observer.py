"""Follows the metadata log of a quorum in which this node does not vote: a machine, driven over the network.

What it fetches is written as it came, without a sync: what a crash takes from the end is fetched again. Only
what the quorum has committed is read and passed on; and after a start, before it is heard of, what the latest
snapshot holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.host.host import Host, PeerAddress, PeerUnreachable, Timer
from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch
from kwire.broker.raft import machine
from kwire.broker.raft.endpoints import quorum_addresses
from kwire.broker.raft.machine import Machine, Output, Terms
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.quorum_state import ElectionFile
from kwire.broker.raft.snapshots import SnapshotFile
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.storage.disk import StorageError
from kwire.wire.errors import ApiError
from kwire.wire.schema import Message

PURPOSE = "metadata"

OnBatches = Callable[[Iterable[MetadataBatch]], None]


class Observer:
    """The quorum as one of its observers sees it, and the log that it keeps."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        *,
        on_committed: OnBatches,
        on_restarted: OnBatches,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_committed` gets what is committed, in its order, from the beginning of the log.

        `on_restarted` gets a snapshot that takes the place of everything before it: what lies between is
        never told. `on_failed` is called with the reason once this node cannot follow the log any more.
        """
        self.log: MetadataLog
        """Set by `start`."""
        self.failed = False
        """The log cannot be followed any more: the node should end."""
        self._config = config
        self._host = host
        self._on_committed = on_committed
        self._on_restarted = on_restarted
        self._on_failed = on_failed
        self._addresses = quorum_addresses(config)
        self._machine: Machine | None = None
        self._watchers: list[Callable[[], None]] = []
        self._snapshot: SnapshotFile | None = None
        self._election_file: ElectionFile | None = None
        self._timer: Timer | None = None
        self._logger = host.logger("kwire.raft")

    # --- life

    def start(self, log: MetadataLog, cluster_id: str) -> None:
        """Pass on what is known to be committed, and begin to fetch. CorruptMetadata, StorageError."""
        self.log = log
        log.recover()
        self._on_committed(log.read_snapshot())
        election = log.election()
        self._election_file = ElectionFile(
            log.disk, self._host, log.log.directory, lambda error: self._fail(f"quorum-state: {error}")
        )
        self._machine = Machine(
            Terms(
                log.node_id,
                log.directory_id,
                cluster_id,
                self._addresses.servers,
                self._int("controller.quorum.fetch.timeout.ms"),
                self._int("controller.quorum.request.timeout.ms"),
                self._int("controller.quorum.retry.backoff.ms"),
                self._int("controller.quorum.fetch.max.bytes"),
                self._int("controller.quorum.fetch.snapshot.max.bytes"),
            ),
            log,
            self._host.random("quorum"),
            epoch=election.leader_epoch,
            leader_id=election.leader_id,
            address_of=self._address_of,
        )
        servers = ", ".join(map(str, self._addresses.servers))
        self._logger.info("metadata: following the quorum that %s know of", servers)
        self._go_on()

    def stop(self) -> None:
        """Fetch no more; a snapshot that is not complete is given up. Never raises."""
        self._machine = None
        if self._timer is not None:
            self._timer.cancel()
        if self._election_file is not None:
            self._election_file.close()
        self._drop_snapshot()

    def _int(self, key: str) -> int:
        return cast(int, self._config.value(key))

    # --- for who asks who leads

    @property
    def leader_id(self) -> int:
        """The active controller; NO_LEADER while nobody is known."""
        return NO_LEADER if self._machine is None else self._machine.leader_id

    @property
    def epoch(self) -> int:
        """The latest epoch that this node has heard of."""
        return 0 if self._machine is None else self._machine.epoch

    @property
    def leads(self) -> bool:
        """Never: it does not vote."""
        return False

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol: 1 where its voters stand in the log (KIP-853)."""
        return 0 if self.log.voters is None else 1

    def leader_address(self) -> PeerAddress | None:
        """Where the active controller is reached; None while that is not known."""
        return None if self._machine is None else self._machine.leader_address

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the leader, its epoch or its address has changed."""
        self._watchers.append(callback)

    def _address_of(self, voter_id: int) -> PeerAddress | None:
        """Where a voter is reached, by the configuration or by the log."""
        known: Mapping[int, PeerAddress] = self._addresses.voters
        if self.log.voters is None:
            return known.get(voter_id)
        names = self._config.controller_listener_names[:1]
        for voter in self.log.voters.voters:
            for endpoint in voter.endpoints:
                if voter.voter_id == voter_id and endpoint.name in names:
                    return PeerAddress(endpoint.host, endpoint.port)
        return None

    # --- driving the machine

    def _go_on(self) -> None:
        """Ask whoever is to be asked now, or come back when somebody is."""
        if self._machine is None:
            return
        now_ms = self._host.monotonic_ms()
        self._do(self._machine.tick(now_ms))
        due_ms = None if self._machine is None else self._machine.due_ms
        if due_ms is not None:
            self._timer = self._host.schedule(max(0, due_ms - now_ms), self._go_on)

    def _do(self, outputs: Iterable[Output]) -> None:
        try:
            for output in outputs:
                if not self.failed:
                    self._do_one(output)
        except (CorruptMetadata, StorageError, ApiError) as error:
            self._fail(f"the metadata log failed: {error}")

    def _do_one(self, output: Output) -> None:
        log = self.log
        match output:
            case machine.Send():
                self._send(output)
            case machine.Append():
                try:
                    log.append_fetched(output.records, epoch=output.epoch)
                except ValueError as error:
                    self._logger.error("metadata: what leader %d sent is refused: %s", self.leader_id, error)
                    assert self._machine is not None
                    self._machine.refused(self._host.monotonic_ms())
            case machine.Advance():
                log.advance_to(output.high_watermark)
                self._on_committed(log.read_up_to(log.high_watermark))
            case machine.Cut():
                self._logger.info(
                    "metadata: the log is cut at %d, where leader %d has another",
                    output.offset,
                    self.leader_id,
                )
                log.truncate_to(output.offset)
            case machine.Remember():
                assert self._election_file is not None
                self._election_file.remember(
                    log.election_of(output.epoch, output.leader_id, list(self._addresses.voters))
                )
                self._tell_leader()
            case machine.BeginSnapshot():
                self._drop_snapshot()
                self._logger.info("metadata: fetching snapshot %s", output.snapshot.name)
                self._snapshot = log.snapshots.create(output.snapshot)
            case machine.AddToSnapshot():
                assert self._snapshot is not None
                self._snapshot.append(bytes(output.data))
            case machine.DropSnapshot():
                self._drop_snapshot()
            case machine.Install():
                self._install()
            case machine.Complain():
                self._logger.error("metadata: %s", output.text)
            case machine.Fail():
                self._fail(output.reason)
            case _:
                assert_never(output)

    def _send(self, send: machine.Send) -> None:
        asking = self._machine

        def answered(answer: Message | PeerUnreachable) -> None:
            if asking is None or asking is not self._machine:
                return  # it was stopped
            if isinstance(answer, PeerUnreachable):
                self._logger.debug("metadata: %s", answer)
            self._do(asking.answered(answer, self._host.monotonic_ms()))
            self._go_on()

        self._host.peers.send(
            send.to, PURPOSE, send.request, deadline_ms=send.deadline_ms, on_answer=answered
        )

    def _tell_leader(self) -> None:
        self._logger.info(
            "metadata: %s leads epoch %d of the quorum",
            "nobody" if self.leader_id == NO_LEADER else f"node {self.leader_id}",
            self.epoch,
        )
        for watcher in self._watchers:
            watcher()

    def _fail(self, reason: str) -> None:
        """A node in doubt about its metadata ends rather than guesses."""
        self._logger.critical("this node cannot follow the metadata any more: %s", reason)
        self.stop()
        self.failed = True
        self._host.call_soon(lambda: self._on_failed(reason))

    # --- a fetched snapshot

    def _install(self) -> None:
        """Make it durable, in a worker, and begin the log behind it."""
        file = self._snapshot
        assert file is not None

        def synced(result: object) -> None:
            if file is not self._snapshot:
                return
            try:
                if isinstance(result, BaseException):
                    raise StorageError(str(result)) from result
                file.check()
                sync_name = file.publish()
            except CorruptMetadata as error:
                self._logger.error("metadata: the snapshot that was fetched is refused: %s", error)
                self._drop_snapshot()
                self._installed(succeeded=False)
            except StorageError as error:
                self._fail(f"snapshot {file.snapshot.name} cannot be written: {error}")
            else:
                self._host.run_in_worker(sync_name, named)

        def named(result: object) -> None:
            if file is not self._snapshot:
                return
            self._snapshot = None
            if isinstance(result, BaseException):
                self._fail(f"snapshot {file.snapshot.name} cannot be written: {result}")
                return
            self.log.snapshots.add(file.snapshot)
            try:
                self._on_restarted(self.log.read_snapshot())
            except (CorruptMetadata, StorageError) as error:
                self._fail(f"snapshot {file.snapshot.name} cannot be read: {error}")
                return
            self._installed(succeeded=True)

        self._host.run_in_worker(file.sync, synced)

    def _installed(self, *, succeeded: bool) -> None:
        assert self._machine is not None
        now_ms = self._host.monotonic_ms()
        self._machine.installed(now_ms)
        if not succeeded:
            self._machine.refused(now_ms)
        self._go_on()

    def _drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.abandon()
            self._snapshot = None
