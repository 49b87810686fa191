"""WriteTxnMarkers v1–2. KIP-98; from a transaction's coordinator to the leaders of its partitions."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Int64, Message, Str, field, message


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest(Message):
    markers: list[WritableTxnMarker] = field()


class WritableTxnMarker(Message):
    """The result of one transaction (commit or abort), and its partitions."""

    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    transaction_result: Bool = field()
    topics: list[WritableTxnMarkerTopic] = field()
    coordinator_epoch: Int32 = field()
    transaction_version: Int8 = field("2+", ignorable=True)


class WritableTxnMarkerTopic(Message):
    name: Str = field()
    partition_indexes: list[Int32] = field()


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = field()


class WritableTxnMarkerResult(Message):
    """Results for one transaction's markers."""

    producer_id: Int64 = field()
    topics: list[WritableTxnMarkerTopicResult] = field()


class WritableTxnMarkerTopicResult(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[WritableTxnMarkerPartitionResult] = field()


class WritableTxnMarkerPartitionResult(Message):
    """Result for one partition."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
