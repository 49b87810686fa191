"""Consumers that read partitions from the beginning and compare the records with the committed records."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from kwire.testing.results import TopicPartition
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import batches, records
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from simulation.cluster.client_oracle import ClientOracle
from simulation.cluster.simulated_client import SimulatedClient, Steps

FETCH_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
MAX_WAIT_MS: Final = 300
MAX_BYTES: Final = 1 << 20
PREFERRED_REPLICA_MS: Final = 2_000
"""The time after which a consumer returns from a preferred replica to the leader.

Unmodified clients return when their metadata expires.
"""
NO_BROKER: Final = -1


class Consumer(SimulatedClient):
    """A consumer that reads its partitions in turn, and checks each record with the oracle.

    Its requests have the leader epoch, so that a former leader rejects them.
    """

    def __init__(
        self,
        *arguments: Any,
        oracle: ClientOracle,
        partitions: list[TopicPartition],
        read_committed: bool = False,
    ) -> None:
        super().__init__(*arguments)
        self._oracle = oracle
        self._partitions = partitions
        self._isolation_level = int(read_committed)
        self.positions: defaultdict[TopicPartition, int] = defaultdict(int)
        self.received: set[bytes] = set()
        """The values received with read_committed."""
        self.rack = ""
        """The consumer's rack. The leader may redirect the consumer to a follower in this rack (KIP-392)."""
        self._preferred_replicas: dict[TopicPartition, tuple[int, int]] = {}
        """The follower to fetch from, and the time in ms until which to fetch from it."""
        self._high_watermarks: dict[TopicPartition, tuple[int, int]] = {}
        """The leader epoch and the high watermark in the last response."""

    @property
    def reads_committed(self) -> bool:
        return bool(self._isolation_level)

    def run(self) -> Steps[None]:
        while not self.is_stopping:
            for tp in self._partitions:
                yield from self._poll(tp)
                if self.rng.random() < 0.1:
                    yield from self._check_end_offset(tp)
            yield self.random_pause(100)

    def _poll(self, tp: TopicPartition) -> Steps[None]:
        leader, epoch = yield from self.leader_of(tp)
        preferred, until_ms = self._preferred_replicas.pop(tp, (NO_BROKER, 0))
        replica = self._brokers.get(preferred) if self.now_ms() < until_ms else None
        position = self.positions[tp]
        wanted = FetchPartition(
            partition=tp.partition,
            current_leader_epoch=epoch,
            fetch_offset=position,
            partition_max_bytes=MAX_BYTES,
        )
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=self._isolation_level,
            topics=[FetchTopic(topic=tp.topic, partitions=[wanted])],
            rack_id=self.rack,
        )
        response = yield from self.request(replica or leader, FETCH_VERSION, request)
        if response is None:
            yield from self.refresh()
            return
        if response.error_code:
            self.check_retriable(response.error_code, "Fetch")
            yield self.backoff()
            return
        ((data,),) = (topic.partitions for topic in response.responses)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and replica is not None:
            return  # the next fetch goes to the leader
        committed = self._oracle.committed_in(tp)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and position < committed.start:
            # Records were deleted, so reset the position as with auto.offset.reset=earliest.
            earliest = yield from self._list_offset(tp, EARLIEST)
            self.positions[tp] = max(position, earliest)
            return
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and (
            committed.unclean_discards or committed.awaits_unclean_leader
        ):
            self.positions[tp] = 0  # an unclean election has lost records, so reset the position as well
            return
        if data.error_code:
            self.check_retriable(data.error_code, f"Fetch of {tp} from {position}")
            yield self.backoff()
            yield from self.refresh()
            return
        if data.preferred_read_replica >= 0 and data.preferred_read_replica not in self._brokers:
            yield from self.refresh()
        elif data.preferred_read_replica >= 0:
            self._preferred_replicas[tp] = data.preferred_read_replica, self.now_ms() + PREFERRED_REPLICA_MS
        elif replica is not None:
            self._preferred_replicas[tp] = preferred, until_ms
        self._consume(tp, None if replica else epoch, data)

    def _check_end_offset(self, tp: TopicPartition) -> Steps[None]:
        """Check that the end offset is not below the offsets that clients have already seen (KIP-207)."""
        earlier_end = self._oracle.committed_in(tp).reported_end
        leader, _ = yield from self.leader_of(tp)
        before = self._oracle.led_epoch(tp, leader)
        end = yield from self._list_offset(tp, LATEST)
        if before is None or before != self._oracle.led_epoch(tp, leader):
            return  # a disconnected or paused leader may not know yet that there is a new leader
        if (
            self._oracle.committed_in(tp).unclean_discards
            or self._oracle.committed_in(tp).awaits_unclean_leader
        ):
            return  # a former leader may still return offsets of lost records
        if 0 <= end < earlier_end and not self._isolation_level:
            raise Violation(
                f"{self.name} gets the end offset {end} of {tp}, after an earlier one of {earlier_end}"
            )

    def _list_offset(self, tp: TopicPartition, timestamp: int) -> Steps[int]:
        """Send ListOffsets and return the offset, or -1 after an error."""
        leader, epoch = yield from self.leader_of(tp)
        wanted = ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._isolation_level,
            topics=[ListOffsetsTopic(name=tp.topic, partitions=[wanted])],
        )
        response = yield from self.request(leader, LIST_OFFSETS_VERSION, request)
        if response is None:
            yield from self.refresh()
            return -1
        ((found,),) = (topic.partitions for topic in response.topics)
        if found.error_code:
            self.check_retriable(found.error_code, f"ListOffsets of {tp}")
            yield self.backoff()
            yield from self.refresh()
            return -1
        return int(found.offset)

    def _consume(self, tp: TopicPartition, epoch: int | None, data: Any) -> None:
        """Check and count the records in a Fetch response.

        `epoch` is the leader epoch of a response from the leader, or None for a response from a follower.
        """
        before = self._high_watermarks.get(tp, (-1, -1))
        if before[0] == epoch and data.high_watermark < before[1]:
            raise Violation(
                f"{self.name} gets the high watermark {data.high_watermark} of {tp} in leader epoch {epoch}, "
                f"after {before[1]}"
            )
        if epoch is not None:
            self._high_watermarks[tp] = (epoch, data.high_watermark)
        committed = self._oracle.committed_in(tp)
        committed.reported_end = max(committed.reported_end, data.high_watermark)
        position = self.positions[tp]
        content = data.records or b""
        aborted = sorted((one.first_offset, one.producer_id) for one in (data.aborted_transactions or ()))
        aborted_producers: set[int] = set()
        for at, header in batches(content, allow_partial=True):
            if header.next_offset <= position:
                continue
            while aborted and aborted[0][0] <= header.last_offset:
                aborted_producers.add(aborted.pop(0)[1])
            if header.is_control:
                aborted_producers.discard(header.producer_id)
            elif not self._isolation_level:
                for record in records(content, at, header):
                    if record.offset >= position:
                        self._oracle.on_read(self.name, tp, record.offset, record.value)
            elif not (header.is_transactional and header.producer_id in aborted_producers):
                for record in records(content, at, header):
                    if record.offset >= position:
                        self._oracle.on_read_committed(self.name, tp, record.offset, record.value)
                        self.received.add(record.value or b"")
            position = header.next_offset
        self.positions[tp] = position
