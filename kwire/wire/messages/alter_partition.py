"""AlterPartition v2–3.

KIP-497, KIP-704 (recovery), KIP-841 (topic ids, v2), KIP-903 (broker epochs, v3); from the partitions' leader
to the controller.
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int8, Int16, Int32, Int64, Message, field, message


@message(key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest(Message):
    """A leader's request to change the ISR of partitions, or to report their recovery."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field(default=-1)
    topics: list[RequestTopicData] = field()


class RequestTopicData(Message):
    topic_id: Uuid = field()
    partitions: list[RequestPartitionData] = field()


class RequestPartitionData(Message):
    """The new ISR of a partition, and the partition's epochs as the leader knows them."""

    partition_index: Int32 = field()
    leader_epoch: Int32 = field()
    new_isr: list[Int32] = field("0-2")
    new_isr_with_epochs: list[BrokerState] = field("3+")
    leader_recovery_state: Int8 = field()
    partition_epoch: Int32 = field()


class BrokerState(Message):
    """A member of the ISR and its broker epoch, or -1 if the epoch is unknown."""

    broker_id: Int32 = field("3+")
    broker_epoch: Int64 = field("3+", default=-1)


@message(key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    topics: list[ResponseTopicData] = field()


class ResponseTopicData(Message):
    """Results for one topic's partitions."""

    topic_id: Uuid = field()
    partitions: list[ResponsePartitionData] = field()


class ResponsePartitionData(Message):
    """The current state of a partition, or an error."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field()
    isr: list[Int32] = field()
    leader_recovery_state: Int8 = field()
    partition_epoch: Int32 = field()
