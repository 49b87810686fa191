"""Metadata v0–13: brokers, topics and partition leaders. KIP-4, KIP-430, KIP-516.

In v0, an empty list of topics means all topics. From v1 on, null means all topics, and an empty list means
none. Versions 0–3 have no `allow_auto_topic_creation` field; it then counts as true. From v12 on, topics can
be requested by id. If any topic is requested by id, topics requested by name are ignored. A topic that is
being auto-created gets UNKNOWN_TOPIC_OR_PARTITION, so that the client retries.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.request.authorized_operations import (
    authorized_cluster_operations,
    authorized_operations,
)
from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.slices import SLICE_PARTITIONS, handle_in_slices
from kwire.broker.controller.auto_topic_creation import creatable_topic
from kwire.broker.controller.commands import CreateTopics
from kwire.broker.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage, TopicImage
from kwire.broker.metadata.topic_names import is_internal, topic_name_fault
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

NO_CONTROLLER = -1
FIRST_WITH_IDS_IN_REQUESTS = 12
WITHOUT_OPERATIONS = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED


def metadata(
    node: BrokerRole, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Delayed:
    """Return brokers and topics from a single image, so that the response is consistent."""
    _check(request, context.header.api_version)
    return handle_in_slices(context, _steps(node, context, request))


def _steps(
    node: BrokerRole, context: RequestContext, request: MetadataRequest
) -> Generator[None, None, MetadataResponse]:
    version = context.header.api_version
    image = node.image
    listener = context.listener
    requested = request.topics
    by_id = [topic.topic_id for topic in requested or () if topic.topic_id != ZERO_UUID]
    describe = _Describer(image, listener, version)
    topics: list[MetadataResponseTopic] = []
    if requested is None or (version == 0 and not requested):
        topics = [
            describe.topic(topic)
            for topic in image.topics.values()
            if node.gate.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name, is_asked=False)
        ]
    elif by_id:
        for topic_id in dict.fromkeys(by_id):
            if not (len(topics) + 1) % SLICE_PARTITIONS:
                yield
            known = image.topics_by_id.get(topic_id)
            code = ErrorCode.UNKNOWN_TOPIC_ID
            if known is not None:
                if node.gate.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, known.name):
                    topics.append(describe.topic(known))
                    continue
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topics.append(MetadataResponseTopic(error_code=code, name=None, topic_id=topic_id))
    else:
        missing: list[str] = []
        for number, name in enumerate(dict.fromkeys(topic.name for topic in requested), 1):
            assert name is not None
            if not number % SLICE_PARTITIONS:
                yield
            known = image.topics.get(name)
            if not node.gate.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topics.append(MetadataResponseTopic(error_code=code, name=name))
            elif known is not None:
                topics.append(describe.topic(known))
            else:
                missing.append(name)
        topics += yield from _missing(node, context, missing, request.allow_auto_topic_creation)
    response = MetadataResponse(
        brokers=brokers(node, image, listener),
        cluster_id=node.cluster_id,
        controller_id=controller_id(node, image),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_cluster_operations(node.gate, context)
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code not in WITHOUT_OPERATIONS:
                assert topic.name is not None
                topic.topic_authorized_operations = authorized_operations(
                    node.gate, context, ResourceType.TOPIC, topic.name
                )
    return response


def brokers(node: BrokerRole, image: MetadataImage, listener: str) -> list[MetadataResponseBroker]:
    """Return the brokers that are not fenced, with their addresses on this listener.

    If there are none, for example just after all brokers lost the controllers, return this broker. A client
    that gets no broker may forget the brokers that it knew, and not reconnect for minutes.
    """
    alive = [broker.broker_id for broker in image.brokers.values() if not broker.fenced] or [node.node_id]
    return [
        MetadataResponseBroker(
            node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
        )
        for endpoint in node.endpoints(alive, listener)
    ]


def controller_id(node: BrokerRole, image: MetadataImage) -> int:
    """Return the id of this broker, or of a random unfenced broker if this broker is fenced.

    Every broker forwards requests to the controller. Apache Kafka always returns a random unfenced broker.
    That broker may have failed, because its session has not timed out yet, and the client would wait for it.
    """
    own = image.brokers.get(node.node_id)
    if own is not None and not own.fenced:
        return node.node_id
    alive = image.alive_brokers()
    return node.host.random("metadata responses").choice(alive).broker_id if alive else NO_CONTROLLER


def _check(request: MetadataRequest, version: int) -> None:
    """Check that each topic has a name, or an id if the version allows ids.

    Raises ApiError INVALID_REQUEST.
    """
    requested = request.topics or ()
    by_id = [topic for topic in requested if topic.topic_id != ZERO_UUID]
    if (by_id and version < FIRST_WITH_IDS_IN_REQUESTS) or (
        not by_id and any(topic.name is None for topic in requested)
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST)


def _missing(
    node: BrokerRole, context: RequestContext, names: list[str], allow_creation: bool
) -> Generator[None, None, list[MetadataResponseTopic]]:
    """Return an error for each of these missing topics, and auto-create them if that is allowed."""
    out: list[MetadataResponseTopic] = []
    to_create: list[str] = []
    gate = node.gate
    creates = bool(names) and allow_creation and node.config.auto_create_topics_enable
    needs_topic = creates and not gate.allows(context, Operation.CREATE, is_asked=False)
    for number, name in enumerate(names, 1):
        if not number % SLICE_PARTITIONS:
            yield
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
        if needs_topic and not gate.allows(context, Operation.CREATE, ResourceType.TOPIC, name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic_name_fault(name) is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if name != METADATA_TOPIC:  # the metadata log is not a topic for clients
                to_create.append(name)
        out.append(MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal(name)))
    if to_create and creates:
        topics = [creatable_topic(name, node.config) for name in to_create]
        node.controller.submit(
            CreateTopics(topics, client=(context.principal, context.peer_host)),
            partial(_log_refusals, node.host.logger("kwire.metadata"), to_create),
        )
    return out


def _log_refusals(logger: NodeLogger, names: list[str], reply: object) -> None:
    if isinstance(reply, ApiError):
        logger.warning("Cannot auto-create topics %s: %s", ", ".join(names), reply)
        return
    assert isinstance(reply, list)
    for result in reply:
        if result.error_code == ErrorCode.NONE:
            logger.info("Auto-created topic %s", result.name)
        elif result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            logger.warning("Cannot auto-create topic %s: %s", result.name, result.error_message)


class _Describer:
    """Describes topics for the clients of one listener."""

    def __init__(self, image: MetadataImage, listener: str, version: int) -> None:
        self._image = image
        self._listener = listener
        self._only_available = version == 0
        """Whether to omit replicas that are not available, and to return an error instead, as v0 does."""
        self._listener_error = (
            ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        )

    def topic(self, topic: TopicImage) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal(topic.name),
            partitions=[
                self._partition(index, partition) for index, partition in enumerate(topic.partitions)
            ],
        )

    def _partition(self, index: int, partition: PartitionImage) -> MetadataResponsePartition:
        replicas = list(partition.replicas)
        isr = list(partition.isr)
        if self._only_available:
            replicas = self._available(replicas)
            isr = self._available(isr)
        leader = partition.leader
        error = ErrorCode.NONE
        broker = self._image.brokers.get(leader)
        if broker is None:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        elif self._listener not in broker.endpoints:
            error = self._listener_error
        elif len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
        if broker is None or self._listener not in broker.endpoints:
            leader = NO_LEADER
        return MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=offline_replicas(self._image, partition, self._listener),
        )

    def _available(self, broker_ids: Iterable[int]) -> list[int]:
        return [
            broker_id
            for broker_id in broker_ids
            if (broker := self._image.brokers.get(broker_id)) is not None
            and not broker.fenced
            and self._listener in broker.endpoints
        ]


def offline_replicas(image: MetadataImage, partition: PartitionImage, listener: str) -> list[int]:
    """Return the replicas on brokers that are fenced or lack this listener, or in failed log directories."""
    return [
        broker_id
        for broker_id in partition.replicas
        if _is_offline(image.brokers.get(broker_id), partition, listener)
    ]


def _is_offline(broker: BrokerImage | None, partition: PartitionImage, listener: str) -> bool:
    if broker is None or broker.fenced or listener not in broker.endpoints:
        return True
    directory = partition.directory_of(broker.broker_id)
    return directory is not None and not broker.has_online_directory(directory)
