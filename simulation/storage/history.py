"""The run of one seed: the operations on the logs, the end of each process, and the recovery after it.

A process ends when it dies during an operation, or when the disk fails an operation, because a broker stops
if its only log directory fails. The records of this operation were not acknowledged, so they may be lost.

An operation that finds no free file descriptor fails, too, but has no effect on the log, and the process
continues.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError
from kwire.testing.disk import MemoryDisk, ProcessDied
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import HEADER_BYTES, stamp
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.plural import plural
from simulation.storage.bit_flips import check_after_bit_flip, flip_random_bit
from simulation.storage.broker import (
    BACKOFF_MS,
    DATA,
    SimulatedPartition,
    SimulatedStorage,
    random_config,
)
from simulation.storage.expected_log import RecordContent
from simulation.storage.invariants import LogScan

STEPS = 60
RECOVERIES = 20
"""The maximum number of attempts at one recovery that may have faults."""


class History:
    """A run of the simulation, with its transcript."""

    def __init__(self, seed: int, *, steps: int = STEPS) -> None:
        self.seed = seed
        self.transcript: list[str] = []
        self._steps = steps
        self._number = 0
        self._rng = rng = random.Random(f"kwire storage {seed}")
        self._shortage_rng = random.Random(f"kwire storage shortages {seed}")
        self._shortages_per_step = 0.1 if seed % 3 == 2 else 0.0
        self._disk = MemoryDisk(random.Random(rng.getrandbits(64)), self._log_detail)
        self._partitions = [
            SimulatedPartition(topic, random_config(rng)) for topic in ("a", "b")[: rng.choice((1, 1, 2))]
        ]
        self._storage = SimulatedStorage(self._disk, self._partitions, rng)
        self._storage.between_cleaner_steps = self._interleave
        self._may_interleave = False
        self._operations = [
            (self._append, 30),
            (self._append_many, 6),
            (self._append_fetched, 4),
            (self._retry, 3),
            (self._flush, 6),
            (self._flush_concurrently, 2),
            (self._checkpoint, 5),
            (self._roll, 3),
            (self._apply_retention, 5),
            (self._delete_records, 3),
            (self._truncate, 3),
            (self._advance_clock, 5),
            (self._run_cleaner, 6),
        ]

    # --- the transcript

    def _log_detail(self, text: str) -> None:
        self.transcript.append(f"        {text}")

    def _log(self, text: str) -> None:
        self.transcript.append(f"{self._number:5d}   {text}")

    # --- running

    def run(self) -> None:
        """Run the simulation. Raises Violation, or an error that storage must not raise."""
        for partition in self._partitions:
            self._log_detail(f"{partition.topic}: {_describe_config(partition)}")
        with self._disk.without_faults():
            self._disk.make_directory("/disk")
            self._disk.sync_directory("/")
        self._start(power_lost=True)
        while self._number < self._steps:
            self._number += 1
            self._step()
        self._number += 1
        self._disk.repair()
        self._restart()
        if self._rng.random() < 0.5:
            self._number += 1
            self._flip_bit()

    def _flip_bit(self) -> None:
        """Flip a bit while the broker is down, and check the log. This ends the run."""
        disk, storage, rng = self._disk, self._storage, self._rng
        partition = rng.choice(self._partitions)
        was_clean = rng.random() < 0.6
        for each in self._partitions:
            self._flush(each)
        if was_clean:
            storage.shut_down()
        disk.kill()
        name = flip_random_bit(disk, f"{DATA}/{partition.topic}-0", rng)
        if name is None:
            return
        how = "a shutdown" if was_clean else "a kill"
        self._log(f"a bit of {partition.topic}-0/{name} flips after {how}")
        storage.open()
        self._log("open: " + self._describe_logs())
        with disk.without_faults():
            lost = check_after_bit_flip(storage.log(partition), partition.expected, name, was_clean=was_clean)
        self._log(f"lost {plural(lost, 'record')}")

    def _step(self) -> None:
        rng = self._rng
        if rng.random() < 0.06:
            self._arm_disk_fault()
        ends_process = rng.random() < 0.05
        self._end_or_arm_shortage()
        try:
            for partition in self._partitions:
                self._end_truncation(partition)
            if ends_process:
                self._end_process()
                return
            operations, weights = zip(*self._operations, strict=True)
            rng.choices(operations, weights)[0](rng.choice(self._partitions))
        except ProcessDied:
            self._crash()
            return
        except (StorageError, ApiError) as error:
            if isinstance(error, ApiError) and error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            self._log(f"failed: {error}")
            if not self._storage.is_offline and not _is_shortage(error):
                raise Violation(f"an operation failed, but the directory is online: {error}") from error
        if self._storage.is_offline:
            self._log("the directory is offline: the broker shuts down")
            self._crash()
            return
        self._storage.check_all()

    def _arm_disk_fault(self) -> None:
        rng, disk = self._rng, self._disk
        kind = rng.choice(("dies", "dies", "dies", "fails", "is full"))
        if kind == "dies":
            disk.dies_after = rng.choice((rng.randrange(6), rng.randrange(40)))
        elif kind == "fails":
            disk.fails_after = rng.randrange(30)
            disk.remaining_failures = rng.choice((1, 1, 5))
            disk.fails_reading = rng.random() < 0.5
        else:
            disk.free_bytes = rng.randrange(1500)

    def _end_or_arm_shortage(self) -> None:
        """Let the process run out of file descriptors for some steps, after it has opened some files."""
        rng, disk = self._shortage_rng, self._disk
        if disk.shortage_after is None:
            if rng.random() < self._shortages_per_step:
                disk.shortage_after = rng.choice((0, rng.randrange(20)))
        elif rng.random() < 0.5:
            disk.shortage_after = None

    # --- crashes and restarts

    def _end_process(self) -> None:
        if self._rng.random() < 0.4:
            self._restart()
        else:
            self._crash()

    def _restart(self) -> None:
        """Shut down cleanly and start again, sometimes with a power loss in between."""
        self._log("shutdown")
        disk = self._disk
        # A shutdown commits, flushes, and then writes the checkpoints. If the process dies meanwhile, the
        # simulation does not expect that the flush or the checkpoints have completed.
        for partition in self._partitions:
            self._commit(partition)
            log = self._storage.log(partition)
            if log.log_start_offset <= log.segment_base_offsets[0]:
                partition.expected.checkpointed_start = 0
        before = disk.is_faulty or disk.shortage_after is not None
        self._storage.shut_down()
        if not before:
            for partition in self._partitions:
                partition.expected.on_flush(partition.expected.acknowledged_end)
        power_lost = self._rng.random() < 0.4
        if power_lost:
            self._log("power loss after the shutdown")
            disk.power_cut()
        else:
            disk.kill()
        self._start(power_lost=power_lost)

    def _crash(self) -> None:
        power_lost = self._rng.random() < 0.6
        self._log("power loss" if power_lost else "kill")
        if power_lost:
            self._disk.power_cut()
        else:
            self._disk.kill()
        self._start(power_lost=power_lost)

    def _start(self, *, power_lost: bool) -> None:
        """Start a process and recover, sometimes with faults during recovery."""
        rng, disk, storage = self._rng, self._disk, self._storage
        attempts = 0
        while True:
            attempts += 1
            if attempts < RECOVERIES and rng.random() < 0.25:
                if rng.random() < 0.8:
                    disk.dies_after = rng.randrange(25)
                else:
                    disk.fails_after = rng.randrange(40)
                    disk.remaining_failures = 1
                    disk.fails_reading = rng.random() < 0.7
            faulty = disk.is_faulty
            recovery_points = storage.recovery_points()
            try:
                storage.open()
                if storage.is_offline:
                    raise StorageError("the directory is offline at once")  # the cleaner's checkpoint failed
                disk.repair()
                self._log("open: " + self._describe_logs())
                storage.check_recovered(power_lost=power_lost)
                if rng.random() < 0.3:
                    self._recover_again(recovery_points)
                storage.create_logs()
                storage.check_all()
                return
            except ProcessDied:
                again = rng.random() < 0.5
                self._log(f"died in recovery, {'by a power loss' if again else 'killed'}")
                if again:
                    disk.power_cut()
                else:
                    disk.kill()
                power_lost = power_lost or again
            except StorageError as error:
                if not faulty:
                    raise
                self._log(f"start failed: {error}")
                disk.kill()

    def _recover_again(self, recovery_points: bytes) -> None:
        """Repeat recovery from the same recovery point, and check that it does not change any byte."""
        storage, disk = self._storage, self._disk
        if (
            storage.manager.directories()[0].had_clean_shutdown
            or storage.recovery_points() != recovery_points
        ):
            disk.kill()
            storage.open()
        before = storage.recoverable_files()
        disk.kill()
        storage.open()
        after = storage.recoverable_files()
        self._log("recovered again: " + self._describe_logs())
        for path in sorted({*before, *after}):
            if before.get(path) != after.get(path):
                raise Violation(
                    f"repeating recovery changes {path} from {before.get(path)!r} to {after.get(path)!r}"
                )
        storage.check_recovered(power_lost=False)

    def _describe_logs(self) -> str:
        return ", ".join(
            f"{log.topic} {log.log_start_offset}..{log.log_end_offset} in segments "
            f"{log.segment_base_offsets}, high watermark {log.high_watermark}, "
            f"recovery point {log.recovery_point}"
            for log in self._storage.manager.logs()
        )

    # --- operations

    def _append(self, partition: SimulatedPartition) -> None:
        rng = self._rng
        self._append_batch(partition, rng.choice((-1, -1, 7, 8)))
        if rng.random() < 0.3:
            self._append_batch(partition, rng.choice((-1, 7, 8)))
        self._commit(partition)

    def _append_many(self, partition: SimulatedPartition) -> None:
        for _ in range(self._rng.randrange(3, 12)):
            self._append_batch(partition, self._rng.choice((-1, -1, 7, 8)))
        self._commit(partition)

    def _append_batch(self, partition: SimulatedPartition, producer_id: int) -> None:
        log, rng = self._storage.log(partition), self._rng
        producer = partition.producers.get(producer_id)
        if producer is not None and rng.random() < 0.05:
            producer.epoch += 1
            producer.next_sequence = 0
        now_ms = self._storage.host.now_ms()
        sent, contents = partition.make_batch(rng, now_ms, producer_id)
        # If the process dies while the log rolls, the batch was not written, but the client cannot know this.
        appended = log.append(memoryview(bytearray(sent)), leader_epoch=partition.leader_epoch, now_ms=now_ms)
        if appended.is_duplicate:
            raise Violation(f"a new batch of producer {producer_id} counted as a duplicate: {appended}")
        if appended.first_offset != max(partition.expected.max_end, appended.first_offset):
            raise Violation(f"offset {appended.first_offset} was assigned twice")
        for number, record in enumerate(contents):
            if appended.log_append_time_ms >= 0:
                record = RecordContent(appended.log_append_time_ms, record.key, record.value)
            partition.expected.on_append(appended.first_offset + number, record)
        if producer is not None:
            producer.last = memoryview(bytes(sent)), appended.first_offset
            producer.next_sequence += len(contents)
        self._log(
            f"{partition.topic}: append {plural(len(contents), 'record')} in {len(sent)} bytes at offset "
            f"{appended.first_offset}"
            + (f", producer {producer_id} epoch {producer.epoch}" if producer is not None else "")
        )

    def _append_fetched(self, partition: SimulatedPartition) -> None:
        """Append batches as a follower that has fetched them. The last batch is incomplete."""
        log, rng, now_ms = self._storage.log(partition), self._rng, self._storage.host.now_ms()
        fetched, offset = b"", log.log_end_offset
        contents: list[RecordContent] = []
        for _ in range(rng.randrange(1, 6)):
            sent, records = partition.make_batch(rng, now_ms, -1)
            data = bytearray(sent)
            stamp(data, 0, offset + len(contents), partition.leader_epoch)
            fetched += data
            contents += records
        cut = fetched + fetched[: rng.randrange(HEADER_BYTES)]
        appended = log.append_fetched(
            memoryview(cut), leader_epoch=partition.leader_epoch + rng.randrange(2), now_ms=now_ms
        )
        assert appended is not None
        for number, record in enumerate(contents):
            partition.expected.on_append(offset + number, record)
        self._log(
            f"{partition.topic}: fetch {plural(len(contents), 'record')} in {len(fetched)} bytes at offset "
            f"{offset}"
        )
        self._commit(partition)

    def _commit(self, partition: SimulatedPartition) -> None:
        log = self._storage.log(partition)
        if not log.staged and log.failure is None:
            return
        log.commit()
        if not log.is_recoverable:
            self._flush_partition_metadata(partition)
        partition.expected.on_ack(log.log_end_offset)
        self._log(f"{partition.topic}: commit up to offset {log.log_end_offset}")
        if self._rng.random() < 0.9:
            log.high_watermark = log.log_end_offset
        self._flush_due()

    def _flush_partition_metadata(self, partition: SimulatedPartition) -> None:
        """Write partition.metadata of a new log. A broker does this before the first acknowledgment."""
        log = self._storage.log(partition)
        ticket = log.begin_partition_metadata_flush()
        assert ticket is not None
        self._run_disk_work(partition, ticket.work)
        self._run_disk_work(partition, ticket.finish)
        self._log(f"{partition.topic}: partition.metadata is written")

    def _retry(self, partition: SimulatedPartition) -> None:
        """Append the last batch of each producer again. The log must detect the duplicates."""
        log = self._storage.log(partition)
        for producer_id, producer in partition.producers.items():
            if producer.last is None or producer.last[1] < log.log_start_offset:
                continue
            sent, offset = producer.last
            appended = log.append(
                memoryview(bytearray(sent)),
                leader_epoch=partition.leader_epoch,
                now_ms=self._storage.host.now_ms(),
            )
            self._log(f"{partition.topic}: producer {producer_id} retries the batch at offset {offset}")
            if not appended.is_duplicate or appended.first_offset != offset:
                raise Violation(
                    f"the batch of producer {producer_id} at {offset} was stored again: {appended}"
                )

    def _flush_due(self) -> None:
        """Flush logs if flush.messages, flush.ms or a new segment requires it."""
        for log in self._storage.manager.due_for_flush(self._storage.host.now_ms()):
            partition = next(each for each in self._partitions if each.topic == log.topic)
            end_offset = log.written_end_offset
            log.flush()
            partition.expected.on_flush(end_offset)
            self._log(f"{log.topic}: flush is due, up to offset {end_offset}")

    def _flush(self, partition: SimulatedPartition) -> None:
        log = self._storage.log(partition)
        end_offset = log.written_end_offset
        log.flush()
        partition.expected.on_flush(end_offset)
        self._log(f"{partition.topic}: flush up to offset {end_offset}")

    def _flush_concurrently(self, partition: SimulatedPartition) -> None:
        """Flush as a worker thread does, with another operation at the same time."""
        log = self._storage.log(partition)
        if not log.is_recoverable:
            self._flush_partition_metadata(partition)
        ticket = log.begin_flush()
        self._log(f"{partition.topic}: begin a flush up to offset {ticket.end_offset}")
        action: Callable[[SimulatedPartition], None] = self._rng.choice(
            (self._append, self._append_many, self._truncate, self._apply_retention, self._checkpoint)
        )
        first = self._rng.random() < 0.5
        end_offset = ticket.end_offset
        if first:
            self._run_disk_work(partition, ticket.work)
        action(partition)
        if not first:
            self._run_disk_work(partition, ticket.work)
        end_offset = min(end_offset, log.log_end_offset)
        ticket.finish()
        # After a truncation neither the removed records nor their replacements are durable.
        if log.recovery_point >= end_offset:
            partition.expected.on_flush(end_offset)
        self._log(f"{partition.topic}: flush finished, the recovery point is {log.recovery_point}")

    def _run_disk_work(self, partition: SimulatedPartition, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageError as error:
            self._storage.log(partition)._fail(error)
            raise

    def _checkpoint(self, partition: SimulatedPartition) -> None:
        self._log("checkpoint")
        self._before_checkpoint()
        self._disk.shortage_after = None  # a worker waits for a descriptor
        self._storage.manager.write_checkpoints()
        if not self._storage.is_offline:
            self._after_checkpoint()

    def _before_checkpoint(self) -> None:
        for each in self._partitions:
            log = self._storage.log(each)
            if log.log_start_offset <= log.segment_base_offsets[0]:
                # The log start offset is the base offset of the first segment. As in Kafka, deleted
                # segments may exist again after a power loss. The last checkpoint may be lost, too.
                each.expected.checkpointed_start = 0

    def _after_checkpoint(self) -> None:
        for each in self._partitions:
            log, expected = self._storage.log(each), each.expected
            expected.checkpointed_high_watermark = log.high_watermark
            if log.log_start_offset > log.segment_base_offsets[0]:
                expected.checkpointed_start = log.log_start_offset

    def _roll(self, partition: SimulatedPartition) -> None:
        log = self._storage.log(partition)
        log.roll(self._storage.host.now_ms())
        self._log(f"{partition.topic}: roll at offset {log.log_end_offset}")
        if self._rng.random() < 0.7:
            self._flush_due()

    def _apply_retention(self, partition: SimulatedPartition) -> None:
        self._allow_retention(partition)
        count = self._storage.log(partition).delete_old_segments(self._storage.host.now_ms())
        self._log(f"{partition.topic}: retention deletes {plural(count, 'segment')}")

    def _allow_retention(self, partition: SimulatedPartition) -> None:
        """Allow retention to delete segments, even if the process dies before retention returns."""
        log, expected = self._storage.log(partition), partition.expected
        if log.config.delete:
            expected.allow_start_at(log.high_watermark)

    def _delete_records(self, partition: SimulatedPartition) -> None:
        log = self._storage.log(partition)
        if log.high_watermark > log.log_start_offset:
            offset = self._rng.randint(log.log_start_offset, log.high_watermark)
            partition.expected.allow_start_at(offset)
            log.delete_records_before(offset)
            self._log(f"{partition.topic}: delete records before offset {offset}")

    def _truncate(self, partition: SimulatedPartition) -> None:
        """Truncate as a follower of a new leader."""
        log, expected = self._storage.log(partition), partition.expected
        if partition.config.compact or log.log_end_offset == log.log_start_offset:
            return
        offset = self._rng.randint(log.log_start_offset, log.log_end_offset)
        self._commit(partition)
        offset = next((each for each in self._batch_starts(partition) if each >= offset), log.log_end_offset)
        self._log(f"{partition.topic}: truncate to offset {offset}")
        expected.before_truncate(offset)
        if log.truncate_to(offset):
            expected.on_truncate(offset)
            for producer in partition.producers.values():
                if producer.last is not None and producer.last[1] >= offset:
                    producer.epoch += 1
                    producer.next_sequence = 0
                    producer.last = None
        self._end_truncation(partition)
        partition.leader_epoch += 1
        log.begin_leader_epoch(partition.leader_epoch)

    def _end_truncation(self, partition: SimulatedPartition) -> None:
        """Write the recovery points and sync the log, which a broker does between a truncation and an append.

        If there is no free descriptor, raise ResourceShortage; the next step continues.
        """
        log = self._storage.log(partition)
        if not log.awaits_sync:
            return
        if not log.is_recoverable:
            self._before_checkpoint()
            host = self._storage.host
            self._storage.manager.pending_logs.when_recoverable(log, host, lambda: None)
            host.run_pending()
            if not log.is_recoverable and not self._storage.is_offline:
                host.advance(SHORTAGE_RETRY_MS)
            if self._storage.is_offline:
                return
            if not log.is_recoverable:
                raise ResourceShortage("the recovery points are not written")
            self._after_checkpoint()
            self._log(f"{partition.topic}: the recovery point {log.recovery_point} is written")
        self._flush(partition)

    def _batch_starts(self, partition: SimulatedPartition) -> list[int]:
        with self._disk.without_faults():
            scan = LogScan(self._disk, self._storage.log(partition))
        return [batch.header.base_offset for batch in scan.batches]

    def _advance_clock(self, partition: SimulatedPartition) -> None:
        delay_ms = self._rng.choice((100, 2000, 14_000, 61_000))
        self._log(f"the clock advances by {delay_ms} ms")
        self._advance(delay_ms)
        self._storage.manager.tick(self._storage.host.now_ms())
        self._flush_due()

    def _run_cleaner(self, partition: SimulatedPartition) -> None:
        """Run the cleaner, sometimes with other operations between its steps."""
        self._log("the cleaner runs")
        self._may_interleave = self._rng.random() < 0.5
        try:
            self._advance(BACKOFF_MS)
        finally:
            self._may_interleave = False

    def _advance(self, delay_ms: int) -> None:
        for partition in self._partitions:
            if partition.config.compact:
                self._allow_retention(partition)
        rounds = self._storage.cleaner.completed_cleanings
        self._storage.host.advance(delay_ms)
        self._disk.now_ms = self._storage.host.now_ms()
        if self._storage.cleaner.completed_cleanings > rounds:
            cleaned = plural(self._storage.cleaner.completed_cleanings - rounds, "log")
            self._log(f"{cleaned} cleaned: {self._describe_logs()}")

    def _interleave(self) -> None:
        if self._may_interleave and self._rng.random() < 0.3 and not self._storage.is_offline:
            partition = self._rng.choice(self._partitions)
            self._rng.choice((self._append, self._roll, self._delete_records, self._flush))(partition)


def _describe_config(partition: SimulatedPartition) -> str:
    config = partition.config
    return (
        f"cleanup.policy {','.join(sorted(config.cleanup_policy))}, segment.bytes {config.segment_bytes}, "
        f"index.interval.bytes {config.index_interval_bytes}, retention.bytes {config.retention_bytes}, "
        f"retention.ms {config.retention_ms}, flush.messages {config.flush_messages}"
        f"{', preallocated' if config.preallocate else ''}"
    )


def _is_shortage(error: StorageError | ApiError) -> bool:
    """Return whether an operation failed because the process has no free file descriptor."""
    return isinstance(error, ResourceShortage) or isinstance(error.__cause__, ResourceShortage)
