"""Metadata v0–13: brokers, topics, and who leads what.

v0: an empty list of topics means all. From v1: null means all, an empty list none. v0–3 have no
`allow_auto_topic_creation`; it is on. v12+: topics by id; as soon as one topic is asked for by id, those
asked for by name are left out. A topic that is being created on first use is answered
UNKNOWN_TOPIC_OR_PARTITION: clients ask again. KIP-4, KIP-430, KIP-516.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.request.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from kwire.broker.api.request.context import RequestContext
from kwire.broker.controller.auto_topic_creation import creatable_topic
from kwire.broker.controller.commands import CreateTopics
from kwire.broker.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage, TopicImage
from kwire.broker.metadata.topic_names import is_internal, topic_name_fault
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


def metadata(node: BrokerRole, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Everything from one image, so that the answer is consistent."""
    version = context.header.api_version
    image = node.image
    listener = context.channel.listener
    _check(request, version)
    asked = request.topics
    by_id = [topic.topic_id for topic in asked or () if topic.topic_id != ZERO_UUID]
    describe = _Describer(image, listener, version)
    topics: list[MetadataResponseTopic] = []
    if asked is None or (version == 0 and not asked):
        topics = [describe.topic(topic) for topic in image.topics.values()]
    elif by_id:
        for topic_id in dict.fromkeys(by_id):
            known = image.topics_by_id.get(topic_id)
            if known is not None:
                topics.append(describe.topic(known))
            else:
                topics.append(
                    MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
                )
    else:
        missing: list[str] = []
        for name in dict.fromkeys(topic.name for topic in asked):
            assert name is not None
            known = image.topics.get(name)
            if known is not None:
                topics.append(describe.topic(known))
            else:
                missing.append(name)
        topics.extend(_missing(node, missing, request.allow_auto_topic_creation))
    response = MetadataResponse(
        brokers=brokers(node, image, listener),
        cluster_id=node.cluster_id,
        controller_id=controller_id(node, image),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    return response


def brokers(node: BrokerRole, image: MetadataImage, listener: str) -> list[MetadataResponseBroker]:
    """The live brokers and where this listener's clients reach them.

    Where there is none by now, as for a moment after all were cut off from the controllers, that is who is
    asked: a client that is told of nobody may forget whom it knows, and ask nobody for minutes.
    """
    alive = [broker.broker_id for broker in image.brokers.values() if not broker.fenced] or [node.node_id]
    return [
        MetadataResponseBroker(
            node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
        )
        for endpoint in node.endpoints(alive, listener)
    ]


def controller_id(node: BrokerRole, image: MetadataImage) -> int:
    """Any live broker, also of other listeners: with KRaft all of them pass requests on to the controller."""
    alive = image.alive_brokers()
    return node.host.random("metadata answers").choice(alive).broker_id if alive else NO_CONTROLLER


def _check(request: MetadataRequest, version: int) -> None:
    """ApiError: INVALID_REQUEST where a topic has neither a name nor an id, or an id too early."""
    asked = request.topics or ()
    by_id = [topic for topic in asked if topic.topic_id != ZERO_UUID]
    if (by_id and version < FIRST_WITH_IDS_IN_REQUESTS) or (
        not by_id and any(topic.name is None for topic in asked)
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST)


def _missing(node: BrokerRole, names: list[str], allow_creation: bool) -> list[MetadataResponseTopic]:
    """Topics that are not there, those of them that may be created being created."""
    out: list[MetadataResponseTopic] = []
    wanted: list[str] = []
    for name in names:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
        if topic_name_fault(name) is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if name != METADATA_TOPIC:  # It is no topic to clients, and its log is there.
                wanted.append(name)
        out.append(MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal(name)))
    if wanted and allow_creation and node.config.auto_create_topics_enable:
        node.controller.submit(
            CreateTopics([creatable_topic(name, node.config) for name in wanted]),
            partial(_log_refusals, node.host.logger("kwire.metadata")),
        )
    return out


def _log_refusals(logger: NodeLogger, reply: object) -> None:
    if isinstance(reply, ApiError):
        logger.warning("topics were not created on first use: %s", reply)
        return
    assert isinstance(reply, list)
    for result in reply:
        if result.error_code == ErrorCode.NONE:
            logger.info("created topic %s on first use", result.name)
        elif result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            logger.warning("topic %s was not created on first use: %s", result.name, result.error_message)


class _Describer:
    """Topics as one listener's clients see them."""

    def __init__(self, image: MetadataImage, listener: str, version: int) -> None:
        self._image = image
        self._listener = listener
        self._only_available = version == 0
        """v0 leaves out replicas that cannot be reached, and says so in the error."""
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
    """The replicas on brokers that are away or not on this listener, or in directories that failed."""
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
