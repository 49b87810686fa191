"""Fetching: how followers and observers replicate the metadata log. KIP-595, KIP-630, KIP-1166.

A node that does not know the leader sends Fetch to any server of the quorum to learn the leader, and then
fetches from the leader. A response has batches, or the offset where the logs diverge, or the id of a snapshot
to load first. One request is in flight at a time, because each request starts where the last response ended.
A voter sends the next Fetch only after its log is durable, because its fetch offset counts as an
acknowledgment.
"""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.raft.calls import FETCH, Calls
from kwire.broker.raft.outputs import (
    AddToSnapshot,
    Advance,
    Append,
    BeginSnapshot,
    DropSnapshot,
    Install,
    Output,
    Send,
    Truncate,
)
from kwire.broker.raft.positions import EndOfEpoch, truncation_offset
from kwire.broker.raft.roles import Stage
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.voters import address_of, endpoints_of
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC, METADATA_TOPIC_ID
from kwire.host.host import InternodeTime, PeerAddress
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import fetch_snapshot
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer

FETCH_WAIT_MS: Final = 500
"""The max_wait_ms of each Fetch, as in Kafka."""


class Contradiction(Exception):
    """A response that contradicts the committed part of this node's log."""


class _Loading(NamedTuple):
    """A snapshot that is being fetched, and the number of bytes received so far."""

    snapshot: Snapshot
    position: int = 0


class Fetching:
    """The fetch state of a node that is not the leader."""

    def __init__(self, terms: Terms, log: QuorumLog, calls: Calls, rng: random.Random) -> None:
        self.stage = Stage.FETCHING
        self.has_fetched = False
        """Whether the current leader has responded to a Fetch."""
        self.synced_offset = log.end_offset
        """The end of the durable part of the log, as an offset."""
        self._terms = terms
        self._log = log
        self._calls = calls
        mine = address_of(endpoints_of(terms.endpoints), terms.listener)
        self._servers = [server for server in terms.servers if server != mine]
        self._turn = rng.randrange(1 << 16)
        self._loading: _Loading | None = None
        self._doubts_leader = False
        """Whether the last request to the leader failed, so that the next request goes to another server."""

    @property
    def is_settled(self) -> bool:
        """Whether the next Fetch may be sent: a voter's log is durable, and no snapshot is being installed.

        After a truncation, observers also wait for the sync. Otherwise a crash could bring truncated records
        back.
        """
        is_durable = not self._terms.may_vote or self.synced_offset >= self._log.end_offset
        return is_durable and not self._log.awaits_sync and self.stage is not Stage.INSTALLING

    def due_ms(self, leader: PeerAddress | None) -> InternodeTime | None:
        """Return when the next request is due (monotonic ms); None before a sync, or without any server."""
        there_are = leader is not None or self._servers or len(self._log.voters) > 1
        return self._calls.ready_ms(FETCH) if self.is_settled and there_are else None

    def restart(self) -> list[Output]:
        """Start again with another epoch or leader, and drop unprocessed data from the last leader.

        A snapshot that is already complete is still installed, because its content is committed.
        """
        self.has_fetched = self._doubts_leader = False
        return self._drop() if self.stage is Stage.LOADING else []

    # --- requests

    def build_request(
        self, epoch: int, leader: PeerAddress | None, *, is_late: bool, now_ms: InternodeTime
    ) -> Send:
        """Build a Fetch or FetchSnapshot request to the leader.

        If the leader is unknown, or `is_late` with its response, send Fetch to the next server instead.
        """
        to, loading = leader, self._loading
        if to is None or is_late or self._doubts_leader:
            to, loading = self._next() or to, None
            assert to is not None
        request = self._fetch(epoch) if loading is None else self._fetch_snapshot(loading, epoch)
        return self._calls.send(FETCH, to, request, now_ms)

    def _next(self) -> PeerAddress | None:
        """Return the next server to request the leader from: a bootstrap server, or else a voter, in turn."""
        servers = self._servers or [
            address
            for voter in self._log.voters
            if voter.key.replica_id != self._terms.node_id
            and (address := voter.address(self._terms.listener)) is not None
        ]
        self._turn += 1
        return servers[self._turn % len(servers)] if servers else None

    def failed(self, *, was_leader: bool) -> None:
        """Record a request without a useful response.

        `was_leader`: the request went to the leader, which sent no valid response.
        """
        # After another server has responded once, the next request goes to the leader again.
        self._doubts_leader = was_leader

    def _fetch(self, epoch: int) -> FetchRequest:
        terms, log = self._terms, self._log
        partition = FetchPartition(
            partition=0,
            current_leader_epoch=epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.last_epoch,
            partition_max_bytes=0,  # KRaft limits the complete request only
            replica_directory_id=terms.directory_id,
            high_watermark=log.high_watermark,
        )
        return FetchRequest(
            cluster_id=terms.cluster_id,
            replica_state=ReplicaState(replica_id=terms.node_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=0,
            max_bytes=terms.fetch_max_bytes,
            topics=[FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )

    def _fetch_snapshot(self, loading: _Loading, epoch: int) -> FetchSnapshotRequest:
        terms, snapshot = self._terms, loading.snapshot
        partition = fetch_snapshot.RequestPartitionSnapshot(
            partition=0,
            current_leader_epoch=epoch,
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            position=loading.position,
            replica_directory_id=terms.directory_id,
        )
        return FetchSnapshotRequest(
            cluster_id=terms.cluster_id,
            replica_id=terms.node_id,
            max_bytes=terms.snapshot_max_bytes,
            topics=[fetch_snapshot.RequestTopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
        )

    # --- responses

    def fetched(self, response: FetchResponse, epoch: int) -> list[Output]:
        """Handle a Fetch response of the current leader.

        Raises Contradiction if the response would replace committed records.
        """
        [partition] = response.responses[0].partitions
        log, diverging, offered = self._log, partition.diverging_epoch, partition.snapshot_id
        outputs: list[Output] = []
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            offset = truncation_offset(log, EndOfEpoch(diverging.epoch, diverging.end_offset))
            if offset < log.high_watermark:
                raise Contradiction(
                    f"leader epoch {epoch} diverges from this node at offset {offset}, below the high "
                    f"watermark {log.high_watermark}: committed metadata would be lost"
                )
            self.synced_offset = min(self.synced_offset, offset)
            outputs.append(Truncate(offset))
        elif offered.end_offset >= 0 and offered.epoch >= 0:
            snapshot = Snapshot(offered.end_offset, offered.epoch)
            if snapshot.end_offset < log.high_watermark:
                raise Contradiction(
                    f"leader epoch {epoch} offers a snapshot at offset {snapshot.end_offset}, below the high "
                    f"watermark {log.high_watermark}: committed metadata would be lost"
                )
            if self._loading is None or self._loading.snapshot != snapshot:
                self.stage, self._loading = Stage.LOADING, _Loading(snapshot)
                outputs.append(BeginSnapshot(snapshot))
        else:
            if self._loading is not None:  # the leader no longer requires the snapshot
                outputs += self._drop()
            if partition.records:
                outputs.append(Append(_buffer(partition.records), epoch))
            if partition.high_watermark >= 0:
                outputs.append(Advance(partition.high_watermark))
        self._succeeded()
        return outputs

    def loaded(self, response: FetchSnapshotResponse, now_ms: InternodeTime) -> list[Output]:
        """Handle a FetchSnapshot response of the current leader."""
        [partition] = response.topics[0].partitions
        loading = self._loading
        if loading is None:
            return []
        told = Snapshot(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        data = _buffer(partition.unaligned_records)
        position = loading.position + len(data)
        if (
            partition.error_code != ErrorCode.NONE
            or told != loading.snapshot
            or partition.position != loading.position
            or not data
            or position > partition.size
        ):
            # The leader no longer has this snapshot, or the response is invalid: start again with a Fetch.
            self._calls.rest(FETCH, now_ms)
            return self._drop()
        outputs: list[Output] = [AddToSnapshot(data)]
        self._loading = loading._replace(position=position)
        if position == partition.size:
            self.stage = Stage.INSTALLING
            outputs.append(Install())
        self._succeeded()
        return outputs

    def installed(self) -> None:
        """Fetch again after the snapshot was installed or was found to be invalid.

        The log is durable, except that the new log start may not be synced yet.
        """
        assert self.stage is Stage.INSTALLING, self.stage.name
        self.stage, self._loading = Stage.FETCHING, None
        self.synced_offset = self._log.end_offset

    def synced(self, offset: int) -> None:
        """Record that the log is durable up to `offset`."""
        self.synced_offset = max(self.synced_offset, min(offset, self._log.end_offset))

    def _drop(self) -> list[Output]:
        self.stage, self._loading = Stage.FETCHING, None
        return [DropSnapshot()]

    def _succeeded(self) -> None:
        self.has_fetched, self._doubts_leader = True, False
        self._calls.succeeded(FETCH)


def _buffer(records: object) -> Buffer:
    """Return records as bytes, without a copy."""
    assert isinstance(records, (bytes, bytearray, memoryview))
    return records
