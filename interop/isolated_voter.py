"""One running voter of a quorum whose other voters do not run.

The voter is a node of Apache Kafka or of kwire, started on a copy of a directory that kwire has written. The
voter's timeouts last for hours. The addresses of the other voters accept connections but send no responses.
So the state of the voter depends only on the requests that a test sends.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from interop.brokers import Broker, Kwire
from interop.cluster.nodes import CONTROLLER, FEATURES, Cluster, Member, SmallKafka, wait_until
from interop.raw_client import RawClient
from interop.wire import Fields, Layout, encode_request, request_header_version, response_header_version

VOTERS = (1, 2, 3)
BOTH = pytest.mark.parametrize("kinds", [(SmallKafka, Kwire)], ids=["both"])
"""Parametrizes a test that compares both kinds of broker. `--only` deselects the test."""
METADATA = "__cluster_metadata"
ANSWERED = {1: 18, 18: 4, 52: 2, 53: 1, 54: 1, 59: 1, 82: 0}
"""The APIs that the simulated voters advertise, as API key and latest version."""
STILL = {"metadata.max.idle.interval.ms": "0"}
"""Prevents periodic no-op records, so that the logs of all voters reach the same end offset."""
PATIENT = {
    "controller.quorum.election.timeout.ms": "36000000",
    "controller.quorum.fetch.timeout.ms": "36000000",
    # The voter must give up a connection attempt to an unreachable voter after a short time.
    "controller.quorum.request.timeout.ms": "2000",
    # Without backoff, a voter starts an election immediately after EndQuorumEpoch, even if the request lists
    # other voters before it.
    "controller.quorum.election.backoff.max.ms": "0",
}


def directory_id(node_id: int) -> bytes:
    """Return the directory id that `Cluster` gives to a voter."""
    return base64.urlsafe_b64decode(f"{node_id:K<21}Q==")


def read_quorum_state(node: Broker) -> Fields:
    state: Fields = json.loads(_quorum_state_path(node).read_bytes())
    return state


def _write_quorum_state(node: Broker, state: Fields) -> None:
    _quorum_state_path(node).write_text(json.dumps(state, separators=(",", ":")))


def _quorum_state_path(node: Broker) -> Path:
    return node.log_dir / f"{METADATA}-0" / "quorum-state"


class Quorum(NamedTuple):
    """The state of a quorum when its voters were killed."""

    homes: dict[int, Path]
    """The data directories by voter id."""
    properties: dict[int, dict[str, str]]
    ports: dict[int, int]
    leader_id: int
    epoch: int
    end_offset: int
    """The log end offset, which is the same for all voters."""


@contextmanager
def killed_quorum(voters: int = 3) -> Iterator[Quorum]:
    """Start voters of kwire, kill them once their logs are equal, and yield the state of the quorum."""
    with Cluster((Member(Kwire, CONTROLLER),) * voters, STILL, voters_in_log=True) as cluster:
        cluster.start(format_arguments=FEATURES)
        leader_id = cluster.active_controller()
        described: Fields = {}

        def is_still() -> bool:
            before = dict(described)
            described.update(cluster.quorum(leader_id))
            ends = {voter["LogEndOffset"] for voter in described["CurrentVoters"]}
            epochs = [
                (state["leaderId"], state["leaderEpoch"])
                for state in map(read_quorum_state, cluster.nodes.values())
            ]
            is_known = set(epochs) == {(described["LeaderId"], described["LeaderEpoch"])}
            return is_known and ends == {described["HighWatermark"]} == {before.get("HighWatermark")}

        wait_until(is_still, "the voters do not come to rest")
        for node in cluster.nodes.values():
            assert node.process is not None
            node.process.kill()
        for node in cluster.nodes.values():
            node.kill()
            _vote_for(leader_id, node)
        yield Quorum(
            {node_id: node.directory for node_id, node in cluster.nodes.items()},
            {node_id: node.properties for node_id, node in cluster.nodes.items()},
            {node_id: node.controller_port for node_id, node in cluster.nodes.items()},
            leader_id,
            described["LeaderEpoch"],
            described["HighWatermark"],
        )


def _vote_for(leader_id: int, node: Broker) -> None:
    """Make this voter one that voted for the leader, whichever candidates the election had.

    A voter that voted for itself and then followed another leader would start as a candidate on Apache Kafka
    and as a follower on kwire (docs/decisions/0007).
    """
    vote = {"votedId": leader_id, "votedDirectoryId": f"{leader_id:K<21}Q"}
    _write_quorum_state(node, read_quorum_state(node) | vote)


def without_messages(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: without_messages(part) for name, part in answer.items() if name != "ErrorMessage"}
    return [without_messages(part) for part in answer] if isinstance(answer, list) else answer


class IsolatedVoter:
    def __init__(self, node: Broker, quorum: Quorum, node_id: int) -> None:
        self.node = node
        self.quorum = quorum
        self.node_id = node_id
        self.is_sole = len(quorum.ports) == 1
        self._client = RawClient(node.controller_bootstrap)

    def request(self, api: str, version: int, fields: Fields) -> Any:
        """Send a request. Return the response without error messages, or a word if there is none.

        The word is `closed` (the connection), `silence` (a timeout), or `ended` (the process).
        """
        try:
            answer = self._client.outcome(encode_request(api, version, fields), api, version)
        except OSError:
            answer = "closed"
        if isinstance(answer, str):
            self._client.socket.close()
            try:
                self._client = RawClient(self.node.controller_bootstrap)
            except OSError:
                answer = "ended"
        return without_messages(answer)

    def epoch_and_leader(self) -> tuple[int, int]:
        """Return the voter's epoch and leader id, which it reports in response to a Vote with an old epoch.

        Raises OSError if the voter does not respond.
        """
        partition = {"PartitionIndex": 0, "ReplicaEpoch": 0, "ReplicaId": 3, "PreVote": True}
        topics = [{"TopicName": METADATA, "Partitions": [partition]}]
        answer = self.request("Vote", 2, {"ClusterId": None, "Topics": topics})
        if isinstance(answer, str):
            raise OSError(f"{self.node.name}, voter {self.node_id}: {answer}")
        response = answer["Topics"][0]["Partitions"][0]
        return response["LeaderEpoch"], response["LeaderId"]

    def wait_until_elected(self) -> None:
        """Wait until this voter has become leader with the votes of the other voters."""
        wait_until(lambda: self.epoch_and_leader()[1] == self.node_id, "it is not elected")

    def wait_until_registered(self) -> None:
        """Wait until a sole voter has written its leader change record and its registration."""
        partitions = [{"PartitionIndex": 0}]
        question = {"Topics": [{"TopicName": METADATA, "Partitions": partitions}]}

        def is_written() -> bool:
            response = self.request("DescribeQuorum", 1, question)["Topics"][0]["Partitions"][0]
            return bool(response["HighWatermark"] == self.quorum.end_offset + 2)

        wait_until(is_written, "it does not register")

    def close(self) -> None:
        self._client.socket.close()

    def quorum_state(self) -> Any:
        """Stop the voter and return the content of its `quorum-state` file."""
        self.node.stop()
        return read_quorum_state(self.node)


@contextmanager
def isolated_voter(
    quorum: Quorum,
    node_id: int,
    kind: type[Broker],
    change: Callable[[Fields], None] = lambda state: None,
    *,
    others_vote: bool = False,
) -> Iterator[IsolatedVoter]:
    """Start the voter `node_id` as a broker of this kind, on a copy of its directory.

    `change` modifies `quorum-state` before the start. The other voters send no responses, or with
    `others_vote` grant every vote and respond to nothing else.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        home = Path(name) / "node"
        shutil.copytree(quorum.homes[node_id], home)
        node = kind(directory=home)
        node.controller_port = quorum.ports[node_id]
        others = [port for each, port in quorum.ports.items() if each != node_id]
        servers = ",".join(f"127.0.0.1:{port}" for port in others or [node.controller_port])
        node.properties = {
            **quorum.properties[node_id],
            **PATIENT,
            "log.dirs": str(node.log_dir),
            "controller.quorum.bootstrap.servers": servers,
        }
        state = read_quorum_state(node)
        change(state)
        _write_quorum_state(node, state)
        for port in others:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            if others_vote:
                Thread(target=_vote, args=(listener,), daemon=True).start()
                # Closing a listener does not wake the thread that waits in `accept`.
                stack.callback(listener.shutdown, socket.SHUT_RDWR)
        stack.callback(node.discard)
        node.start()
        voter = IsolatedVoter(node, quorum, node_id)
        stack.callback(voter.close)
        if voter.is_sole:
            voter.wait_until_registered()
        yield voter


def _vote(listener: socket.socket) -> None:
    """Accept connections until the listener is closed, and grant every vote that is requested on them."""
    with suppress(OSError):
        while True:
            Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    """Respond to ApiVersions, Vote (granted) and BeginQuorumEpoch (accepted), and to no other API."""
    with connection, connection.makefile("rb") as frames, suppress(OSError):
        while size := frames.read(4):
            frame = frames.read(int.from_bytes(size, "big"))
            key, version = struct.unpack_from(">hh", frame)
            api = {18: "ApiVersions", 52: "Vote", 53: "BeginQuorumEpoch"}.get(key)
            if api is None:
                continue
            header, position = Layout("RequestHeader", request_header_version(api, version)).decode(frame)
            request, _ = Layout(f"{api}Request", version).decode(frame, position)
            fields: Fields = {
                "ApiKeys": [
                    {"ApiKey": each, "MinVersion": 0, "MaxVersion": high} for each, high in ANSWERED.items()
                ]
            }
            if api == "BeginQuorumEpoch":
                led = request["Topics"][0]["Partitions"][0]
                begun = {name: led[name] for name in ("PartitionIndex", "LeaderId", "LeaderEpoch")}
                fields = {"Topics": [{"TopicName": METADATA, "Partitions": [begun]}]}
            if api == "Vote":
                asked = request["Topics"][0]["Partitions"][0]
                voted = {"PartitionIndex": 0, "LeaderId": -1, "VoteGranted": True}
                voted["LeaderEpoch"] = asked["ReplicaEpoch"]
                fields = {"Topics": [{"TopicName": METADATA, "Partitions": [voted]}]}
            answer_header = Layout("ResponseHeader", response_header_version(api, version))
            answer = answer_header.encode({"CorrelationId": header["CorrelationId"]})
            answer += Layout(f"{api}Response", version).encode(fields)
            connection.sendall(len(answer).to_bytes(4, "big") + answer)
