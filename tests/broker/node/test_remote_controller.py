"""An active controller that is another node: commands as requests to it, clients' requests in envelopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.config import load
from kwire.broker.controller.commands import (
    AllocateProducerIds,
    AlteredPartition,
    AlterPartition,
    AssignReplicasToDirs,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    CreateTopics,
    PartitionAlteration,
    ProducerIdBlock,
    RegisterBroker,
    UnregisterBroker,
)
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.node.controller_requests import COMMANDS, FORWARDED, HEARTBEATS
from kwire.broker.node.remote_controller import FORWARDING_TIMEOUT_MS, NOT_CONTROLLER_MS, RemoteController
from kwire.broker.security.principal import Principal
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages import alter_partition, assign_replicas_to_dirs, create_topics
from kwire.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from kwire.wire.messages.broker_registration import BrokerRegistrationResponse
from kwire.wire.messages.envelope import EnvelopeResponse
from kwire.wire.messages.update_features import UpdateFeaturesResponse
from kwire.wire.primitives import Uuid
from kwire.wire.registry import RequestHeader, decode_request, decode_request_header, encode_response
from kwire.wire.schema import Message

TOPIC, DIRECTORY, OTHER = Uuid(b"t" * 16), Uuid(b"d" * 16), Uuid(b"o" * 16)
ONE, TWO = PeerAddress("one", 9093), PeerAddress("two", 9093)
HEADER = RequestHeader(ApiKey.CREATE_TOPICS, 7, 5, "me")


class Bench:
    """A node that knows who leads, or does not, and everybody that it asks."""

    def __init__(self) -> None:
        settings = {
            "process.roles": "broker",
            "node.id": "3",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@one:9093,2@two:9093",
        }
        self.host = VirtualHost()
        self.host.peers = self
        self.address: PeerAddress | None = ONE
        self.watchers: list[Callable[[], None]] = []
        self.sent: list[tuple[PeerAddress, str, Any, int, Any]] = []
        self.replies: list[Any] = []
        quorum: Any = self
        self.leads = False
        self.here: list[Any] = []
        """What this node is asked itself."""
        self.own: Any = type("Own", (), {"submit": lambda own, *asked: self.here.append(asked)})()
        self.remote = RemoteController(
            load(None, {}, settings), self.host, quorum, cluster_id=lambda: "c", local_controller=self.own
        )

    # --- QuorumView, as far as it is asked

    def leader_address(self) -> PeerAddress | None:
        return self.address

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        self.watchers.append(callback)

    def lead(self, address: PeerAddress | None) -> None:
        self.address = address
        for watcher in self.watchers:
            watcher()

    # --- Peers

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: int,
        on_response: Any,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        self.sent.append((to, purpose, request, deadline_ms, on_response))

    def answer(self, answer: Any) -> Any:
        """Answer the first request; what it was."""
        _, _, request, _, on_response = self.sent.pop(0)
        on_response(answer)
        return request

    def ask(self, command: Any, answer: Any) -> tuple[str, Any, Any]:
        """The purpose and the request of a command, and its reply to an answer."""
        self.remote.submit(command, self.replies.append)
        purpose = self.sent[0][1]
        request = self.answer(answer)
        return purpose, request, self.replies.pop()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_registration(bench: Bench) -> None:
    command = RegisterBroker(
        3, OTHER, [EndpointImage("PLAINTEXT", "three", 9092)], {"group.version": (0, 1)}, "r", [DIRECTORY], 8
    )
    purpose, request, reply = bench.ask(command, BrokerRegistrationResponse(broker_epoch=17))
    assert (purpose, reply) == (HEARTBEATS, 17)
    assert (request.broker_id, request.cluster_id, request.incarnation_id) == (3, "c", OTHER)
    assert [(one.name, one.host, one.port) for one in request.listeners] == [("PLAINTEXT", "three", 9092)]
    assert [(one.name, one.max_supported_version) for one in request.features] == [("group.version", 1)]
    assert (request.rack, request.log_dirs, request.previous_broker_epoch) == ("r", [DIRECTORY], 8)


def test_a_heartbeat(bench: Bench) -> None:
    command = BrokerHeartbeat(3, 17, 20, False, True, (DIRECTORY,), None)
    answer = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=True)
    purpose, request, reply = bench.ask(command, answer)
    assert (purpose, reply) == (HEARTBEATS, BrokerHeartbeatReply(True, False, True))
    assert (request.broker_epoch, request.current_metadata_offset) == (17, 20)
    assert (request.want_fence, request.want_shut_down) == (False, True)
    assert (request.offline_log_dirs, request.cordoned_log_dirs) == ([DIRECTORY], None)


def test_an_alteration_of_partitions(bench: Bench) -> None:
    wanted = PartitionAlteration(TOPIC, 1, 4, 6, [(3, 17), (2, -1)])
    answered = alter_partition.ResponsePartitionData(
        partition_index=1, leader_id=3, leader_epoch=4, isr=[3, 2], partition_epoch=7
    )
    refused = alter_partition.ResponsePartitionData(
        partition_index=0, error_code=ErrorCode.FENCED_LEADER_EPOCH
    )
    answer = alter_partition.AlterPartitionResponse(
        topics=[alter_partition.ResponseTopicData(topic_id=TOPIC, partitions=[answered, refused])]
    )
    purpose, request, reply = bench.ask(AlterPartition(3, 17, [wanted]), answer)
    (partition,) = request.topics[0].partitions
    assert (purpose, request.broker_epoch, partition.leader_epoch, partition.partition_epoch) == (
        COMMANDS,
        17,
        4,
        6,
    )
    assert [(one.broker_id, one.broker_epoch) for one in partition.new_isr_with_epochs] == [(3, 17), (2, -1)]
    assert reply[0] == AlteredPartition(TOPIC, 1, ErrorCode.NONE, 3, 4, [3, 2], 0, 7)
    assert (reply[1].partition_index, reply[1].error) == (0, ErrorCode.FENCED_LEADER_EPOCH)


def test_an_assignment_of_directories(bench: Bench) -> None:
    messages = assign_replicas_to_dirs
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = [
        messages.ResponsePartitionData(partition_index=0),
        messages.ResponsePartitionData(partition_index=1, error_code=code),
    ]
    topic = messages.ResponseTopicData(topic_id=TOPIC, partitions=told)
    answer = messages.AssignReplicasToDirsResponse(
        directories=[messages.ResponseDirectoryData(id=DIRECTORY, topics=[topic])]
    )
    places = {(TOPIC, 0): DIRECTORY, (TOPIC, 1): DIRECTORY, (TOPIC, 2): OTHER}
    purpose, request, reply = bench.ask(AssignReplicasToDirs(3, 17, places), answer)
    assert (purpose, request.broker_epoch, reply) == (COMMANDS, 17, {(TOPIC, 1): code})
    assert {
        one.id: [partition.partition_index for partition in one.topics[0].partitions]
        for one in request.directories
    } == {DIRECTORY: [0, 1], OTHER: [2]}


def test_producer_ids(bench: Bench) -> None:
    answer = AllocateProducerIdsResponse(producer_id_start=1_000, producer_id_len=500)
    purpose, request, reply = bench.ask(AllocateProducerIds(3, 17), answer)
    assert (purpose, request.broker_id, request.broker_epoch) == (COMMANDS, 3, 17)
    assert reply == ProducerIdBlock(1_000, 500)


def test_topics_that_a_broker_makes_itself(bench: Bench) -> None:
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    result = create_topics.CreatableTopicResult(name="t", error_code=36, error_message="is there")
    response = create_topics.CreateTopicsResponse(topics=[result])
    (frame,) = encode_response(19, 7, 0, response)
    purpose, request, reply = bench.ask(
        CreateTopics([topic]), EnvelopeResponse(response_data=bytes(frame[4:]))
    )
    assert purpose == FORWARDED
    header, position = decode_request_header(memoryview(request.request_data))
    inner = decode_request(header, memoryview(request.request_data), position)
    assert [one.name for one in inner.topics] == ["t"]
    assert [(one.name, one.error_code) for one in reply] == [("t", 36)]


def test_there_is_no_request_for_what_only_controllers_decide(bench: Bench) -> None:
    with pytest.raises(AssertionError):
        bench.remote.submit(UnregisterBroker(3), bench.replies.append)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (PeerUnreachable("one:9093 refused"), ErrorCode.NOT_CONTROLLER),
        (AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER), ErrorCode.NOT_CONTROLLER),
        (AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH), ErrorCode.STALE_BROKER_EPOCH),
        (AllocateProducerIdsResponse(error_code=9_999), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_refuses_a_command_is_an_error_of_it(bench: Bench, answer: Any, code: ErrorCode) -> None:
    _, _, reply = bench.ask(AllocateProducerIds(3, 17), answer)
    assert isinstance(reply, ApiError)
    assert reply.code is code


def test_nobody_is_asked_while_nobody_leads(bench: Bench) -> None:
    bench.address = None
    bench.remote.submit(AllocateProducerIds(3, 17), bench.replies.append)
    assert bench.replies == [], "never before it returns"
    bench.host.run_pending()
    assert [reply.code for reply in bench.replies] == [ErrorCode.NOT_CONTROLLER]
    assert bench.sent == []


def test_who_leads_no_more_is_not_waited_for(bench: Bench) -> None:
    bench.remote.submit(AllocateProducerIds(3, 17), bench.replies.append)
    bench.lead(None)
    bench.lead(ONE)
    assert bench.replies == []
    bench.lead(TWO)
    assert [reply.code for reply in bench.replies] == [ErrorCode.NOT_CONTROLLER]
    bench.answer(AllocateProducerIdsResponse(producer_id_start=1, producer_id_len=1))
    assert len(bench.replies) == 1, "its answer comes too late"


def test_who_led_is_not_waited_for_when_this_node_leads(bench: Bench) -> None:
    bench.remote.submit(AllocateProducerIds(3, 17), bench.replies.append)
    bench.leads = True
    bench.lead(None)
    assert [reply.code for reply in bench.replies] == [ErrorCode.NOT_CONTROLLER]


# --- what clients ask


class Asked:
    """A client's request, and what became of it."""

    header = HEADER
    api_version = 7
    principal = Principal("User", "ann")
    peer_host = "10.0.0.9"
    listener = "PLAINTEXT"

    def __init__(self) -> None:
        self.told: list[Any] = []

    def complete(self, response: Message) -> None:
        self.told.append(response)

    def refuse(self, error: ApiError) -> None:
        self.told.append(error.code)

    def close_connection(self) -> None:
        self.told.append("closed")


def forwarded(bench: Bench) -> Asked:
    asked = Asked()
    request = create_topics.CreateTopicsRequest(topics=[], timeout_ms=1)
    bench.remote.forward(asked, request, bench.here.append)
    return asked


def enveloped() -> EnvelopeResponse:
    (frame,) = encode_response(19, 7, 5, create_topics.CreateTopicsResponse(topics=[]))
    return EnvelopeResponse(response_data=bytes(frame[4:]))


def test_a_request_goes_as_it_came_and_so_does_the_answer(bench: Bench) -> None:
    asked = forwarded(bench)
    to, purpose, _, _, _ = bench.sent[0]
    request = bench.answer(enveloped())
    assert (to, purpose, request.client_host_address) == (ONE, FORWARDED, bytes([10, 0, 0, 9]))
    header, _ = decode_request_header(memoryview(request.request_data))
    assert header[:4] == HEADER[:4]
    assert asked.told == [create_topics.CreateTopicsResponse(topics=[])]


def test_another_controller_is_asked_where_one_is_none(bench: Bench) -> None:
    asked = forwarded(bench)
    bench.answer(EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER))
    bench.host.advance(NOT_CONTROLLER_MS)
    bench.answer(PeerUnreachable("one:9093 closed the connection"))
    bench.lead(TWO)
    bench.host.advance(NOT_CONTROLLER_MS)
    assert bench.sent[0][0] == TWO
    bench.answer(enveloped())
    assert len(asked.told) == 1


def test_who_leads_is_not_asked_over_the_network(bench: Bench) -> None:
    bench.leads = True
    command = AllocateProducerIds(3, 17)
    bench.remote.submit(command, bench.replies.append)
    assert bench.here.pop() == (command, bench.replies.append)
    asked = forwarded(bench)
    bench.here.pop().complete(create_topics.CreateTopicsResponse(topics=[]))
    assert len(asked.told) == 1
    assert bench.sent == []


@pytest.mark.parametrize("how", ["refused", "told"])
def test_who_led_when_it_was_asked_has_somebody_else_asked(bench: Bench, how: str) -> None:
    bench.leads = True
    asked = forwarded(bench)
    bench.leads = False
    if how == "refused":
        bench.here.pop().refuse(ApiError(ErrorCode.NOT_CONTROLLER))
    else:
        bench.here.pop().complete(UpdateFeaturesResponse(error_code=ErrorCode.NOT_CONTROLLER))
    assert asked.told == []
    bench.host.advance(NOT_CONTROLLER_MS)
    bench.answer(enveloped())
    assert asked.told == [create_topics.CreateTopicsResponse(topics=[])]


def test_in_the_end_it_is_given_up(bench: Bench) -> None:
    bench.address = None
    asked = forwarded(bench)
    bench.host.advance(FORWARDING_TIMEOUT_MS - 2 * NOT_CONTROLLER_MS)
    assert asked.told == []
    bench.host.advance(2 * NOT_CONTROLLER_MS)
    assert asked.told == [ErrorCode.REQUEST_TIMED_OUT]
    assert bench.host.timers == 0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), "closed"),
        (EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ErrorCode.UNKNOWN_SERVER_ERROR),
        (EnvelopeResponse(response_data=b"\0"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (EnvelopeResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_is_wrong_between_nodes_is_not_the_client_s(bench: Bench, answer: Any, told: Any) -> None:
    asked = forwarded(bench)
    bench.answer(answer)
    assert asked.told == [told]
