"""Random election requests to a voter of kwire, which must respond as Apache Kafka's voter does.

Each test first sends random requests to an isolated voter of Apache Kafka. The responses of this voter
determine the next requests. Then the test sends the same requests to kwire's voter and compares the
responses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from interop.brokers import Broker
from interop.fake_broker import uuid
from interop.isolated_voter import BOTH, METADATA, VOTERS, Quorum, directory_id, isolated_voter, killed_quorum
from interop.scenario import compare, table
from interop.wire import Fields

UNKNOWN_ID = 77
METADATA_ID = uuid(1)
REQUESTS = 200
SHOWN = 3
SEEDS = 5
NO_LEADER = -1
NEARLY = (20, 2, 2, 1)
"""The random weights of the correct value and of three wrong values."""
TIMES = ("LastFetchTimestamp", "LastCaughtUpTimestamp")
STARTS = ("a leader once", "a follower", "a candidate", "nothing", "a voter for another")
"""The initial states of the voter's `quorum-state`, which successive seeds use in this order."""


class Request(NamedTuple):
    api: str
    version: int
    fields: Fields


@pytest.fixture(scope="module")
def quorum() -> Iterator[Quorum]:
    with killed_quorum() as found:
        yield found


class Transcript:
    """A generator of requests that could occur in an election with the voter's current epoch and leader."""

    def __init__(self, quorum: Quorum, node_id: int, rng: random.Random) -> None:
        self._quorum = quorum
        self._node_id = node_id
        self._rng = rng
        self.epoch = quorum.epoch
        self.leader_id = quorum.leader_id
        self.last = (quorum.epoch, quorum.end_offset)
        """The last epoch and the end offset of the voter's log."""

    def next(self) -> Request:
        """Return a random request that fits the responses so far."""
        makers = {
            self._vote: 8,
            self._begin: 4,
            self._end: 2,
            self._fetch: 2,
            self._update: 1,
            self._others: 1,
        }
        [make] = self._rng.choices([*makers], [*makers.values()])
        return make()

    def on_response(self, answer: Any) -> None:
        """Take the voter's epoch and leader from a response, if the response has them."""
        response: Any = answer
        for name in ("Topics", "Responses"):
            if response != "closed" and response.get(name):
                response = response[name][0]["Partitions"][0]
        response = response.get("CurrentLeader", response)
        if "LeaderEpoch" in response:
            self.epoch, self.leader_id = response["LeaderEpoch"], response["LeaderId"]

    def becomes_candidate(self, sent: Request) -> bool:
        """Return whether the request makes the voter a candidate.

        A valid EndQuorumEpoch request from the voter's leader does.
        """
        response = sent.fields["Topics"][0]["Partitions"][0] if sent.api == "EndQuorumEpoch" else {}
        is_heard = sent.fields.get("ClusterId") is None and response.get("PartitionIndex") == 0
        return is_heard and (response["LeaderEpoch"], response["LeaderId"]) == (self.epoch, self.leader_id)

    def on_elected(self) -> None:
        """Record that the voter has become leader and appended one record."""
        self.epoch, self.leader_id = self.epoch + 1, self._node_id
        self.last = (self.epoch, self.last[1] + 1)

    def _any_epoch(self) -> int:
        epoch = self.epoch
        weights = {epoch: 50, epoch + 1: 20, epoch + 2: 5, epoch - 1: 10, 0: 3, -1: 2}
        return self._rng.choices([*weights], [*weights.values()])[0]

    def _any_directory(self, node_id: int) -> bytes:
        found = [directory_id(node_id), bytes(16), directory_id(node_id % 3 + 1)]
        return self._rng.choices(found, [8, 1, 1])[0]

    def _other(self) -> int:
        """Return a random node id, except the voter's own id, which would make Apache Kafka's node exit."""
        others = [each for each in VOTERS if each != self._node_id]
        return self._rng.choices([*others, UNKNOWN_ID, -1], [10, 10, 1, 1])[0]

    def _to(self, version: int) -> tuple[Fields, Fields]:
        """Return the fields of a request that name its receiver: at the top level, and in the partition."""
        if version == 0:
            return {}, {}
        node_id = self._rng.choices([self._node_id, self._other()], [9, 1])[0]
        return {"VoterId": node_id}, {"VoterDirectoryId": self._any_directory(node_id)}

    def _cluster_id(self) -> Fields:
        return {"ClusterId": self._rng.choices([None, "another"], [30, 1])[0]}

    def _vote(self) -> Request:
        version = self._rng.choice([0, 1, 2, 2])
        whole, part = self._to(version)
        replica_id = self._other()
        last_epoch, end_offset = self.last
        part |= {
            "ReplicaEpoch": self._any_epoch(),
            "ReplicaId": replica_id,
            "LastOffsetEpoch": self._rng.choices([last_epoch, last_epoch - 1, last_epoch + 1, -1], NEARLY)[0],
            "LastOffset": self._rng.choices([end_offset, end_offset + 1, end_offset - 1, -1], NEARLY)[0],
        }
        if version >= 1:
            part["ReplicaDirectoryId"] = self._any_directory(replica_id)
        if version >= 2:
            part["PreVote"] = self._rng.random() < 0.6
        return Request("Vote", version, {**self._cluster_id(), **whole, "Topics": self._topics(part)})

    def _led(self) -> tuple[int, int]:
        """Return an epoch and a leader of that epoch.

        The leader never contradicts a leader that the voter knows for the epoch: Apache Kafka's node would
        exit.
        """
        epoch, leader_id = self._any_epoch(), self._other()
        if epoch == self.epoch and self.leader_id != NO_LEADER:
            if self.leader_id == self._node_id:
                epoch += 1
            else:
                leader_id = self.leader_id
        return epoch, leader_id if leader_id in VOTERS else self._node_id % 3 + 1

    def _endpoints(self, version: int, leader_id: int) -> Fields:
        if version == 0 or self._rng.random() < 0.3:
            return {}
        port = self._quorum.ports[leader_id]
        return {"LeaderEndpoints": [{"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": port}]}

    def _begin(self) -> Request:
        version = self._rng.choice([0, 1, 1])
        whole, part = self._to(version)
        epoch, leader_id = self._led()
        if epoch < 0:
            leader_id = self._other()
        part |= {"LeaderId": leader_id, "LeaderEpoch": epoch}
        whole |= self._endpoints(version, leader_id) if leader_id in VOTERS else {}
        return Request(
            "BeginQuorumEpoch", version, {**self._cluster_id(), **whole, "Topics": self._topics(part)}
        )

    def _end(self) -> Request:
        version = self._rng.choice([0, 1, 1])
        epoch, leader_id = self._led()
        part: Fields = {"LeaderId": leader_id, "LeaderEpoch": epoch}
        places = self._rng.sample(VOTERS, self._rng.randrange(4))
        if version:
            part["PreferredCandidates"] = [
                {"CandidateId": each, "CandidateDirectoryId": self._any_directory(each)} for each in places
            ]
        else:
            part["PreferredSuccessors"] = places
        whole = self._endpoints(version, leader_id)
        return Request(
            "EndQuorumEpoch", version, {**self._cluster_id(), **whole, "Topics": self._topics(part)}
        )

    def _topics(self, part: Fields) -> list[Fields]:
        """Return a topic list with the metadata partition, or rarely with partition 1 of its topic."""
        index = self._rng.choices([0, 1], [40, 1])[0]
        return [{"TopicName": METADATA, "Partitions": [{"PartitionIndex": index, **part}]}]

    def _fetch(self) -> Request:
        version = self._rng.choice([13, 15, 17, 18])
        replica_id, epoch = self._other(), self._any_epoch()
        part: Fields = {
            "Partition": 0,
            "CurrentLeaderEpoch": epoch,
            # With an offset at the end of its log, the leader would commit and append further records.
            "FetchOffset": self._rng.choice([0, 5, self._quorum.end_offset - 1, 1 << 40, -1]),
            "LastFetchedEpoch": self._rng.choice([0, self._quorum.epoch, epoch, epoch + 1]),
            "PartitionMaxBytes": 1 << 20,
        }
        if version >= 17:
            part["ReplicaDirectoryId"] = self._any_directory(replica_id)
        whole: Fields = {"ReplicaId": replica_id}
        if version >= 15:
            whole = {"ReplicaState": {"ReplicaId": replica_id, "ReplicaEpoch": -1}}
        whole |= {"MaxWaitMs": 100, "MinBytes": 0, "MaxBytes": 1 << 20, **self._cluster_id()}
        return Request(
            "Fetch", version, {**whole, "Topics": [{"TopicId": METADATA_ID, "Partitions": [part]}]}
        )

    def _update(self) -> Request:
        node_id = self._other()
        fields = {
            "CurrentLeaderEpoch": self._any_epoch(),
            "VoterId": node_id,
            "VoterDirectoryId": self._any_directory(node_id),
            "Listeners": [{"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 9}],
            "KRaftVersionFeature": {"MinSupportedVersion": 0, "MaxSupportedVersion": 1},
        }
        return Request("UpdateRaftVoter", 0, {**self._cluster_id(), **fields})

    def _others(self) -> Request:
        node_id = self._other()
        fields = {**self._cluster_id(), "VoterId": node_id, "VoterDirectoryId": self._any_directory(node_id)}
        if self._rng.random() < 0.3:
            return Request("RemoveRaftVoter", 0, fields)
        if self._rng.random() < 0.5:
            sent = [{"TopicName": METADATA, "Partitions": [{"PartitionIndex": 0}]}]
            return Request("DescribeQuorum", self._rng.randrange(3), {"Topics": sent})
        listeners = [{"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 9}]
        return Request("AddRaftVoter", 0, {**fields, "TimeoutMs": 1_000, "Listeners": listeners})


def set_quorum_state(start: str, node_id: int, state: Fields) -> None:
    """Change the fields of `quorum-state` so that the voter starts in the given state."""
    if start == "a candidate":
        state.update(leaderId=-1, leaderEpoch=state["leaderEpoch"] + 1, votedId=node_id)
        state["votedDirectoryId"] = f"{node_id:K<21}Q"
    elif start == "nothing":
        state.update(leaderId=-1, leaderEpoch=state["leaderEpoch"] + 1, votedId=-1)
        state["votedDirectoryId"] = "A" * 22
    elif start == "a voter for another":
        other = node_id % 3 + 1
        state.update(leaderId=-1, leaderEpoch=state["leaderEpoch"] + 1, votedId=other)
        state["votedDirectoryId"] = f"{other:K<21}Q"


def without_times(answer: Any) -> Any:
    """Return a response without times and without records, because records contain times."""
    if isinstance(answer, dict):
        return {name: without_times(part) for name, part in answer.items() if name not in (*TIMES, "Records")}
    return [without_times(part) for part in answer] if isinstance(answer, list) else answer


@BOTH
@pytest.mark.parametrize(
    ("seed", "others_vote"),
    [*((seed, False) for seed in range(SEEDS)), *((seed, True) for seed in range(len(STARTS)))],
)
def test_random_requests_get_the_same_responses(
    quorum: Quorum, seed: int, kinds: tuple[type[Broker], type[Broker]], *, others_vote: bool
) -> None:
    apache, kwire = kinds
    rng = random.Random(seed)
    start = STARTS[seed % len(STARTS)]
    node_id = quorum.leader_id if start == "a leader once" else quorum.leader_id % 3 + 1
    transcript = Transcript(quorum, node_id, rng)
    exchanges: list[tuple[Request, Any, bool]] = []

    def one(kind: type[Broker]) -> Any:
        return isolated_voter(
            quorum,
            node_id,
            kind,
            lambda state: set_quorum_state(start, node_id, state),
            others_vote=others_vote,
        )

    # A voter that was a candidate starts an election as soon as it runs, and the other voters grant their
    # votes.
    stands_at_once = others_vote and start == "a candidate"
    with one(apache) as voter:
        if stands_at_once:
            voter.wait_until_elected()
            transcript.on_elected()
        for _ in range(REQUESTS):
            sent = transcript.next()
            answer = without_times(voter.request(*sent))
            assert not isinstance(answer, str), (f"Apache Kafka: {answer}", *exchanges[-3:], sent)
            transcript.on_response(answer)
            becomes_candidate = others_vote and transcript.becomes_candidate(sent)
            if becomes_candidate:
                voter.wait_until_elected()
                transcript.on_elected()
            exchanges.append((sent, answer, becomes_candidate))
        quorum_state = voter.quorum_state()
    problems: list[str] = []
    with one(kwire) as voter:
        if stands_at_once:
            voter.wait_until_elected()
        for number, (sent, expected, becomes_candidate) in enumerate(exchanges):
            found = compare(f"request {number}", expected, without_times(voter.request(*sent)))
            if becomes_candidate:
                voter.wait_until_elected()
            if found:
                context = "\n".join(map(str, exchanges[max(0, number - 3) : number + 1]))
                problems.append(f"{context}\n{table(found)}")
        if voter.quorum_state() != quorum_state:
            problems.append(f"in the end it remembers something else than {quorum_state}")
    if problems:
        first = "\n".join(problems[:SHOWN])
        pytest.fail(f"{start}: {len(problems)} differ, first:\n{first}", pytrace=False)
