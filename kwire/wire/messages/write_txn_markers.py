"""WriteTxnMarkers v1–2. KIP-98; from a transaction's coordinator to the leaders of its partitions."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Int64, Message, Str, field, message


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest(Message):
    """Write the markers that end transactions."""

    markers: list[WritableTxnMarker] = field()


class WritableTxnMarker(Message):
    """One transaction that ends."""

    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    transaction_result: Bool = field()
    topics: list[WritableTxnMarkerTopic] = field()
    coordinator_epoch: Int32 = field()
    transaction_version: Int8 = field("2+", ignorable=True)


class WritableTxnMarkerTopic(Message):
    """Partitions of one topic."""

    name: Str = field()
    partition_indexes: list[Int32] = field()


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse(Message):
    """Whether each marker is in its log."""

    markers: list[WritableTxnMarkerResult] = field()


class WritableTxnMarkerResult(Message):
    """What became of one transaction's markers."""

    producer_id: Int64 = field()
    topics: list[WritableTxnMarkerTopicResult] = field()


class WritableTxnMarkerTopicResult(Message):
    """What became of one topic's markers."""

    name: Str = field()
    partitions: list[WritableTxnMarkerPartitionResult] = field()


class WritableTxnMarkerPartitionResult(Message):
    """What became of one partition's marker."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
