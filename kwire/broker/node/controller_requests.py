"""Translation of controller commands to requests to another node, and of the responses to replies."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Final

from kwire.broker.config import BrokerConfig
from kwire.broker.controller.commands import (
    AllocateProducerIds,
    AlteredPartition,
    AlterPartition,
    AssignReplicasToDirs,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    Command,
    CreateTopics,
    ProducerIdBlock,
    RegisterBroker,
    RegisterController,
)
from kwire.broker.security.principal import Principal
from kwire.broker.security.settings import own_principal
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages import (
    alter_partition,
    assign_replicas_to_dirs,
    broker_registration,
    controller_registration,
)
from kwire.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.registry import decode_response, encode_record, encode_request
from kwire.wire.schema import Message

HEARTBEATS: Final = "heartbeat"
COMMANDS: Final = "controller"
FORWARDED: Final = "forwarding"

TOPICS_TIMEOUT_MS: Final = 30_000
CREATE_TOPICS_VERSION: Final = 7
LOCAL_ADDRESS: Final = "127.0.0.1"


class ControllerRequest(NamedTuple):
    """The request for a command, and the function that turns the response into a reply."""

    purpose: str
    """The purpose of the connection that sends the request."""
    request: Message
    read: Callable[[Any], Any]


def controller_request(command: Command, cluster_id: str, config: BrokerConfig) -> ControllerRequest:
    """Return the request with which this node sends a command to a remote active controller."""
    match command:
        case RegisterController():
            return ControllerRequest(COMMANDS, _controller_registration(command), lambda response: None)
        case RegisterBroker():
            return ControllerRequest(HEARTBEATS, _registration(command, cluster_id), _broker_epoch)
        case BrokerHeartbeat():
            return ControllerRequest(HEARTBEATS, _heartbeat(command), _heartbeat_reply)
        case AlterPartition():
            return ControllerRequest(COMMANDS, _alteration(command), _altered)
        case AssignReplicasToDirs():
            return ControllerRequest(COMMANDS, _assignment(command), _refused_assignments)
        case AllocateProducerIds():
            request = AllocateProducerIdsRequest(
                broker_id=command.broker_id, broker_epoch=command.broker_epoch
            )
            return ControllerRequest(COMMANDS, request, _producer_ids)
        case CreateTopics():
            # The request is sent in an Envelope. If the Envelope's error is NOT_CONTROLLER, callers retry.
            topics = CreateTopicsRequest(
                topics=list(command.topics),
                timeout_ms=TOPICS_TIMEOUT_MS,
                validate_only=command.validate_only,
            )
            frame = encode_request(topics, CREATE_TOPICS_VERSION, 0, "")[4:]
            client = command.client or (own_principal(config), LOCAL_ADDRESS)
            return ControllerRequest(FORWARDED, envelope(frame, *client), _created_topics)
    raise AssertionError(f"no request for {type(command).__name__}")


def envelope(frame: bytes, principal: Principal, peer_host: str) -> EnvelopeRequest:
    """Return an Envelope with a client's request (without its size prefix), principal and address."""
    data = DefaultPrincipalData(
        type=principal.type, name=principal.name, token_authenticated=principal.token_authenticated
    )
    return EnvelopeRequest(
        request_data=frame,
        request_principal=encode_record(data, 0),
        client_host_address=ipaddress.ip_address(peer_host.partition("%")[0]).packed,
    )


def error_code(number: int) -> ErrorCode:
    """Return the error with this number, or UNKNOWN_SERVER_ERROR if only later releases know the number."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _registration(command: RegisterBroker, cluster_id: str) -> Message:
    return broker_registration.BrokerRegistrationRequest(
        broker_id=command.broker_id,
        cluster_id=cluster_id,
        incarnation_id=command.incarnation_id,
        **_listeners_and_features(command, broker_registration),
        rack=command.rack,
        is_migrating_zk_broker=command.is_migrating,
        log_dirs=sorted(command.log_dirs),
        previous_broker_epoch=command.previous_broker_epoch,
    )


def _controller_registration(command: RegisterController) -> Message:
    return controller_registration.ControllerRegistrationRequest(
        controller_id=command.controller_id,
        incarnation_id=command.incarnation_id,
        zk_migration_ready=False,
        **_listeners_and_features(command, controller_registration),
    )


def _listeners_and_features(command: RegisterBroker | RegisterController, messages: Any) -> dict[str, Any]:
    """Return these two fields of a registration. `messages` is the module of its message classes."""
    return {
        "listeners": [
            messages.Listener(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in command.endpoints
        ],
        "features": [
            messages.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in command.features.items()
        ],
    }


def _broker_epoch(response: broker_registration.BrokerRegistrationResponse) -> int:
    return response.broker_epoch


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


def _heartbeat_reply(response: Any) -> BrokerHeartbeatReply:
    return BrokerHeartbeatReply(response.is_caught_up, response.is_fenced, response.should_shut_down)


def _alteration(command: AlterPartition) -> Message:
    topics: dict[Uuid, list[alter_partition.RequestPartitionData]] = {}
    for wanted in command.partitions:
        topics.setdefault(wanted.topic_id, []).append(
            alter_partition.RequestPartitionData(
                partition_index=wanted.partition_index,
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


def _altered(response: alter_partition.AlterPartitionResponse) -> list[AlteredPartition]:
    return [
        AlteredPartition(
            topic.topic_id,
            partition.partition_index,
            error_code(partition.error_code),
            partition.leader_id,
            partition.leader_epoch,
            partition.isr,
            partition.leader_recovery_state,
            partition.partition_epoch,
        )
        for topic in response.topics
        for partition in topic.partitions
    ]


def _assignment(command: AssignReplicasToDirs) -> Message:
    messages = assign_replicas_to_dirs
    by_directory: dict[Uuid, dict[Uuid, list[int]]] = {}
    for (topic_id, index), directory in command.directories.items():
        by_directory.setdefault(directory, {}).setdefault(topic_id, []).append(index)
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
            for directory, topics in by_directory.items()
        ],
    )


def _refused_assignments(
    response: assign_replicas_to_dirs.AssignReplicasToDirsResponse,
) -> Mapping[tuple[Uuid, int], ErrorCode]:
    return {
        (topic.topic_id, partition.partition_index): error_code(partition.error_code)
        for directory in response.directories
        for topic in directory.topics
        for partition in topic.partitions
        if partition.error_code
    }


def _producer_ids(response: Any) -> ProducerIdBlock:
    return ProducerIdBlock(response.producer_id_start, response.producer_id_len)


def _created_topics(envelope_response: EnvelopeResponse) -> Any:
    try:
        _, response = decode_response(
            CreateTopicsResponse, CREATE_TOPICS_VERSION, envelope_response.response_data or b""
        )
    except WireError as error:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    return response.topics
