"""Invalid quorum requests from voters and unknown nodes: kwire's voter must respond as Apache Kafka's does.

No request may change the voter's epoch or leader. Some requests would make Apache Kafka's node exit or would
block its elections. The test sends these requests to kwire only, which must reject them
(docs/decisions/0020).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interop.brokers import Broker, Kwire
from interop.fake_broker import uuid
from interop.isolated_voter import (
    BOTH,
    METADATA,
    IsolatedVoter,
    Quorum,
    directory_id,
    isolated_voter,
    killed_quorum,
)
from interop.known_differences import SNAPSHOT_ERROR
from interop.scenario import Difference, compare, explain, table
from interop.wire import Fields

UNKNOWN_ID = 77
LAST_EPOCH = (1 << 31) - 1
METADATA_ID = uuid(1)
INVALID_REQUEST = 42
ROLES = ("sole voter", "without a leader", "follower", "leader of three")
NO_CLUSTER = {"of another cluster": "another", "of a cluster without a name": ""}
KNOWN = [
    ("*", "/FetchSnapshot refused: */*", SNAPSHOT_ERROR),
    (
        "*",
        f"/Fetch *, of {UNKNOWN_ID}/*/Has",
        "an observer is sent committed records only: docs/decisions/0014",
    ),
]


@pytest.fixture(scope="module")
def quorums() -> Iterator[dict[int, Quorum]]:
    """Return killed quorums by their number of voters."""
    with killed_quorum(1) as one, killed_quorum(3) as three:
        yield {1: one, 3: three}


def voter_in_role(quorums: dict[int, Quorum], role: str, kind: type[Broker]) -> Any:
    """Return a context manager that starts an isolated voter in a role of ROLES."""
    if role == "sole voter":
        return isolated_voter(quorums[1], 1, kind)
    quorum = quorums[3]
    follower_id = quorum.leader_id % 3 + 1
    if role != "without a leader":
        return isolated_voter(quorum, follower_id, kind, others_vote=role == "leader of three")

    def forget(state: Fields) -> None:
        state.update(leaderId=-1, votedId=-1, votedDirectoryId="A" * 22)

    return isolated_voter(quorum, follower_id, kind, forget)


class QuorumClient:
    """A client that checks after each response that the voter still has the same epoch and leader."""

    def __init__(self, voter: IsolatedVoter, quorum: Quorum) -> None:
        self.voter = voter
        self.quorum = quorum
        self.other_id = next(each for each in (2, 3, 1) if each != voter.node_id)
        """The id of another voter. In a quorum of one voter, no node has this id."""
        self.epoch, self.leader_id = voter.epoch_and_leader()
        self.seen: dict[str, Any] = {}

    def request(self, label: str, api: str, version: int, fields: Fields) -> Any:
        answer = self.voter.request(api, version, fields)
        for topic in answer.get("Responses", ()) if isinstance(answer, dict) else ():
            for partition in topic["Partitions"]:
                partition["Has"] = bool(partition.pop("Records"))
        self.seen[f"{api} {label}"] = answer
        found = self.voter.epoch_and_leader()
        assert found == (self.epoch, self.leader_id), f"{label} has it in epoch {found[0]}, led by {found[1]}"
        return answer

    # --- Elections

    def send_elections(self) -> None:
        """Send invalid Vote, BeginQuorumEpoch and EndQuorumEpoch requests."""
        epoch, own_id = self.epoch, self.voter.node_id
        vote: Fields = {
            "PartitionIndex": 0,
            "ReplicaEpoch": epoch,
            "ReplicaId": self.other_id,
            "ReplicaDirectoryId": directory_id(self.other_id),
            "VoterDirectoryId": directory_id(own_id),
            "LastOffsetEpoch": 0,
            "LastOffset": 0,
            "PreVote": True,
        }
        begin: Fields = {
            "PartitionIndex": 0,
            "VoterDirectoryId": directory_id(own_id),
            "LeaderId": self.other_id,
            "LeaderEpoch": epoch,
        }
        end: Fields = {"PartitionIndex": 0, "LeaderId": self.other_id, "LeaderEpoch": epoch}
        to: Fields = {"VoterId": own_id}
        for api, version, partition, whole, who, when in (
            ("Vote", 2, vote, to, "ReplicaId", "ReplicaEpoch"),
            ("BeginQuorumEpoch", 1, begin, to, "LeaderId", "LeaderEpoch"),
            ("EndQuorumEpoch", 1, end, {}, "LeaderId", "LeaderEpoch"),
        ):
            for label, cluster_id in NO_CLUSTER.items():
                given = {"ClusterId": cluster_id, "Topics": of_topic([partition]), **whole}
                self.request(label, api, version, given)
            for label, topics in malformed(partition).items():
                self.request(label, api, version, {"ClusterId": None, "Topics": topics, **whole})
            for label, changed in {
                "in the last epoch": {when: epoch - 1},
                "in the first epoch": {when: 0},
                "in no epoch": {when: -1},
                "in the smallest epoch": {when: -LAST_EPOCH - 1},
                "of id -1": {who: -1},
                "of id -1, in an old epoch": {who: -1, when: 0},
            }.items():
                given = {"ClusterId": None, "Topics": of_topic([{**partition, **changed}]), **whole}
                self.request(label, api, version, given)
        logs: dict[str, Fields] = {
            "of a log that is behind": {},
            "of a log that is behind, without pre-vote": {"PreVote": False},
            "of an unknown node": {"ReplicaId": UNKNOWN_ID, "ReplicaDirectoryId": uuid(500)},
            "of a voter in another directory": {"ReplicaDirectoryId": uuid(500)},
            "to another directory": {"VoterDirectoryId": uuid(500)},
            "of an impossible log": {"LastOffsetEpoch": epoch + 1},
            "of an impossible log, without pre-vote": {"LastOffsetEpoch": epoch, "PreVote": False},
            "of a log without an epoch": {"LastOffsetEpoch": -1},
            "of a log without an end": {"LastOffset": -1},
            "of the longest log": {"LastOffset": (1 << 63) - 1},
        }
        for label, changed in logs.items():
            self.request(
                label, "Vote", 2, {"ClusterId": None, "Topics": of_topic([{**vote, **changed}]), **to}
            )
        elsewhere = {"ClusterId": None, "VoterId": UNKNOWN_ID, "Topics": of_topic([vote])}
        self.request("to an unknown node", "Vote", 2, elsewhere)

    def send_harmful_elections(self) -> None:
        """Send requests that would make Apache Kafka's node exit or would block its elections."""
        others = [each for each in (1, 2, 3) if each not in (self.leader_id, self.voter.node_id)]
        for api in ("BeginQuorumEpoch", "EndQuorumEpoch"):
            for leader_id, epoch in (
                *(((others[0], self.epoch),) if self.leader_id >= 0 else ()),
                *(((self.voter.node_id, self.epoch),) if self.leader_id != self.voter.node_id else ()),
                (self.voter.node_id, self.epoch + 1),
                (others[0], LAST_EPOCH),
            ):
                partition = {"PartitionIndex": 0, "LeaderId": leader_id, "LeaderEpoch": epoch}
                given = {"ClusterId": None, "Topics": of_topic([partition])}
                answer = self.request(f"{leader_id} {epoch}", api, 0, given)
                assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == INVALID_REQUEST, answer
        for pre_vote in (False, True):
            partition = {"PartitionIndex": 0, "ReplicaEpoch": LAST_EPOCH, "ReplicaId": others[0]}
            partition["PreVote"] = pre_vote
            answer = self.request("the last", "Vote", 2, {"ClusterId": None, "Topics": of_topic([partition])})
            assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == INVALID_REQUEST, answer
        own = {"PartitionIndex": 0, "ReplicaEpoch": self.epoch, "ReplicaId": self.voter.node_id}
        own |= {"LastOffsetEpoch": self.epoch - 1, "LastOffset": 1 << 40}
        answer = self.request("of itself", "Vote", 2, {"ClusterId": None, "Topics": of_topic([own])})
        assert not answer["Topics"][0]["Partitions"][0]["VoteGranted"], answer

    # --- The metadata log

    def send_fetches(self) -> None:
        """Send Fetch requests with wrong offsets and epochs, as another voter and as an unknown node."""
        other, epoch, end_offset = self.other_id, self.epoch, self.quorum.end_offset
        right: Fields = {
            "Partition": 0,
            "CurrentLeaderEpoch": epoch,
            "FetchOffset": 0,
            "LastFetchedEpoch": 0,
            "PartitionMaxBytes": 1 << 20,
            "ReplicaDirectoryId": directory_id(other),
        }
        offsets: dict[str, Fields] = {
            "from the beginning": {},
            "beyond the end": {"FetchOffset": 1 << 40, "LastFetchedEpoch": epoch},
            "far beyond the end": {"FetchOffset": (1 << 63) - 1, "LastFetchedEpoch": epoch},
            "beyond the end of an old epoch": {"FetchOffset": end_offset + 5, "LastFetchedEpoch": epoch - 1},
            "within, of an epoch that was not there": {"FetchOffset": 5, "LastFetchedEpoch": epoch},
            "of no offset": {"FetchOffset": -1},
            "of no epoch": {"LastFetchedEpoch": -1},
            "of a future epoch": {"FetchOffset": 5, "LastFetchedEpoch": epoch + 1},
            "in a future epoch": {"CurrentLeaderEpoch": epoch + 1, "LastFetchedEpoch": epoch + 1},
            "in the largest epoch": {"CurrentLeaderEpoch": LAST_EPOCH, "LastFetchedEpoch": LAST_EPOCH},
            "in an old epoch": {"CurrentLeaderEpoch": epoch - 1},
            "in no epoch": {"CurrentLeaderEpoch": -1, "LastFetchedEpoch": -1},
            "of another partition": {"Partition": 1},
            "of another directory": {"ReplicaDirectoryId": uuid(500), "FetchOffset": 1 << 40},
        }
        for label, changed in offsets.items():
            for replica_id in (other, UNKNOWN_ID):
                self._fetch(f"{label}, of {replica_id}", replica_id, {**right, **changed})
        for label, cluster_id in NO_CLUSTER.items():
            self._fetch(label, other, right, ClusterId=cluster_id)
        self._fetch("of nothing", other, right, Topics=[])
        self._fetch("of another topic", other, right, Topics=[{"TopicId": uuid(500), "Partitions": [right]}])
        self._fetch("with a negative wait", other, right, MaxWaitMs=-1)

    def _fetch(self, label: str, replica_id: int, partition: Fields, **changed: Any) -> None:
        fields = {
            "MaxWaitMs": 0,
            "MinBytes": 0,
            "MaxBytes": 1 << 20,
            "ReplicaState": {"ReplicaId": replica_id, "ReplicaEpoch": -1},
            "Topics": [{"TopicId": METADATA_ID, "Partitions": [partition]}],
            **changed,
        }
        self.request(label, "Fetch", 17, fields)

    def send_snapshot_fetches(self) -> None:
        """Send FetchSnapshot requests with missing snapshots and wrong positions."""
        right: Fields = {
            "Partition": 0,
            "CurrentLeaderEpoch": self.epoch,
            "Position": 0,
            "SnapshotId": {"EndOffset": 5, "Epoch": 1},
            "ReplicaDirectoryId": directory_id(self.other_id),
        }
        send_snapshot_fetches: dict[str, Fields] = {
            "of none": {},
            "of the first one": {"SnapshotId": {"EndOffset": 0, "Epoch": 0}},
            "of a negative one": {"SnapshotId": {"EndOffset": -1, "Epoch": -1}},
            "of the last one": {"SnapshotId": {"EndOffset": (1 << 63) - 1, "Epoch": LAST_EPOCH}},
            "far within": {"Position": 1 << 40},
            "before it": {"Position": -1},
            "in an old epoch": {"CurrentLeaderEpoch": self.epoch - 1},
            "in a future epoch": {"CurrentLeaderEpoch": LAST_EPOCH},
            "of another partition": {"Partition": 1},
        }
        for label, changed in send_snapshot_fetches.items():
            topics = [{"Name": METADATA, "Partitions": [{**right, **changed}]}]
            given = {"ReplicaId": self.other_id, "MaxBytes": -1, "Topics": topics}
            self.request(f"refused: {label}", "FetchSnapshot", 1, given)
        for label, cluster_id in NO_CLUSTER.items():
            topics = [{"Name": METADATA, "Partitions": [right]}]
            self.request(
                label,
                "FetchSnapshot",
                1,
                {"ReplicaId": self.other_id, "Topics": topics, "ClusterId": cluster_id},
            )

    # --- Voter changes

    def send_voter_changes(self) -> None:
        """Send AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter requests that must not change the voters."""
        epoch, own_id = self.epoch, self.voter.node_id
        nowhere = [{"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 9}]
        listeners = {
            "without listeners": [],
            "with another listener": [{"Name": "PLAINTEXT", "Host": "127.0.0.1", "Port": 9}],
        }
        add: Fields = {
            "ClusterId": None,
            "TimeoutMs": 1_000,
            "VoterId": UNKNOWN_ID,
            "VoterDirectoryId": uuid(500),
            "Listeners": nowhere,
        }
        remove = {"ClusterId": None, "VoterId": UNKNOWN_ID, "VoterDirectoryId": uuid(500)}
        update: Fields = {
            "ClusterId": None,
            "CurrentLeaderEpoch": epoch,
            "VoterId": UNKNOWN_ID,
            "VoterDirectoryId": uuid(500),
            "Listeners": nowhere,
            "KRaftVersionFeature": {"MinSupportedVersion": 0, "MaxSupportedVersion": 1},
        }
        wrong: dict[str, Fields] = {
            **{label: {"ClusterId": cluster_id} for label, cluster_id in NO_CLUSTER.items()},
            "of an unknown node": {},
            "of id -1": {"VoterId": -1},
            "without a directory": {"VoterDirectoryId": bytes(16)},
            "of itself, in another directory": {"VoterId": own_id},
        }
        where: dict[str, Fields] = {label: {"Listeners": given} for label, given in listeners.items()}
        for label, changed in {**wrong, **where}.items():
            for version in (0, 1):
                self.request(f"v{version} {label}", "AddRaftVoter", version, {**add, **changed})
        self.request(
            "of itself",
            "AddRaftVoter",
            1,
            {**add, "VoterId": own_id, "VoterDirectoryId": directory_id(own_id)},
        )
        for label, changed in wrong.items():
            self.request(label, "RemoveRaftVoter", 0, {**remove, **changed})
        alone = {"VoterId": own_id, "VoterDirectoryId": directory_id(own_id)}
        if self.leader_id != own_id or self.voter.is_sole:
            self.request("of itself", "RemoveRaftVoter", 0, {**remove, **alone})

        def knows(low: int, high: int) -> Fields:
            return {"KRaftVersionFeature": {"MinSupportedVersion": low, "MaxSupportedVersion": high}}

        versions = {
            "in an old epoch": {"CurrentLeaderEpoch": epoch - 1},
            "in a future epoch": {"CurrentLeaderEpoch": epoch + 1},
            "in no epoch": {"CurrentLeaderEpoch": -1},
            "that knows less than nothing": knows(-1, 1),
            "that knows nothing": knows(1, 0),
            "that knows only what is gone": knows(0, 0),
            "that knows only what is to come": knows(2, 9),
        }
        for label, changed in {**wrong, **where, **versions}.items():
            self.request(label, "UpdateRaftVoter", 0, {**update, **changed})


def of_topic(partitions: list[Fields], name: str = METADATA) -> list[Fields]:
    return [{"TopicName": name, "Partitions": partitions}]


def malformed(partition: Fields) -> dict[str, list[Fields]]:
    """Return topic lists that are not exactly one metadata partition, by description."""
    return {
        "of nothing": [],
        "of another topic": of_topic([partition], "another"),
        "of no partition": of_topic([]),
        "of two partitions": of_topic([partition, {**partition, "PartitionIndex": 1}]),
        "of one partition twice": of_topic([partition, partition]),
        "of two topics": of_topic([partition]) + of_topic([partition], "another"),
        "of another partition": of_topic([{**partition, "PartitionIndex": 1}]),
        "of a negative partition": of_topic([{**partition, "PartitionIndex": -1}]),
    }


def observe_responses(quorums: dict[int, Quorum], role: str, kind: type[Broker]) -> dict[str, Any]:
    """Send invalid requests to a voter in this role. Returns its responses by label.

    kwire's voter also gets the harmful requests, whose responses are not returned.
    """
    with voter_in_role(quorums, role, kind) as voter:
        if role == "leader of three":
            end = {"PartitionIndex": 0, "LeaderId": voter.quorum.leader_id, "LeaderEpoch": voter.quorum.epoch}
            voter.request("EndQuorumEpoch", 0, {"ClusterId": None, "Topics": of_topic([end])})
        if role in ("sole voter", "leader of three"):
            voter.wait_until_elected()
        client = QuorumClient(voter, voter.quorum)
        client.send_elections()
        client.send_fetches()
        client.send_snapshot_fetches()
        client.send_voter_changes()
        seen = dict(client.seen)
        if kind is Kwire:
            client.send_harmful_elections()
        return {"in epoch": client.epoch, "led by": client.leader_id, **seen}


@BOTH
@pytest.mark.parametrize("role", ROLES)
def test_invalid_requests_get_the_same_responses(
    quorums: dict[int, Quorum], role: str, kinds: tuple[type[Broker], ...], differences: list[Difference]
) -> None:
    expected, actual = (observe_responses(quorums, role, kind) for kind in kinds)
    found = [explain(each, KNOWN) for each in compare(f"invalid requests to a {role}", expected, actual)]
    differences.extend(found)
    unexplained = [each for each in found if not each.reason]
    if unexplained:
        pytest.fail("\n" + table(unexplained), pytrace=False)
