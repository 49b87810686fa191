"""An idempotent producer (KIP-98) for one topic, with one request in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import PRODUCER_ID_DENIED, raise_for_code
from kwire.wire.batch import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NewRecord, build
from kwire.wire.compression import Codec
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ACKS: Final = {"all": -1, "0": 0, "1": 1}


class TopicProducer:
    """A producer for one topic."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        acks: int = ACKS["all"],
        codec: Codec = Codec.NONE,
        *,
        idempotent: bool = True,
    ) -> None:
        """Get a producer id, for acks=all, unless `idempotent` is false. Raises ApiError, Disconnected.

        With a producer id, a batch that is sent again is not written twice.
        """
        self._cluster = cluster
        self._topic = topic
        self._acks = acks
        self._codec = codec
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self._sequences: dict[int, int] = {}
        self._record_counts: dict[int, int] = {}
        self._first_offsets: dict[int, int] = {}
        if idempotent and acks == ACKS["all"]:
            self._producer_id, self._producer_epoch = cluster.retry(self._init_producer_id)

    @property
    def record_count(self) -> int:
        """Number of records in batches that were sent without an error."""
        return sum(self._record_counts.values())

    def first_offset(self, partition: int) -> int:
        """Return the offset of the first record sent to a partition.

        Raises KeyError if the offset is unknown, as with acks=0.
        """
        return self._first_offsets[partition]

    def totals(self) -> list[dict[str, object]]:
        """Return the record count and first offset of each partition. The offset is None with acks=0."""
        return [
            {"partition": partition, "records": count, "first_offset": self._first_offsets.get(partition)}
            for partition, count in sorted(self._record_counts.items())
        ]

    def send(self, batches: Mapping[int, Sequence[NewRecord]]) -> None:
        """Write a batch to each partition, and return after all are acknowledged (with acks=0: sent).

        Raises ApiError, Disconnected, UnknownPartition. Do not send more after an error: the failed batch may
        be in the log. The broker would take the next batch, with the same sequence numbers, for a duplicate.
        """
        missing = {
            partition: build(
                records,
                codec=self._codec,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=self._sequence(partition),
            )
            for partition, records in batches.items()
        }

        def attempt() -> None:
            for leader, led in self._cluster.leaders((self._topic, one) for one in missing).items():
                self._send_to(leader, [partition for _, partition in led], missing)

        self._cluster.retry(attempt)
        for partition, records in batches.items():
            self._record_counts[partition] = self._record_counts.get(partition, 0) + len(records)
            if self._producer_id >= 0:
                sequence = self._sequences.get(partition, 0) + len(records)
                self._sequences[partition] = sequence & MAX_SEQUENCE

    def _send_to(self, leader: int, led: Sequence[int], missing: dict[int, bytearray]) -> None:
        """Write the batches of one leader, and remove them from `missing`. Raises ApiError, Disconnected."""
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=self._cluster.request_timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=self._topic,
                    partition_data=[PartitionProduceData(index=one, records=missing[one]) for one in led],
                )
            ],
        )
        if not self._acks:
            self._cluster.send_one_way(leader, request)
            for partition in led:
                del missing[partition]
            return
        response = self._cluster.send_to_node(leader, request, ProduceResponse)
        failed = None
        for one in response.responses[0].partition_responses:
            # A duplicate was written by an earlier attempt whose response was lost.
            if one.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                del missing[one.index]
                if one.base_offset >= 0:
                    self._first_offsets.setdefault(one.index, one.base_offset)
            else:
                failed = failed or one
        if failed is not None:
            why = [error.batch_index_error_message for error in failed.record_errors]
            message = failed.error_message or next(filter(None, why), None)
            raise_for_code(failed.error_code, message, f"{self._topic}-{failed.index}")

    def _sequence(self, partition: int) -> int:
        return NO_SEQUENCE if self._producer_id < 0 else self._sequences.get(partition, 0)

    def _init_producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = self._cluster.send(request, InitProducerIdResponse)
        # KIP-679: WRITE on a topic suffices, but the code only names the cluster.
        is_denied = response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise_for_code(response.error_code, PRODUCER_ID_DENIED if is_denied else None, "a producer id")
        return response.producer_id, response.producer_epoch
