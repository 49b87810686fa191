"""The logs of one broker on a simulated disk, with their cleaner and their idempotent producers.

One broker process after another uses the same disk. Each process ends with a clean shutdown, a kill or a
power loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

from kwire.broker.storage.checkpoints import CLEANED_OFFSETS, RECOVERY_POINTS
from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
from kwire.broker.storage.cleaner.offset_map import ENTRY_BYTES
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import CREATE_TIME, LOG_APPEND_TIME, LogConfig
from kwire.testing.disk import MemoryDisk
from kwire.testing.simulated.violation import Violation
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import build
from kwire.wire.compression import Codec
from kwire.wire.primitives import ZERO_UUID, Uuid
from simulation.storage.expected_log import ExpectedLog, RecordContent
from simulation.storage.invariants import LogScan, ScannedBatch, check_log

DATA = "/disk/data"
BACKOFF_MS = 15_000
OFFSET_MAP_KEYS = (2, 400, 3, 4)
"""The number of keys in the cleaner's offset map, by process. There are five keys, so some maps get full."""
NEVER = (1 << 63) - 1


class IdempotentProducer:
    """The state that an idempotent producer keeps for one partition."""

    def __init__(self) -> None:
        self.epoch = 0
        self.next_sequence = 0
        self.last: tuple[memoryview, int] | None = None
        """The last batch as it was sent, for retries, and its base offset."""


class SimulatedPartition:
    """A log, its expected content, and its producers."""

    def __init__(self, topic: str, config: LogConfig) -> None:
        self.topic = topic
        self.config = config
        self.expected = ExpectedLog(is_compacted=config.compact)
        self.producers = {producer_id: IdempotentProducer() for producer_id in (7, 8)}
        self.leader_epoch = 0
        self.written = 0
        """The number of created records, from which each record gets a unique value."""

    def make_batch(
        self, rng: random.Random, now_ms: int, producer_id: int
    ) -> tuple[bytearray, list[RecordContent]]:
        """Return a batch in the form that a producer sends, and its records."""
        contents: list[RecordContent] = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            self.written += 1
            key = b"k%d" % rng.randrange(5) if self.config.compact or rng.random() < 0.3 else None
            value: bytes | None = b"%d" % self.written + b"." * rng.choice((0, 0, 20, 150))
            if self.config.compact and rng.random() < 0.2:
                value = None
            contents.append(RecordContent(now_ms + rng.choice((0, 0, 0, 5, -5, -3000)), key, value))
        producer = self.producers.get(producer_id)
        sent = build(
            [(record.timestamp, record.key, record.value, []) for record in contents],
            codec=rng.choice((Codec.NONE, Codec.NONE, *Codec)),
            producer_id=producer_id,
            producer_epoch=producer.epoch if producer is not None else -1,
            base_sequence=producer.next_sequence if producer is not None else -1,
        )
        return sent, contents

    def resume_producers(self, found: list[ScannedBatch]) -> None:
        """Increment the epoch of each producer whose last batch was lost in a crash.

        An unmodified producer does this after it gets OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        for producer_id, producer in self.producers.items():
            own = [batch.header for batch in found if batch.header.producer_id == producer_id]
            if producer.last is not None and (not own or own[-1].base_offset != producer.last[1]):
                producer.epoch += 1
                producer.next_sequence = 0
                producer.last = None


def random_config(rng: random.Random) -> LogConfig:
    """Return a random topic configuration, with sizes that suit batches of a few hundred bytes."""
    compact = rng.random() < 0.35
    segment_bytes = rng.choice((900, 1500, 4000))
    return LogConfig(
        cleanup_policy=frozenset({"compact"} if compact and rng.random() < 0.7 else {"compact", "delete"})
        if compact
        else frozenset({"delete"}),
        compression_type=rng.choice(("producer", "producer", "producer", "gzip", "uncompressed")),
        delete_retention_ms=rng.choice((0, 20_000, NEVER)),
        file_delete_delay_ms=rng.choice((0, 1000, 60_000)),
        flush_messages=rng.choice((1, 7, NEVER, NEVER)),
        flush_ms=rng.choice((5000, NEVER, NEVER)),
        index_interval_bytes=rng.choice((1, 1, 200, 600)),
        message_timestamp_type=rng.choice((CREATE_TIME, CREATE_TIME, LOG_APPEND_TIME)),
        min_cleanable_dirty_ratio=rng.choice((0.01, 0.5)),
        min_compaction_lag_ms=rng.choice((0, 0, 4000)),
        preallocate=rng.random() < 0.15,
        retention_bytes=rng.choice((-1, -1, 2 * segment_bytes)),
        retention_ms=rng.choice((-1, 60_000, 600_000)),
        segment_bytes=segment_bytes,
        segment_index_bytes=rng.choice((96, 1200, 1200)),
        segment_jitter_ms=rng.choice((0, 2000)),
        segment_ms=rng.choice((10_000, NEVER)),
    )


class SimulatedStorage:
    """The logs of a broker. The object stays the same when the broker restarts."""

    def __init__(self, disk: MemoryDisk, partitions: list[SimulatedPartition], rng: random.Random) -> None:
        self.disk = disk
        self.partitions = partitions
        self.host = VirtualHost()
        self._rng = rng
        self._check_rng = random.Random(rng.getrandbits(64))
        self._start_count = 0
        self.manager: LogManager
        self.cleaner: LogCleaner
        self.between_cleaner_steps: Callable[[], None] = lambda: None
        """A function that the simulation calls between two steps of the cleaner, to run other operations."""

    # --- the process

    def open(self) -> None:
        """Start a process. Raises StorageError if the disk fails, or ProcessDied."""
        host = self.host = VirtualHost(
            seed=self._rng.getrandbits(32), now_ms=self.host.now_ms() + self._rng.choice((0, 1000))
        )
        configs = {partition.topic: partition.config for partition in self.partitions}
        self.disk.now_ms = host.now_ms()
        self.manager = LogManager(
            self.disk,
            [DATA],
            rng=random.Random(self._rng.getrandbits(32)),
            logger=host.logger("kwire.storage"),
            config_for=configs.__getitem__,
        )
        self.manager.open(host.now_ms())
        keys = OFFSET_MAP_KEYS[self._start_count % len(OFFSET_MAP_KEYS)]
        self._start_count += 1
        settings = SimpleNamespace(
            log_cleaner_backoff_ms=BACKOFF_MS,
            log_cleaner_dedupe_buffer_size=keys * ENTRY_BYTES,
            log_cleaner_enable=True,
            log_cleaner_io_buffer_load_factor=1.0,
            log_cleaner_io_buffer_size=1 << 16,
            log_cleaner_io_max_bytes_per_second=1e300,
            log_cleaner_threads=1,
        )
        self.cleaner = LogCleaner(self.manager, settings, host, self.disk)
        self.cleaner.start()
        host.end_turn = lambda: self.between_cleaner_steps()

    def create_logs(self) -> None:
        """Create missing logs, as a broker does for topics in the metadata whose logs were lost in a crash.

        Raises StorageError or ProcessDied.
        """
        for number, partition in enumerate(self.partitions):
            log = self.manager.get(partition.topic, 0)
            if log is not None and log.topic_id == ZERO_UUID:
                self.manager.mark_stray(log)  # a broker does this with a log that has no topic id
                log = None
            if log is None:
                expected = partition.expected
                if expected.durable_end:
                    raise Violation(
                        f"the log of {partition.topic} is missing, durable up to {expected.durable_end}"
                    )
                partition.expected = ExpectedLog(is_compacted=expected.is_compacted)
                partition.expected.ever_appended = expected.ever_appended
                partition.resume_producers([])
                topic_id = Uuid(bytes(15) + bytes([number + 2]))
                log = self.manager.create(partition.topic, 0, topic_id, partition.config, self.host.now_ms())
            partition.leader_epoch += 1
            log.begin_leader_epoch(partition.leader_epoch)

    def log(self, partition: SimulatedPartition) -> Log:
        log = self.manager.get(partition.topic, 0)
        assert log is not None
        return log

    @property
    def is_offline(self) -> bool:
        """Whether a disk failure has put the log directory offline."""
        return self.manager.directories()[0].offline

    def shut_down(self) -> None:
        """Shut down cleanly, except for operations that the disk fails."""
        self.cleaner.stop()
        self.manager.shutdown(self.host.now_ms())

    # --- checks

    def check_all(self) -> None:
        """Check the invariants and the expected content of every log. Raises Violation."""
        with self.disk.without_faults():
            for partition in self.partitions:
                log = self.manager.get(partition.topic, 0)
                if log is None or log.failure is not None:
                    continue
                expected = partition.expected
                try:
                    scan = check_log(self.disk, log, expected, self._check_rng)
                    expected.check(
                        scan.records, log.log_start_offset, log.written_end_offset, log.written_end_offset
                    )
                    if log.high_watermark < expected.high_watermark:
                        raise Violation(
                            f"the high watermark decreased from {expected.high_watermark} "
                            f"to {log.high_watermark}"
                        )
                    expected.high_watermark = log.high_watermark
                    self._accept_compaction(log, expected, scan)
                except Violation as error:
                    raise Violation(f"{partition.topic}: {error}") from error

    @staticmethod
    def _accept_compaction(log: Log, expected: ExpectedLog, scan: LogScan) -> None:
        staged = {at: each for at, each in expected.records.items() if at >= log.written_end_offset}
        expected.records = {**scan.records, **staged}

    def check_recovered(self, *, power_lost: bool) -> None:
        """Check the invariants after a crash, and check that no acknowledged or durable record is lost."""
        with self.disk.without_faults():
            for partition in self.partitions:
                log = self.manager.get(partition.topic, 0)
                if log is None:
                    continue
                try:
                    self._check_recovered(partition, log, power_lost=power_lost)
                except Violation as error:
                    raise Violation(f"{partition.topic} after recovery: {error}") from error

    def _check_recovered(self, partition: SimulatedPartition, log: Log, *, power_lost: bool) -> None:
        expected = partition.expected
        if log.failure is not None:
            raise Violation(f"the log is offline: {log.failure}")
        if power_lost and not expected.is_compacted:
            expected.record_gaps(LogScan(self.disk, log).gaps(log.written_end_offset))
        required_end = expected.durable_end if power_lost else expected.acknowledged_end
        if log.topic_id == ZERO_UUID:
            if required_end:
                raise Violation(f"the log has no topic id, but must have records up to {required_end}")
            expected.before_truncate(0)
            return
        scan = check_log(self.disk, log, expected, self._check_rng)
        end = log.log_end_offset
        expected.check(scan.records, log.log_start_offset, end, required_end)
        if not power_lost and end > expected.max_end:
            raise Violation(
                f"the log ends at {end}, but no record at or after {expected.max_end} was written"
            )
        if log.log_start_offset > max(expected.allowed_start, expected.checkpointed_start):
            raise Violation(
                f"the log starts at {log.log_start_offset}, after the expected {expected.allowed_start}"
            )
        if log.log_start_offset < expected.checkpointed_start:
            raise Violation(
                f"the log start offset decreased to {log.log_start_offset}; "
                f"the checkpoint has {expected.checkpointed_start}"
            )
        if log.high_watermark < min(expected.checkpointed_high_watermark, end):
            raise Violation(
                f"the high watermark decreased to {log.high_watermark}; "
                f"the checkpoint has {expected.checkpointed_high_watermark}"
            )
        expected.on_recovery(scan.records, end, durable=power_lost)
        expected.high_watermark = log.high_watermark
        partition.resume_producers(
            [batch for batch in scan.batches if batch.header.last_offset >= log.log_start_offset]
        )

    def recovery_points(self) -> bytes:
        """Return the content of recovery-point-offset-checkpoint."""
        path = f"{DATA}/{RECOVERY_POINTS}"
        with self.disk.without_faults():
            return self.disk.read(path) if self.disk.exists(path) else b""

    def recoverable_files(self) -> dict[str, bytes]:
        """Return the content, by path, of the files that a second recovery must not change."""
        empty = {
            f"{log.topic}-0/leader-epoch-checkpoint"
            for log in self.manager.logs()
            if log.log_start_offset == log.log_end_offset
        }
        # Ignore harmless changes: the leader epochs of an empty log, which the next recovery removes (as in
        # Kafka), preallocated zeros at the end of a file, files that are already marked as deleted, and an
        # empty checkpoint of the cleaner.
        return {
            path: content if path.endswith(".snapshot") else content.rstrip(b"\0")
            for path, content in self.disk.tree(DATA).items()
            if not path.endswith(".deleted") and path not in empty and (content or path != CLEANED_OFFSETS)
        }
