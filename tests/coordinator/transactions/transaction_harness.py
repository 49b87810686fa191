"""A transaction coordinator without a broker, with partition logs on a disk in memory.

Every step is explicit: appends of the coordinator wait for `commit_appends`, markers for `write_marker` and
timeouts for `advance`. `crash` loses pending appends, markers and responses; committed records are loaded
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from kwire.broker.api.transactions.verification import verify_transaction
from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.topic_names import TRANSACTION_STATE_TOPIC
from kwire.broker.node.node import Node
from kwire.broker.node.transaction_ports import NodeTransactionPorts
from kwire.broker.storage.log.log import AppendOrigin, Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.producer_state import MarkerContext
from kwire.coordinator.transactions.service import TransactionCoordinatorService
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionMarker
from kwire.coordinator.transactions.transaction_metadata import TransactionMetadata
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import HEADER_BYTES, BatchHeader, control_type, read_header, records
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from tests.broker.storage.log_harness import LogHarness, batch

PARTITIONS: tuple[TopicPartition, ...] = (("t", 0), ("t", 1), ("u", 0))
SEGMENT_BYTES = 600
READ_BYTES = 350
FIRST_ID = 100
NOW_MS = 1_700_000_000_000

CommitCallback = Callable[[ApiError | None], None]
MarkersCallback = Callable[[Mapping[TopicPartition, ErrorCode]], None]


@dataclass
class Config:
    """The configuration keys of the transaction coordinator, with Kafka's defaults."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_partition_verification_enable: bool = True
    add_partitions_to_txn_retry_backoff_max_ms: int = 0
    add_partitions_to_txn_retry_backoff_ms: int = 20
    node_id: int = 1


class _LeaderPartition:
    """A leader partition whose appends are committed at once."""

    def __init__(self, log: Log, bench: LogHarness) -> None:
        self.log = log
        self.remote_replicas = None
        self._bench = bench

    def append(
        self,
        data: memoryview,
        *,
        now_ms: int,
        on_replicated: CommitCallback,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        marker: MarkerContext | None = None,
    ) -> Any:
        self._bench.now_ms = now_ms
        info = self.log.append(data, leader_epoch=0, now_ms=now_ms, origin=origin, marker=marker)
        self.log.commit()
        self.log.high_watermark = self.log.log_end_offset
        on_replicated(None)
        return info


class _FakeTransactionPorts:
    """The `TransactionPorts` of one run of the broker."""

    def __init__(self, harness: TransactionHarness) -> None:
        self._harness = harness

    def append(self, index: int, data: bytearray, on_committed: CommitCallback) -> int:
        if self._harness.refuse is not None:
            raise ApiError(self._harness.refuse)
        self._harness.appends.append((bytes(data), on_committed))
        return len(self._harness.state_log)

    def log_end_offset(self, index: int) -> int:
        raise AssertionError("transaction records are not batched")

    def delete_records_before(self, index: int, offset: int) -> None:
        raise AssertionError("transactions need all records")

    def max_batch_bytes(self, index: int) -> int:
        raise AssertionError("transaction records are not batched")

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        for data in list(self._harness.state_log):
            yield memoryview(data)

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        if self._harness.is_behind:
            self._harness.appends.append((b"", on_committed))
        else:
            on_committed(None)

    def partition_count(self) -> int | None:
        return 1

    def leader(self, index: int) -> int | None:
        return 1

    def create_topic(self) -> None:
        raise AssertionError("the topic exists")

    def next_producer_id(self) -> int:
        self._harness.ids += 1
        return self._harness.ids

    def transaction_version(self) -> int:
        return 2

    def write_markers(
        self,
        partitions: Collection[TopicPartition],
        txn_marker: TransactionMarker,
        epoch: int,
        done: MarkersCallback,
    ) -> None:
        # As if each partition had a leader on another broker.
        for partition in partitions:
            self._harness.markers.append((partition, txn_marker, epoch, done))


class TransactionHarness:
    """A coordinator, its log, its partitions, and pending appends and markers."""

    def __init__(self) -> None:
        self.host = VirtualHost(seed=1, now_ms=NOW_MS)
        self.disk = MemoryDisk()
        config = LogConfig(segment_bytes=SEGMENT_BYTES, segment_index_bytes=1200)
        self._benches = {
            (topic, index): LogHarness(self.disk, f"/{topic}-{index}", config) for topic, index in PARTITIONS
        }
        self.ids = FIRST_ID
        self.life = 0
        self.state_log: list[bytes] = []
        self.appends: list[tuple[bytes, CommitCallback]] = []
        """Appended records of the coordinator that are not committed yet."""
        self.markers: list[tuple[TopicPartition, TransactionMarker, int, MarkersCallback]] = []
        """Markers that wait to be written."""
        self.is_behind = False
        """Whether a loaded coordinator does not know the high watermark of its log yet."""
        self.refuse: ErrorCode | None = None
        """The error of the coordinator's next appends, or None."""
        self._start()

    def _start(self) -> None:
        self.partitions = {
            partition: _LeaderPartition(bench.open(), bench) for partition, bench in self._benches.items()
        }
        for partition in self.partitions.values():
            partition.log.high_watermark = partition.log.log_end_offset
        self.service = TransactionCoordinatorService(
            cast("BrokerConfig", Config()), self.host, _FakeTransactionPorts(self)
        )
        self._node = cast(
            Node,
            SimpleNamespace(
                config=Config(),
                host=self.host,
                image=SimpleNamespace(
                    topics={TRANSACTION_STATE_TOPIC: None}, partition=lambda *_partition: None
                ),
                transactions=self.service,
                partition=lambda topic, index: self.partitions[topic, index],
                led_partition=lambda topic, index: self.partitions[topic, index],
                groups=None,
            ),
        )
        node_ports = NodeTransactionPorts(self._node)
        self._node.add_or_verify_partition = node_ports.add_or_verify_partition
        self.service.elected(0, self.life)
        self.host.run_pending()

    # --- steps

    def crash(self, kept: int = 0) -> None:
        """Crash and restart the broker; the first `kept` uncommitted records are in the log."""
        self.state_log += [data for data, _ in self.appends[:kept]]
        self.appends.clear()
        self.markers.clear()
        # The callbacks and timers of the process are lost.
        self.host = VirtualHost(seed=1, now_ms=self.host.now_ms())
        self.life += 1
        for bench in self._benches.values():
            bench.now_ms = self.host.now_ms()
        self._start()

    def commit_appends(self, count: int | None = None) -> int:
        """Commit the coordinator's appends, or the first `count`; return their number."""
        done = 0
        while self.appends and (count is None or done < count):
            data, on_committed = self.appends.pop(0)
            if data:
                self.state_log.append(data)
            on_committed(None)
            self.host.run_pending()
            done += 1
        return done

    def write_marker(self, number: int = 0) -> None:
        """Write one of the pending markers."""
        partition, txn_marker, coordinator_epoch, done = self.markers.pop(number)
        NodeTransactionPorts(self._node).write_markers([partition], txn_marker, coordinator_epoch, done)
        self.host.run_pending()

    def settle(self) -> None:
        """Commit all appends and write all markers."""
        self.host.run_pending()
        while self.appends or self.markers:
            self.commit_appends()
            while self.markers:
                self.write_marker()
        self.host.run_pending()

    def advance(self, delay_ms: int) -> None:
        """Advance the time without committing anything."""
        self.host.advance(delay_ms)

    def end_all(self) -> None:
        """End every transaction, by its timeout if necessary."""
        for _ in range(20):
            self.settle()
            self.advance(60_000)
        self.settle()

    # --- producers

    def produce(
        self,
        name: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        sequence: int,
        values: list[bytes],
        version: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Produce one transactional batch as a client of this version does."""
        data = batch(
            *values,
            timestamp=self.host.now_ms(),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )

        def checked(error: ApiError | None) -> None:
            try:
                if error is not None:
                    raise error
                self.partitions[partition].append(
                    memoryview(bytearray(data)), now_ms=self.host.now_ms(), on_replicated=lambda _: None
                )
            except ApiError as error:
                done(ErrorCode(error.code))
            else:
                done(ErrorCode.NONE)

        verify_transaction(
            self._node,
            name,
            producer,
            partition,
            adds=version >= 2,
            supports_abortable=True,
            done=checked,
            header=read_header(data),
        )
        self.host.run_pending()

    # --- state and readers

    def transaction(self, name: str) -> TransactionMetadata | None:
        try:
            return self.service.describe(name)
        except ApiError:
            return None

    def log(self, partition: TopicPartition) -> Log:
        return self.partitions[partition].log

    def is_stable(self, partition: TopicPartition) -> bool:
        """Return whether the last stable offset equals the log end offset."""
        return self.log(partition).last_stable_offset == self.log(partition).log_end_offset

    def committed(self, partition: TopicPartition) -> list[bytes]:
        """Return the records that a read_committed consumer reads, a few batches at a time."""
        log = self.log(partition)
        found: list[bytes] = []
        offset, end_offset = log.log_start_offset, log.last_stable_offset
        aborting: set[int] = set()
        while offset < end_offset:
            region = log.read(offset, max_bytes=READ_BYTES, up_to_offset=end_offset)
            # As in clients: sorted by first offset, each aborted from its first record to its marker.
            aborted = sorted(log.aborted_transactions(offset, region), key=lambda one: one.first_offset)
            for position, header, data in complete_batches(region.read()):
                while aborted and aborted[0].first_offset <= header.last_offset:
                    aborting.add(aborted.pop(0).producer_id)
                if header.is_control:
                    _, kind = control_type(next(iter(records(data, position, header))))
                    if kind == 0:
                        aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    found += [record.value or b"" for record in records(data, position, header)]
                offset = header.next_offset
        return found


def complete_batches(data: bytes) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yield the complete batches of a fetch response, whose last batch may be truncated."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if position + header.size_bytes > len(data):
            return
        yield position, header, data
        position += header.size_bytes
