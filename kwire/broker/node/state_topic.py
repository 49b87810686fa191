"""The topic in which a coordinator keeps its state, as the coordinator's ports give it to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kwire.broker.config import BrokerConfig
from kwire.broker.controller.auto_topic_creation import creatable_topic
from kwire.broker.controller.commands import CreateTopics
from kwire.broker.controller.port import ControllerPort
from kwire.broker.metadata.image import NO_LEADER, MetadataImage
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log_config import AppendOrigin
from kwire.host.host import Host
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import CreatableTopicResult

READ_BYTES = 1 << 20


class StateTopicNode(Protocol):
    """What a state topic needs of the node that it is on."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def host(self) -> Host: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def controller(self) -> ControllerPort: ...

    def partition(self, topic: str, index: int, /) -> Partition | None:
        """A partition that has a replica here."""


class StateTopic:
    """`coordinator.ports.StatePorts` on a node."""

    def __init__(self, node: StateTopicNode, topic: str, *, needs_isr: bool = True) -> None:
        """`needs_isr`: appends are refused while min.insync.replicas are not in sync.

        Else they are taken, and committed once those are there again: so do Apache Kafka's groups.
        """
        self._node = node
        self._topic = topic
        self._needs_isr = needs_isr
        self._creating = False
        self._logged_failure = ""
        """Why the topic was not created, which was told."""
        self._count: int | None = None

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> None:
        """Append to a partition that this broker leads. ApiError: refused."""
        self._leader_partition(index).append(
            memoryview(data),
            now_ms=self._node.host.now_ms(),
            on_replicated=on_committed if self._needs_isr else _ignore_min_isr(on_committed),
            origin=AppendOrigin.COORDINATOR,
            needs_isr=self._needs_isr,
        )

    def max_batch_bytes(self, index: int) -> int:
        """How large a batch may be that is appended now. ApiError: any would be refused."""
        config = self._leader_partition(index).log.config
        return min(config.max_message_bytes, config.segment_bytes)

    def _leader_partition(self, index: int) -> Partition:
        partition = self._node.partition(self._topic, index)
        if partition is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.role is not Role.LEADER:
            raise partition.not_leader_error()
        return partition

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        """Every batch in offset order, also what comes while this reads. ApiError, CorruptBatch.

        Whoever has just been elected does not know yet how much of its log is committed: maybe all of it. A
        log is read in parts, between which a transaction's marker may be written to it: nobody else tells a
        machine of it that is still being loaded.
        """
        log = self._leader_partition(index).log
        self.partition_count()  # what is loaded was written with so many
        offset = log.log_start_offset
        while offset < (end_offset := log.written_end_offset):
            try:
                data = memoryview(log.read(offset, max_bytes=READ_BYTES, up_to_offset=end_offset).read())
            except StorageError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            position = 0
            while len(data) - position >= batch.HEADER_BYTES:
                header = batch.read_header(data, position)
                end = position + header.size_bytes
                if end > len(data):
                    break
                yield data[position:end]
                offset = header.next_offset
                position = end
            if not position:
                # Compaction has left nothing from here to the end.
                return
            log = self._leader_partition(index).log  # it may have moved to another directory

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        """Call when all that a partition's log has now is committed. ApiError: not led here."""
        self._leader_partition(index).when_committed(_ignore_min_isr(on_committed))

    def partition_count(self) -> int | None:
        """How many partitions the topic had when it was first seen; None while there is no such topic.

        Names are spread over those. Partitions that are added count from the next start on, as with Apache
        Kafka: what is known of most names would be looked for elsewhere.
        """
        topic = self._node.image.topics.get(self._topic)
        if topic is None:
            return None
        if self._count is None:
            self._count = len(topic.partitions)
        return self._count

    def leader(self, index: int) -> int | None:
        """The id of the broker that leads a partition; None while nobody does."""
        partition = self._node.image.partition(self._topic, index)
        return None if partition is None or partition.leader == NO_LEADER else partition.leader

    def create_topic(self) -> None:
        """Ask the controller for the topic, with the settings that it needs, once at a time."""
        if self._creating:
            return
        self._creating = True
        topic = creatable_topic(self._topic, self._node.config)
        self._node.controller.submit(CreateTopics([topic]), self._created)

    def _created(self, reply: Sequence[CreatableTopicResult] | ApiError) -> None:
        self._creating = False
        if isinstance(reply, ApiError):
            self._log_failure(str(reply))
            return
        for result in reply:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._log_failure(f"{ErrorCode(result.error_code).name} ({result.error_message})")

    def _log_failure(self, why: str) -> None:
        """Tell it once: clients go on asking while there are too few brokers, say."""
        if why != self._logged_failure:
            self._logged_failure = why
            logger = self._node.host.logger("kwire.coordinator")
            logger.error("%s was not created: %s", self._topic, why)


def _ignore_min_isr(on_committed: Callable[[ApiError | None], None]) -> Callable[[ApiError | None], None]:
    """What is below the high watermark is committed, by however few replicas."""

    def told(error: ApiError | None) -> None:
        is_there = error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        on_committed(None if is_there else error)

    return told
