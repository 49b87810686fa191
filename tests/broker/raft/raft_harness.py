"""The raft state machine alone, with a manual clock and a log in memory."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from kwire.broker.raft.machine import Machine
from kwire.broker.raft.outputs import (
    Advance,
    AppendControls,
    Output,
    Remember,
    Respond,
    Send,
    Tell,
    Truncate,
)
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.terms import Terms
from kwire.broker.raft.voters import KRAFT_VERSIONS, ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.host.host import InternodeTime, PeerAddress
from kwire.wire.messages import begin_quorum_epoch as begin
from kwire.wire.messages import end_quorum_epoch as end
from kwire.wire.messages import fetch_snapshot, vote
from kwire.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kwire.wire.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.raft import Endpoint
from kwire.wire.schema import Message
from simulation.quorum.log import Batch, SavedSnapshot, SimulatedLog

NOTHING = QuorumState()
LISTENER = "CONTROLLER"
ELECTION_TIMEOUT_MS = 1_000
FETCH_TIMEOUT_MS = 2_000
BACKOFF_MAX_MS = 800
ADDRESSES = {node_id: PeerAddress(f"n{node_id}", 9093) for node_id in range(1, 10)}


def directory(node_id: int, number: int = 1) -> Uuid:
    return Uuid(bytes([*[0] * 14, number, node_id % 256]))


def key(node_id: int, number: int = 1) -> ReplicaKey:
    return ReplicaKey(node_id, directory(node_id, number))


def voter(node_id: int) -> Voter:
    return Voter(key(node_id), (VoterEndpoint(LISTENER, f"n{node_id}", 9093),), *KRAFT_VERSIONS)


class RaftHarness:
    """A state machine with a log in memory; writes are durable at once unless `is_slow`."""

    def __init__(
        self,
        me: int = 1,
        voters: tuple[int, ...] = (1, 2, 3),
        *,
        dynamic: bool = False,
        remembered: QuorumState = NOTHING,
        log: Mapping[int, int] = {},
        may_vote: bool = True,
        auto_join: bool = False,
        servers: tuple[int, ...] | None = None,
    ) -> None:
        """Start the state machine; `log` maps epochs to numbers of records."""
        self.me, self.remembered = me, remembered
        static = VoterSet.of_addresses({one: ADDRESSES[one] for one in voters}, LISTENER)
        self.log = SimulatedLog(VoterSet() if dynamic else static)
        if dynamic:
            saved = SavedSnapshot(Snapshot(0, 0), VoterSet(map(voter, voters)), 1, 1)
            self.log.snapshots.append(saved)
            self.log.load(saved)
        for epoch, records in log.items():
            for _ in range(records):
                self.log.append(Batch(self.log.end_offset, epoch, (), "command"))
        self.now_ms = InternodeTime(1_000_000)
        self.is_slow = False
        self.responses: list[Any] = []
        self.executed: list[Output] = []
        self.terms = Terms(
            node_id=me,
            directory_id=directory(me),
            cluster_id="us",
            servers=[ADDRESSES[one] for one in (servers or voters)],
            may_vote=may_vote,
            listener=LISTENER,
            endpoints=[Endpoint(name=LISTENER, host=f"n{me}", port=9093)],
            auto_join=auto_join,
            election_timeout_ms=ELECTION_TIMEOUT_MS,
            election_backoff_max_ms=BACKOFF_MAX_MS,
            fetch_timeout_ms=FETCH_TIMEOUT_MS,
            request_timeout_ms=2_000,
            retry_backoff_ms=20,
            fetch_max_bytes=1_000,
            snapshot_max_bytes=500,
            missing_rights="User:ANONYMOUS must be in super.users",
        )
        self.machine = Machine(
            self.terms, self.log, random.Random(1), remembered=remembered, now_ms=self.now_ms
        )
        self.execute(self.machine.start(self.now_ms))

    # --- what comes out

    def execute(self, outputs: list[Output]) -> list[Output]:
        """Execute outputs. Return all of them except `Tell`, which only notifies subscribers."""
        found: list[Output] = []
        queue = list(outputs)
        while queue:
            output = queue.pop(0)
            if not isinstance(output, Tell):
                found.append(output)
            match output:
                case Respond():
                    self.responses.append(output.response)
                case AppendControls():
                    offset = self.log.end_offset
                    self.log.append(Batch(offset, output.epoch, tuple(output.controls)))
                    queue += self.machine.controls_appended(offset, self.now_ms)
                    queue += self._synced()
                case Advance():
                    self.log.advance(output.high_watermark)
                case Truncate():
                    self.log.truncate(output.offset)
                    queue += self._synced()
        self.executed += found
        return found

    def _synced(self) -> list[Output]:
        return [] if self.is_slow else self.sync()

    def sync(self) -> list[Output]:
        """Report that the complete log is durable."""
        self.log.awaits_sync = False
        return self.machine.synced(self.log.end_offset, self.now_ms)

    def append_records(self, count: int = 1, epoch: int | None = None) -> list[Output]:
        """Append records as this leader, or as fetched in this epoch."""
        for _ in range(count):
            batch = Batch(self.log.end_offset, self.machine.epoch if epoch is None else epoch, (), "command")
            self.log.append(batch)
        return self.execute(self._synced())

    def tick(self) -> list[Output]:
        return self.execute(self.machine.tick(self.now_ms))

    def run_due(self) -> list[Output]:
        """Advance to the next deadline and run what is due."""
        due_ms = self.machine.due_ms
        assert due_ms is not None
        self.now_ms = max(self.now_ms, due_ms)
        return self.tick()

    def next_sends(self) -> list[Send]:
        """Return the requests that are sent next."""
        return [output for output in self.run_due() if isinstance(output, Send)]

    def advance(self, ms: int) -> list[Output]:
        """Advance the clock and run everything that becomes due."""
        end_ms = self.now_ms + ms
        found: list[Output] = []
        while (due_ms := self.machine.due_ms) is not None and due_ms <= end_ms:
            found += self.run_due()
        self.now_ms = end_ms
        return found

    # --- what goes in

    def respond(self, send: Send, answer: Any) -> list[Output]:
        return self.execute(self.machine.handle_response(send.number, answer, self.now_ms))

    def request(self, request: Message, *, api_version: int = 1) -> Any:
        """Pass a request and return the response, or None while it is pending."""
        before = len(self.responses)
        self.execute(self.machine.handle_request(request, "requester", self.now_ms, api_version=api_version))
        return self.responses[-1] if len(self.responses) > before else None

    def fetch_from(self, node_id: int, offset: int | None = None, *, number: int = 1) -> list[Output]:
        offset = self.log.end_offset if offset is None else offset
        return self.execute(self.machine.fetched_by(key(node_id, number), offset, self.now_ms))

    # --- and how it becomes something

    def become_prospective(self) -> list[Send]:
        """Make it prospective and return its pre-vote requests."""
        for _ in range(100):
            found = self.next_sends()
            if found and isinstance(found[0].request, vote.VoteRequest):
                return found
            for send in found:
                self.machine.handle_response(
                    send.number, fetch_response(-1, self.machine.epoch, error_code=6), self.now_ms
                )
        raise AssertionError("it does not stand")

    def become_candidate(self) -> list[Send]:
        """Make it a candidate and return its vote requests."""
        send = self.become_prospective()[0]
        others = (len(self.log.voters)) // 2
        found: list[Output] = self.respond(send, vote_response(self.machine.epoch))
        for more in [one for one in self.executed if isinstance(one, Send)][-others:]:
            found += self.respond(more, vote_response(self.machine.epoch))
        return [one for one in self.tick() if isinstance(one, Send)]

    def become_leader(self) -> RaftHarness:
        """Make it the leader."""
        for send in self.become_candidate():
            self.respond(send, vote_response(self.machine.epoch))
        return self

    def become_follower(self, leader_id: int = 2, epoch: int = 3) -> RaftHarness:
        """Make it a follower of this leader."""
        self.request(begin_quorum_epoch(leader_id, epoch))
        return self


def remembered_states(outputs: list[Output]) -> list[tuple[int, int, int, bool]]:
    """Return epoch, leader, voted id and `is_promise` of each state to persist."""
    return [
        (one.state.leader_epoch, one.state.leader_id, one.state.voted_id, one.is_promise)
        for one in outputs
        if isinstance(one, Remember)
    ]


# --- what others say


def vote_response(
    epoch: int, *, granted: bool = True, leader_id: int = -1, code: int = 0
) -> vote.VoteResponse:
    data = vote.ResponsePartitionData(
        partition_index=0, error_code=code, leader_id=leader_id, leader_epoch=epoch, vote_granted=granted
    )
    at = [vote.NodeEndpoint(node_id=leader_id, host=f"n{leader_id}", port=9093)] if leader_id > 0 else []
    topic = vote.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[data])
    return vote.VoteResponse(topics=[topic], node_endpoints=at)


def vote_request(
    candidate: int,
    epoch: int,
    *,
    last: tuple[int, int] = (0, 0),
    pre_vote: bool = False,
    to: ReplicaKey | None = None,
    number: int = 1,
    cluster_id: str | None = "us",
    topic: str = METADATA_TOPIC,
) -> vote.VoteRequest:
    """Build a Vote request; `last` is the epoch of the candidate's last record and its log end offset."""
    data = vote.RequestPartitionData(
        partition_index=0,
        replica_epoch=epoch,
        replica_id=candidate,
        replica_directory_id=directory(candidate, number) if candidate >= 0 else ZERO_UUID,
        voter_directory_id=ZERO_UUID if to is None else to.directory_id,
        last_offset_epoch=last[0],
        last_offset=last[1],
        pre_vote=pre_vote,
    )
    return vote.VoteRequest(
        cluster_id=cluster_id,
        voter_id=-1 if to is None else to.replica_id,
        topics=[vote.RequestTopicData(topic_name=topic, partitions=[data])],
    )


def begin_quorum_epoch(
    leader_id: int, epoch: int, *, to: ReplicaKey | None = None, cluster_id: str = "us", at: str = ""
) -> begin.BeginQuorumEpochRequest:
    data = begin.RequestPartitionData(
        partition_index=0,
        voter_directory_id=ZERO_UUID if to is None else to.directory_id,
        leader_id=leader_id,
        leader_epoch=epoch,
    )
    return begin.BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=-1 if to is None else to.replica_id,
        topics=[begin.RequestTopicData(topic_name=METADATA_TOPIC, partitions=[data])],
        leader_endpoints=[begin.LeaderEndpoint(name=LISTENER, host=at or f"n{leader_id}", port=9093)],
    )


def end_quorum_epoch(
    leader_id: int, epoch: int, successors: tuple[int, ...] = ()
) -> end.EndQuorumEpochRequest:
    data = end.RequestPartitionData(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_candidates=[
            end.ReplicaInfo(candidate_id=one, candidate_directory_id=directory(one)) for one in successors
        ],
    )
    topic = end.RequestTopicData(topic_name=METADATA_TOPIC, partitions=[data])
    return end.EndQuorumEpochRequest(cluster_id="us", topics=[topic])


def fetch_response(leader_id: int, epoch: int, **fields: Any) -> FetchResponse:
    fields = {"error_code": 0, "high_watermark": -1, "records": b"", **fields}
    partition = PartitionData(
        partition_index=0, current_leader=LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch), **fields
    )
    at = [NodeEndpoint(node_id=leader_id, host=f"n{leader_id}", port=9093)] if leader_id > 0 else []
    return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])], node_endpoints=at)


def snapshot_response(
    snapshot: Snapshot,
    position: int,
    data: bytes,
    size: int,
    *,
    code: int = 0,
    leader: tuple[int, int] = (2, 3),
) -> FetchSnapshotResponse:
    partition = fetch_snapshot.ResponsePartitionSnapshot(
        index=0,
        error_code=code,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
        size=size,
        position=position,
        unaligned_records=data,
    )
    topic = fetch_snapshot.ResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[partition])
    return FetchSnapshotResponse(topics=[topic])
