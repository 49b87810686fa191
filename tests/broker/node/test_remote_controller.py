"""A remote active controller: commands become requests, and clients' requests are forwarded in envelopes."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
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
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages import alter_partition, assign_replicas_to_dirs, create_topics
from kwire.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from kwire.wire.messages.broker_registration import BrokerRegistrationResponse
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeResponse
from kwire.wire.messages.update_features import UpdateFeaturesResponse
from kwire.wire.primitives import Uuid
from kwire.wire.registry import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_version_prefixed,
    encode_response,
)
from kwire.wire.schema import Message

TOPIC, DIRECTORY, OTHER = Uuid(b"t" * 16), Uuid(b"d" * 16), Uuid(b"o" * 16)
ONE, TWO = PeerAddress("one", 9093), PeerAddress("two", 9093)
HEADER = RequestHeader(ApiKey.CREATE_TOPICS, 7, 5, "me")


class RemoteControllerHarness:
    """A node with a known or unknown leader; the test responds to its requests."""

    def __init__(self) -> None:
        settings = {
            "process.roles": "broker",
            "node.id": "3",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@one:9093,2@two:9093",
        }
        self.host = VirtualHost()
        self.host.peers = self  # type: ignore[assignment]
        self.address: PeerAddress | None = ONE
        self.epoch = 1
        self.watchers: list[Callable[[], None]] = []
        self.sent: list[tuple[PeerAddress, str, Any, int, Any]] = []
        self.replies: list[Any] = []
        quorum: Any = self
        self.leads = False
        self.local_requests: list[Any] = []
        """Commands and requests to the local controller."""
        self.own: Any = type(
            "Own", (), {"submit": lambda own, *context: self.local_requests.append(context)}
        )()
        self.remote = RemoteController(
            load(None, {}, settings), self.host, quorum, cluster_id=lambda: "c", local_controller=self.own
        )

    # --- QuorumView

    def leader_address(self) -> PeerAddress | None:
        return self.address

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        self.watchers.append(callback)

    def set_leader(self, address: PeerAddress | None) -> None:
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

    def respond(self, answer: Any) -> Any:
        """Respond to the oldest request and return it."""
        _, _, request, _, on_response = self.sent.pop(0)
        on_response(answer)
        return request

    def submit_and_respond(self, command: Any, answer: Any) -> tuple[str, Any, Any]:
        """Submit a command and respond to its request. Return the purpose, the request and the result."""
        self.remote.submit(command, self.replies.append)
        purpose = self.sent[0][1]
        request = self.respond(answer)
        return purpose, request, self.replies.pop()


@pytest.fixture
def harness() -> RemoteControllerHarness:
    return RemoteControllerHarness()


def test_broker_registration(harness: RemoteControllerHarness) -> None:
    command = RegisterBroker(
        3, OTHER, [EndpointImage("PLAINTEXT", "three", 9092)], {"group.version": (0, 1)}, "r", [DIRECTORY], 8
    )
    purpose, request, reply = harness.submit_and_respond(command, BrokerRegistrationResponse(broker_epoch=17))
    assert (purpose, reply) == (HEARTBEATS, 17)
    assert (request.broker_id, request.cluster_id, request.incarnation_id) == (3, "c", OTHER)
    assert [(one.name, one.host, one.port) for one in request.listeners] == [("PLAINTEXT", "three", 9092)]
    assert [(one.name, one.max_supported_version) for one in request.features] == [("group.version", 1)]
    assert (request.rack, request.log_dirs, request.previous_broker_epoch) == ("r", [DIRECTORY], 8)


def test_broker_heartbeat(harness: RemoteControllerHarness) -> None:
    command = BrokerHeartbeat(3, 17, 20, False, True, (DIRECTORY,), None)
    answer = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=True)
    purpose, request, reply = harness.submit_and_respond(command, answer)
    assert (purpose, reply) == (HEARTBEATS, BrokerHeartbeatReply(True, False, True))
    assert (request.broker_epoch, request.current_metadata_offset) == (17, 20)
    assert (request.want_fence, request.want_shut_down) == (False, True)
    assert (request.offline_log_dirs, request.cordoned_log_dirs) == ([DIRECTORY], None)


def test_alter_partition(harness: RemoteControllerHarness) -> None:
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
    purpose, request, reply = harness.submit_and_respond(AlterPartition(3, 17, [wanted]), answer)
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


def test_assign_replicas_to_dirs(harness: RemoteControllerHarness) -> None:
    messages = assign_replicas_to_dirs
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    expected = [
        messages.ResponsePartitionData(partition_index=0),
        messages.ResponsePartitionData(partition_index=1, error_code=code),
    ]
    topic = messages.ResponseTopicData(topic_id=TOPIC, partitions=expected)
    answer = messages.AssignReplicasToDirsResponse(
        directories=[messages.ResponseDirectoryData(id=DIRECTORY, topics=[topic])]
    )
    places = {(TOPIC, 0): DIRECTORY, (TOPIC, 1): DIRECTORY, (TOPIC, 2): OTHER}
    purpose, request, reply = harness.submit_and_respond(AssignReplicasToDirs(3, 17, places), answer)
    assert (purpose, request.broker_epoch, reply) == (COMMANDS, 17, {(TOPIC, 1): code})
    assert {
        one.id: [partition.partition_index for partition in one.topics[0].partitions]
        for one in request.directories
    } == {DIRECTORY: [0, 1], OTHER: [2]}


def test_allocate_producer_ids(harness: RemoteControllerHarness) -> None:
    answer = AllocateProducerIdsResponse(producer_id_start=1_000, producer_id_len=500)
    purpose, request, reply = harness.submit_and_respond(AllocateProducerIds(3, 17), answer)
    assert (purpose, request.broker_id, request.broker_epoch) == (COMMANDS, 3, 17)
    assert reply == ProducerIdBlock(1_000, 500)


def test_auto_topic_creation(harness: RemoteControllerHarness) -> None:
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    result = create_topics.CreatableTopicResult(name="t", error_code=36, error_message="is there")
    response = create_topics.CreateTopicsResponse(topics=[result])
    (frame,) = encode_response(19, 7, 0, response)
    purpose, request, reply = harness.submit_and_respond(
        CreateTopics([topic]),
        EnvelopeResponse(response_data=bytes(frame[4:])),  # type: ignore[index]
    )
    assert purpose == FORWARDED
    header, position = decode_request_header(memoryview(request.request_data))
    inner = decode_request(header, memoryview(request.request_data), position)
    assert [one.name for one in inner.topics] == ["t"]
    assert [(one.name, one.error_code) for one in reply] == [("t", 36)]


@pytest.mark.parametrize(
    ("client", "sent"),
    [
        (None, (Principal("User", "ANONYMOUS"), "127.0.0.1")),
        ((Principal("User", "ann", token_authenticated=True), "10.0.0.9"),) * 2,
        ((Principal("User", "ann"), "fe80::1%eth0"), (Principal("User", "ann"), "fe80::1")),
    ],
    ids=["internal topic", "client with a token", "client"],
)
def test_auto_topic_creation_has_the_rights_of_the_client(
    harness: RemoteControllerHarness, client: Any, sent: tuple[Principal, str]
) -> None:
    """The broker creates an internal topic with its own rights: on this listener, it is anonymous."""
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    harness.remote.submit(CreateTopics([topic], client=client), harness.replies.append)
    [(_, _, request, _, _)] = harness.sent
    data = decode_version_prefixed(DefaultPrincipalData, request.request_principal)
    principal = Principal(data.type, data.name, data.token_authenticated)
    assert (principal, request.client_host_address) == (sent[0], ip_address(sent[1]).packed)


def test_controller_only_command_has_no_request(harness: RemoteControllerHarness) -> None:
    with pytest.raises(AssertionError):
        harness.remote.submit(UnregisterBroker(3), harness.replies.append)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH), ErrorCode.STALE_BROKER_EPOCH),
        (AllocateProducerIdsResponse(error_code=9_999), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_error_response_fails_the_command(
    harness: RemoteControllerHarness, answer: Any, code: ErrorCode
) -> None:
    _, _, reply = harness.submit_and_respond(AllocateProducerIds(3, 17), answer)
    assert isinstance(reply, ApiError)
    assert reply.code is code


ALLOCATED = AllocateProducerIdsResponse(producer_id_start=1, producer_id_len=1)
REFUSALS = [
    PeerUnreachable("one:9093 refused"),
    AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER),
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_command_is_sent_again_to_the_same_node_after_a_pause(
    harness: RemoteControllerHarness, refusal: Any
) -> None:
    harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    for _ in range(5):
        harness.respond(refusal)
        harness.host.advance(NOT_CONTROLLER_MS - 1)
        assert harness.sent == []
        harness.host.advance(1)
    harness.respond(ALLOCATED)
    assert harness.replies == [ProducerIdBlock(1, 1)]
    assert harness.host.timers == 0


@pytest.mark.parametrize("refusal", REFUSALS)
def test_news_of_a_leader_sends_a_refused_command_at_once(
    harness: RemoteControllerHarness, refusal: Any
) -> None:
    harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    harness.respond(refusal)
    harness.set_leader(TWO)
    assert [sent[0] for sent in harness.sent] == [TWO]
    harness.respond(ALLOCATED)
    assert harness.replies == [ProducerIdBlock(1, 1)]
    assert harness.host.timers == 0


def test_command_without_a_leader_waits_for_the_news_of_one(harness: RemoteControllerHarness) -> None:
    harness.address = None
    harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    harness.host.advance(20_000)
    assert (harness.sent, harness.replies) == ([], [])
    harness.set_leader(ONE)
    harness.respond(ALLOCATED)
    assert harness.replies == [ProducerIdBlock(1, 1)]
    assert harness.host.timers == 0


@pytest.mark.parametrize(
    ("command", "timeout_ms"),
    [
        (AllocateProducerIds(3, 17), 30_000),  # controller.socket.timeout.ms
        (BrokerHeartbeat(3, 17, 20, False, False, (), None), 4_500),  # half of broker.session.timeout.ms
        (RegisterBroker(3, OTHER, [], {}, None, [], -1), 4_500),
    ],
)
def test_command_without_a_leader_fails_when_its_time_is_over(
    harness: RemoteControllerHarness, command: Any, timeout_ms: int
) -> None:
    harness.address = None
    harness.remote.submit(command, harness.replies.append)
    harness.host.advance(timeout_ms - 1)
    assert harness.replies == []
    harness.host.advance(1)
    assert [reply.code for reply in harness.replies] == [ErrorCode.NOT_CONTROLLER]
    assert (harness.sent, harness.host.timers) == ([], 0)


def test_leader_change_sends_pending_commands_to_the_new_leader(harness: RemoteControllerHarness) -> None:
    harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    late = harness.sent[0]
    harness.set_leader(None)
    harness.set_leader(ONE)
    assert len(harness.sent) == 1
    harness.set_leader(TWO)
    assert [sent[0] for sent in harness.sent] == [ONE, TWO]
    late[-1](AllocateProducerIdsResponse(producer_id_start=5, producer_id_len=5))
    assert harness.replies == [], "the late response is ignored"
    harness.sent.pop()[-1](ALLOCATED)
    assert harness.replies == [ProducerIdBlock(1, 1)]


def test_same_leader_in_a_later_epoch_gets_pending_commands_again(harness: RemoteControllerHarness) -> None:
    """Its machine may have lost power, so that it never responds, and no reset arrives."""
    harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    harness.set_leader(ONE)
    assert len(harness.sent) == 1
    harness.epoch += 1
    harness.set_leader(ONE)
    assert len(harness.sent) == 2
    harness.sent.pop()[-1](ALLOCATED)
    assert harness.replies == [ProducerIdBlock(1, 1)]


def test_becoming_leader_passes_pending_commands_to_the_local_controller(
    harness: RemoteControllerHarness,
) -> None:
    command = AllocateProducerIds(3, 17)
    harness.remote.submit(command, harness.replies.append)
    harness.leads = True
    harness.set_leader(None)
    submitted, on_done = harness.local_requests.pop()
    assert submitted == command
    on_done(ProducerIdBlock(1, 1))
    assert harness.replies == [ProducerIdBlock(1, 1)]


def test_command_that_the_local_controller_refuses_waits_for_the_next_leader(
    harness: RemoteControllerHarness,
) -> None:
    harness.leads = True
    harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    harness.leads, harness.address = False, None
    harness.local_requests.pop()[1](ApiError(ErrorCode.NOT_CONTROLLER))
    harness.set_leader(TWO)
    harness.respond(ALLOCATED)
    assert harness.replies == [ProducerIdBlock(1, 1)]


def test_stopped_node_sends_no_command_again(harness: RemoteControllerHarness) -> None:
    for _ in range(2):
        harness.remote.submit(AllocateProducerIds(3, 17), harness.replies.append)
    harness.respond(REFUSALS[0])
    harness.remote.stop()
    harness.respond(REFUSALS[0])
    assert [reply.code for reply in harness.replies] == [ErrorCode.NOT_CONTROLLER]
    harness.set_leader(TWO)
    assert (harness.sent, harness.host.timers) == ([], 0)


# --- requests of clients


class FakeRequestContext:
    """The context of a client's request, which records the result."""

    header = HEADER
    api_version = 7
    principal = Principal("User", "ann")
    peer_host = "10.0.0.9"
    listener = "PLAINTEXT"
    authorizer: StandardAuthorizer | None = None

    def __init__(self) -> None:
        self.results: list[Any] = []

    def complete(self, response: Message) -> None:
        self.results.append(response)

    def refuse(self, error: ApiError) -> None:
        self.results.append(error.code)

    def close_connection(self) -> None:
        self.results.append("closed")


def forward(harness: RemoteControllerHarness) -> FakeRequestContext:
    context = FakeRequestContext()
    request = create_topics.CreateTopicsRequest(topics=[], timeout_ms=1)
    harness.remote.forward(context, request, harness.local_requests.append)
    return context


def envelope_response() -> EnvelopeResponse:
    (frame,) = encode_response(19, 7, 5, create_topics.CreateTopicsResponse(topics=[]))
    return EnvelopeResponse(response_data=bytes(frame[4:]))  # type: ignore[index]


def test_forwarded_request_and_response_are_unchanged(harness: RemoteControllerHarness) -> None:
    context = forward(harness)
    to, purpose, _, _, _ = harness.sent[0]
    request = harness.respond(envelope_response())
    assert (to, purpose, request.client_host_address) == (ONE, FORWARDED, bytes([10, 0, 0, 9]))
    header, _ = decode_request_header(memoryview(request.request_data))
    assert header[:4] == HEADER[:4]
    assert context.results == [create_topics.CreateTopicsResponse(topics=[])]


def test_same_leader_in_a_later_epoch_does_not_get_a_forwarded_request_again(
    harness: RemoteControllerHarness,
) -> None:
    """The controller may have executed the request before this broker learns its new epoch."""
    forward(harness)
    harness.epoch += 1
    harness.set_leader(ONE)
    assert len(harness.sent) == 1
    harness.set_leader(TWO)
    assert len(harness.sent) == 2


def test_forwarding_retries_after_not_controller(harness: RemoteControllerHarness) -> None:
    context = forward(harness)
    harness.respond(EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER))
    harness.host.advance(NOT_CONTROLLER_MS)
    harness.respond(PeerUnreachable("one:9093 closed the connection"))
    harness.set_leader(TWO)
    harness.host.advance(NOT_CONTROLLER_MS)
    assert harness.sent[0][0] == TWO
    harness.respond(envelope_response())
    assert len(context.results) == 1


def test_local_leader_is_called_without_the_network(harness: RemoteControllerHarness) -> None:
    harness.leads = True
    command = AllocateProducerIds(3, 17)
    harness.remote.submit(command, harness.replies.append)
    assert harness.local_requests.pop()[0] == command
    context = forward(harness)
    harness.local_requests.pop().complete(create_topics.CreateTopicsResponse(topics=[]))
    assert len(context.results) == 1
    assert harness.sent == []


@pytest.mark.parametrize("error_kind", ["refused", "expected"])
def test_local_not_controller_error_forwards_to_the_new_leader(
    harness: RemoteControllerHarness, error_kind: str
) -> None:
    harness.leads = True
    context = forward(harness)
    harness.leads = False
    if error_kind == "refused":
        harness.local_requests.pop().refuse(ApiError(ErrorCode.NOT_CONTROLLER))
    else:
        harness.local_requests.pop().complete(UpdateFeaturesResponse(error_code=ErrorCode.NOT_CONTROLLER))
    assert context.results == []
    harness.host.advance(NOT_CONTROLLER_MS)
    harness.respond(envelope_response())
    assert context.results == [create_topics.CreateTopicsResponse(topics=[])]


def test_forwarding_times_out(harness: RemoteControllerHarness) -> None:
    harness.address = None
    context = forward(harness)
    harness.host.advance(FORWARDING_TIMEOUT_MS - 2 * NOT_CONTROLLER_MS)
    assert context.results == []
    harness.host.advance(2 * NOT_CONTROLLER_MS)
    assert context.results == [ErrorCode.REQUEST_TIMED_OUT]
    assert harness.host.timers == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), "closed"),
        (EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ErrorCode.UNKNOWN_SERVER_ERROR),
        (EnvelopeResponse(response_data=b"\0"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (EnvelopeResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_envelope_error_as_seen_by_the_client(
    harness: RemoteControllerHarness, answer: Any, expected: Any
) -> None:
    context = forward(harness)
    harness.respond(answer)
    assert context.results == [expected]
