"""The internal topic of a coordinator, such as `__consumer_offsets`, as the coordinator uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from kwire.broker.config import BrokerConfig
from kwire.broker.controller.auto_topic_creation import creatable_topic
from kwire.broker.controller.commands import CreateTopics
from kwire.broker.controller.port import ControllerPort
from kwire.broker.metadata.image import NO_LEADER, MetadataImage
from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log_config import AppendOrigin
from kwire.host.host import Host
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import CreatableTopicResult

READ_BYTES = 1 << 20
REPLICATION_FACTOR_KEYS: Final = {
    GROUP_METADATA_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
}


class StateTopicNode(Protocol):
    """The part of a node that a state topic uses."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def host(self) -> Host: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def controller(self) -> ControllerPort: ...

    def partition(self, topic: str, index: int, /) -> Partition | None:
        """Return this broker's replica of a partition; None if the broker has no replica."""


class StateTopic:
    """`StatePorts` of a coordinator, implemented by a node."""

    def __init__(self, node: StateTopicNode, topic: str, *, needs_isr: bool = True) -> None:
        """With `needs_isr`, appends are rejected while the ISR is smaller than min.insync.replicas.

        Without it, the records are appended, and committed once the ISR is large enough. Apache Kafka's group
        coordinator works in this way.
        """
        self._node = node
        self._topic = topic
        self._needs_isr = needs_isr
        self._creating = False
        self._logged_failure = ""
        """The last logged reason why the topic could not be created."""
        self._count: int | None = None

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> int:
        appended = self._leader_partition(index).append(
            memoryview(data),
            now_ms=self._node.host.now_ms(),
            on_replicated=on_committed if self._needs_isr else _ignore_min_isr(on_committed),
            origin=AppendOrigin.COORDINATOR,
            needs_isr=self._needs_isr,
        )
        return appended.first_offset

    def log_end_offset(self, index: int) -> int:
        return self._leader_partition(index).log.log_end_offset

    def delete_records_before(self, index: int, offset: int) -> None:
        partition = self._leader_partition(index)
        partition.log.delete_records_before(min(offset, partition.high_watermark))
        partition.log_start_offset_moved()

    def max_batch_bytes(self, index: int) -> int:
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
        """Yield every batch in offset order, including those appended meanwhile.

        A new leader yields the complete log, because it does not know the committed offset yet. The log is
        read in parts. A transaction marker that is appended between two parts is yielded too, because a
        coordinator that is still loading gets the marker in no other way.

        Raises ApiError if this broker is not the leader or cannot read the log, or CorruptBatch.
        """
        log = self._leader_partition(index).log
        self.partition_count()  # fixes the count, because the location of the stored state depends on it
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
                # Compaction has removed all batches from here to the end.
                return
            log = self._leader_partition(index).log  # the replica may have moved to another log directory

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        self._leader_partition(index).when_committed(_ignore_min_isr(on_committed))

    def partition_count(self) -> int | None:
        """Return the number of partitions when this broker first saw the topic; None if it does not exist.

        The number determines the partition of each group or transactional id. As in Apache Kafka, added
        partitions count only after a restart. Otherwise most ids would be looked up in a partition that does
        not contain their state.
        """
        topic = self._node.image.topics.get(self._topic)
        if topic is None:
            return None
        if self._count is None:
            self._count = len(topic.partitions)
        return self._count

    def leader(self, index: int) -> int | None:
        partition = self._node.image.partition(self._topic, index)
        return None if partition is None or partition.leader == NO_LEADER else partition.leader

    def create_topic(self) -> None:
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
                why = f"{ErrorCode(result.error_code).name} ({result.error_message})"
                if result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR:
                    why += f": start more brokers, or lower {REPLICATION_FACTOR_KEYS[self._topic]}"
                self._log_failure(why)

    def _log_failure(self, why: str) -> None:
        """Log a failure once, because clients retry as long as it lasts, for example with too few brokers."""
        if why != self._logged_failure:
            self._logged_failure = why
            logger = self._node.host.logger("kwire.coordinator")
            logger.error("Cannot create topic %s: %s", self._topic, why)


def _ignore_min_isr(on_committed: Callable[[ApiError | None], None]) -> Callable[[ApiError | None], None]:
    """Return a callback to which NOT_ENOUGH_REPLICAS_AFTER_APPEND is success, as the batch is committed."""

    def callback(error: ApiError | None) -> None:
        is_committed = error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        on_committed(None if is_committed else error)

    return callback
