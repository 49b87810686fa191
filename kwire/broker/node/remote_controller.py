"""The way to an active controller that is another node: commands and clients' requests as requests to it.

A command is asked once. Where nobody leads, or who is asked does not or is not reached, the answer is
NOT_CONTROLLER, and who asked asks again. What clients ask goes as it is, in an Envelope (KIP-590), and is
asked again here until its time is over, as Apache Kafka's brokers do it.

Heartbeats, commands and forwarded requests have a connection each: the controller takes the requests of one
in their order, and none of them is to wait for those of another kind.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kwire.broker.api.ports import Asked
from kwire.broker.config import BrokerConfig
from kwire.broker.controller.commands import (
    AllocateProducerIds,
    AlteredPartition,
    AlterPartition,
    AssignDirectories,
    BrokerHeartbeat,
    Command,
    CreateTopics,
    HeartbeatReply,
    OnDone,
    ProducerIdBlock,
    RegisterBroker,
)
from kwire.broker.host.host import Host, PeerUnreachable
from kwire.broker.raft.view import QuorumView
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages import alter_partition, assign_replicas_to_dirs, broker_registration
from kwire.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.wire.primitives import Uuid
from kwire.wire.registry import (
    API_VERSIONS,
    decode_response,
    encode_request,
    encode_stored,
)
from kwire.wire.schema import Message

HEARTBEATS: Final = "heartbeat"
COMMANDS: Final = "controller"
FORWARDED: Final = "forwarding"

FORWARDING_TIMEOUT_MS: Final = 60_000
"""How long a client's request is tried; Kafka's, whatever the client's own patience."""
RETRY_BACKOFF_MS: Final = 50
TOPICS_TIMEOUT_MS: Final = 30_000
CREATE_TOPICS_VERSION: Final = 7
NOBODY: Final = "User:ANONYMOUS"
NOWHERE: Final = "127.0.0.1"


class _Question(NamedTuple):
    """A command as it is asked, and how its answer is read."""

    purpose: str
    request: Message
    read: Callable[[Any], Any]


class RemoteController:
    """The `ControllerPort` of a node that does not lead the quorum, and the way of what it forwards."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        quorum: QuorumView,
        *,
        cluster_id: Callable[[], str],
    ) -> None:
        self._config = config
        self._host = host
        self._quorum = quorum
        self._cluster_id = cluster_id

    # --- commands

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Have the active controller decide a command; `on_done` gets the reply, or an ApiError.

        It is never called before this returns.
        """
        question = self._question(command)
        patience_ms = self._config.controller_socket_timeout_ms
        if question.purpose == HEARTBEATS:
            # A broker that hears nothing has to find another controller before its session is over.
            patience_ms = min(patience_ms, self._config.broker_session_timeout_ms // 2)

        def answered(answer: Message | ApiError) -> None:
            if not isinstance(answer, ApiError):
                try:
                    answer = question.read(answer)
                except ApiError as error:
                    answer = error
            on_done(answer)

        self._ask(question.purpose, question.request, self._host.monotonic_ms() + patience_ms, answered)

    def _question(self, command: Command) -> _Question:
        match command:
            case RegisterBroker():
                return _Question(HEARTBEATS, _registration(command, self._cluster_id()), _broker_epoch)
            case BrokerHeartbeat():
                return _Question(HEARTBEATS, _heartbeat(command), _heartbeat_reply)
            case AlterPartition():
                return _Question(COMMANDS, _alteration(command), _altered)
            case AssignDirectories():
                return _Question(COMMANDS, _assignment(command), _refused_assignments)
            case AllocateProducerIds():
                request = AllocateProducerIdsRequest(
                    broker_id=command.broker_id, broker_epoch=command.broker_epoch
                )
                return _Question(COMMANDS, request, _producer_ids)
            case CreateTopics():
                topics = CreateTopicsRequest(
                    topics=list(command.topics),
                    timeout_ms=TOPICS_TIMEOUT_MS,
                    validate_only=command.validate_only,
                )
                frame = encode_request(topics, CREATE_TOPICS_VERSION, 0, "")[4:]
                return _Question(FORWARDED, envelope(frame, NOBODY, NOWHERE), _created_topics)
        raise AssertionError(f"no broker asks for {type(command).__name__}")

    def _ask(
        self,
        purpose: str,
        request: Message,
        deadline_ms: int,
        on_answer: Callable[[Message | ApiError], None],
    ) -> None:
        """Ask who leads now. What it says for the whole request is an ApiError."""
        address = self._quorum.leader_address()
        if address is None:
            error = ApiError(ErrorCode.NOT_CONTROLLER, "nobody is known to lead the quorum")
            self._host.call_soon(lambda: on_answer(error))
            return

        def answered(answer: Message | PeerUnreachable) -> None:
            if isinstance(answer, PeerUnreachable):
                on_answer(ApiError(ErrorCode.NOT_CONTROLLER, str(answer)))
                return
            code = getattr(answer, "error_code", ErrorCode.NONE)
            on_answer(ApiError(_code(code)) if code else answer)

        self._host.peers.send(address, purpose, request, deadline_ms=deadline_ms, on_answer=answered)

    # --- what clients ask

    def forward(self, asked: Asked, request: Message) -> None:
        """Have the active controller answer a client's request, however often it takes to find it."""
        header = asked.header
        deadline_ms = self._host.monotonic_ms() + FORWARDING_TIMEOUT_MS
        frame = encode_request(request, header.api_version, header.correlation_id, header.client_id or "")[4:]
        wrapped = envelope(frame, asked.principal, asked.peer_host)

        def ask() -> None:
            patience_ms = self._config.controller_socket_timeout_ms
            until_ms = min(deadline_ms, self._host.monotonic_ms() + patience_ms)
            self._ask(FORWARDED, wrapped, until_ms, answered)

        def answered(answer: Message | ApiError) -> None:
            if isinstance(answer, EnvelopeResponse):
                self._pass_on(asked, answer)
                return
            assert isinstance(answer, ApiError)
            if answer.code is ErrorCode.NOT_CONTROLLER:
                if self._host.monotonic_ms() + RETRY_BACKOFF_MS < deadline_ms:
                    self._host.schedule(RETRY_BACKOFF_MS, ask)
                else:
                    asked.refuse(ApiError(ErrorCode.REQUEST_TIMED_OUT))
            elif answer.code is ErrorCode.UNSUPPORTED_VERSION:
                # The client goes by what this broker has advertised: it is to ask for that again.
                asked.close_connection()
            else:
                self._host.logger("kwire.dispatch").error(
                    "the controller does not take what this broker forwards: %s", answer
                )
                asked.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

        ask()

    def _pass_on(self, asked: Asked, answer: EnvelopeResponse) -> None:
        header = asked.header
        try:
            _, response = decode_response(
                API_VERSIONS[header.api_key].response_class, header.api_version, answer.response_data or b""
            )
        except WireError as error:
            self._host.logger("kwire.dispatch").error("the controller's answer cannot be read: %s", error)
            asked.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        asked.complete(response)


def envelope(frame: bytes, principal: str, peer_host: str) -> EnvelopeRequest:
    """A request's frame (without its size) with who asks from where."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(type=kind, name=name, token_authenticated=False)
    return EnvelopeRequest(
        request_data=frame,
        request_principal=encode_stored(data, 0),
        client_host_address=ipaddress.ip_address(peer_host.partition("%")[0]).packed,
    )


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


# --- each command as a request, and its answer as a reply


def _registration(command: RegisterBroker, cluster_id: str) -> Message:
    return broker_registration.BrokerRegistrationRequest(
        broker_id=command.broker_id,
        cluster_id=cluster_id,
        incarnation_id=command.incarnation_id,
        listeners=[
            broker_registration.Listener(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in command.endpoints
        ],
        features=[
            broker_registration.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in command.features.items()
        ],
        rack=command.rack,
        is_migrating_zk_broker=command.is_migrating,
        log_dirs=sorted(command.log_dirs),
        previous_broker_epoch=command.previous_broker_epoch,
    )


def _broker_epoch(answer: broker_registration.BrokerRegistrationResponse) -> int:
    return answer.broker_epoch


def _heartbeat(command: BrokerHeartbeat) -> Message:
    cordoned = command.cordoned_log_dirs
    return BrokerHeartbeatRequest(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        current_metadata_offset=command.current_metadata_offset,
        want_fence=command.want_fence,
        want_shut_down=command.want_shut_down,
        offline_log_dirs=list(command.offline_log_dirs),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def _heartbeat_reply(answer: Any) -> HeartbeatReply:
    return HeartbeatReply(answer.is_caught_up, answer.is_fenced, answer.should_shut_down)


def _alteration(command: AlterPartition) -> Message:
    topics: dict[Uuid, list[alter_partition.RequestPartitionData]] = {}
    for wanted in command.partitions:
        topics.setdefault(wanted.topic_id, []).append(
            alter_partition.RequestPartitionData(
                partition_index=wanted.index,
                leader_epoch=wanted.leader_epoch,
                new_isr=[],
                new_isr_with_epochs=[
                    alter_partition.BrokerState(broker_id=broker_id, broker_epoch=broker_epoch)
                    for broker_id, broker_epoch in wanted.new_isr
                ],
                leader_recovery_state=wanted.leader_recovery_state,
                partition_epoch=wanted.partition_epoch,
            )
        )
    return alter_partition.AlterPartitionRequest(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        topics=[
            alter_partition.RequestTopicData(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )


def _altered(answer: alter_partition.AlterPartitionResponse) -> list[AlteredPartition]:
    return [
        AlteredPartition(
            topic.topic_id,
            partition.partition_index,
            _code(partition.error_code),
            partition.leader_id,
            partition.leader_epoch,
            partition.isr,
            partition.leader_recovery_state,
            partition.partition_epoch,
        )
        for topic in answer.topics
        for partition in topic.partitions
    ]


def _assignment(command: AssignDirectories) -> Message:
    messages = assign_replicas_to_dirs
    places: dict[Uuid, dict[Uuid, list[int]]] = {}
    for (topic_id, index), directory in command.directories.items():
        places.setdefault(directory, {}).setdefault(topic_id, []).append(index)
    return messages.AssignReplicasToDirsRequest(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        directories=[
            messages.RequestDirectoryData(
                id=directory,
                topics=[
                    messages.RequestTopicData(
                        topic_id=topic_id,
                        partitions=[
                            messages.RequestPartitionData(partition_index=index) for index in indexes
                        ],
                    )
                    for topic_id, indexes in topics.items()
                ],
            )
            for directory, topics in places.items()
        ],
    )


def _refused_assignments(
    answer: assign_replicas_to_dirs.AssignReplicasToDirsResponse,
) -> Mapping[tuple[Uuid, int], ErrorCode]:
    return {
        (topic.topic_id, partition.partition_index): _code(partition.error_code)
        for directory in answer.directories
        for topic in directory.topics
        for partition in topic.partitions
        if partition.error_code
    }


def _producer_ids(answer: Any) -> ProducerIdBlock:
    return ProducerIdBlock(answer.producer_id_start, answer.producer_id_len)


def _created_topics(answer: EnvelopeResponse) -> Any:
    try:
        _, response = decode_response(
            CreateTopicsResponse, CREATE_TOPICS_VERSION, answer.response_data or b""
        )
    except WireError as error:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    return response.topics
