"""The producer state of a log: epochs, the last five batches of each producer, and open transactions.

KIP-98, KIP-360, KIP-890. A batch with the same sequence range as a remembered batch is a duplicate; its
response has the offsets of the first append. A batch that does not follow the producer's last batch is out of
order. Two batches may start a sequence: a batch of a newer epoch at sequence 0, and a batch of an unknown
producer unless an earlier batch was rejected. The state is saved in `.snapshot` files, so that log recovery
reads only later batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, Protocol

from kwire.broker.storage.disk import Disk, DiskFile
from kwire.broker.storage.log.log_config import CLIENT, AppendOrigin
from kwire.broker.storage.log.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    BatchMetadata,
    CorruptSnapshot,
    ProducerState,
    encode_snapshot,
    read_snapshot,
)
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.broker.storage.log.transaction_verification import Verifications, VerificationState
from kwire.host.loggers import STORAGE_LOGGER, NodeLogger
from kwire.wire.batch import (
    ABORT,
    COMMIT,
    HEADER_BYTES,
    MAX_PRODUCER_EPOCH,
    MAX_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchHeader,
    control_type,
    read_header,
    records,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer

PRODUCER_ID_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
UNKNOWN_TRANSACTION_VERSION: Final = -1

_MARKER = Struct(">hi")


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended: the offset of its first record, and the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class SegmentLike(Protocol):
    """The part of a segment that `rebuild` uses."""

    base_offset: int
    size_bytes: int

    @property
    def file(self) -> DiskFile:
        """The `.log` file."""

    def position_before(self, offset: int) -> int:
        """Return a position at or before the batch that contains `offset`."""


class MarkerContext(NamedTuple):
    """A marker's coordinator epoch, and its transaction version, which the marker itself does not contain."""

    coordinator_epoch: int
    transaction_version: int


class ProducerStateManager:
    """The producer state of one log. Appends change it in offset order."""

    __slots__ = (
        "_aborted",
        "_disk",
        "_logger",
        "_partition",
        "_snapshots",
        "_unsynced",
        "directory",
        "end_offset",
        "expiration_ms",
        "ongoing",
        "producers",
        "unreplicated",
        "verifications",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        partition: str = "",
        expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        logger: NodeLogger = STORAGE_LOGGER,
    ) -> None:
        self._logger = logger
        self._disk = disk
        self.directory = directory
        """The directory of the snapshot files, which is the log's directory."""
        self.expiration_ms = expiration_ms
        self._partition = partition
        self._snapshots: list[int] | None = None
        """The offsets of the snapshot files, or None until the directory is listed."""
        self._unsynced: dict[int, object] = {}
        """The snapshot files to sync, by offset. Each written file has an object of its own."""
        self.producers: dict[int, ProducerState] = {}
        self.ongoing: dict[int, int] = {}
        """The first offset of each open transaction, by producer id."""
        self._aborted: list[AbortedTxn] = []
        self.unreplicated: dict[int, CompletedTransaction] = {}
        """Completed transactions whose marker is not below the high watermark yet, by first offset."""
        self.verifications = Verifications()
        self.end_offset = 0
        """The offset up to which the state includes all batches."""

    def __len__(self) -> int:
        return len(self.producers)

    # --- validating and applying batches

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, began_ms: int
    ) -> VerificationState:
        """Begin to verify a batch that may start a transaction.

        See `Verifications.begin`. Raises INVALID_PRODUCER_EPOCH if the producer has a later epoch.
        """
        self.check_epoch(producer_id, epoch)
        return self.verifications.begin(
            producer_id, epoch, sequence, supports_epoch_bump=supports_epoch_bump, began_ms=began_ms
        )

    def check_batch(
        self, header: BatchHeader, origin: AppendOrigin, marker: MarkerContext | None = None
    ) -> BatchMetadata | None:
        """Return the result of `check` for a data batch with a producer id; or call `check_marker`."""
        if marker is not None:
            self.check_marker(header.producer_id, header.producer_epoch, *marker)
        elif header.producer_id >= 0:
            return self.check(header, origin=origin)
        return None

    def check(self, header: BatchHeader, *, origin: AppendOrigin = CLIENT) -> BatchMetadata | None:
        """Check that a data batch may be appended; return the original batch if it is a duplicate, else None.

        Raises ApiError INVALID_PRODUCER_EPOCH if the producer has a later epoch, OUT_OF_ORDER_SEQUENCE_NUMBER
        (only for a client's batch), or INVALID_TXN_STATE if a transaction is open and the batch is not
        transactional.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self.producers.get(producer_id)
        if state is None:
            if epoch < NO_PRODUCER_EPOCH:
                raise self._smaller_epoch(producer_id, epoch, NO_PRODUCER_EPOCH)
            if origin is CLIENT:
                self.verifications.check(header, is_unknown=True)
            return None
        if origin is CLIENT and epoch == state.epoch:
            first, last = header.base_sequence, header.last_sequence
            for batch in state.batches:
                if batch.last_sequence == last and batch.first_sequence == first:
                    return batch
        self.check_epoch(producer_id, epoch)
        if origin is CLIENT:
            self._check_sequence(state, header)
        if state.txn_first_offset is not None and not header.is_transactional and not header.is_control:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {producer_id} has an open transaction in {self._partition}.",
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Check that the producer has no later epoch. Raises INVALID_PRODUCER_EPOCH."""
        state = self.producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            raise self._smaller_epoch(producer_id, epoch, state.epoch)

    def _smaller_epoch(self, producer_id: int, epoch: int, last_epoch: int) -> ApiError:
        return ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Producer epoch {epoch} of producer {producer_id} in {self._partition} is smaller than the last "
            f"seen producer epoch {last_epoch}.",
        )

    def _check_sequence(self, state: ProducerState, header: BatchHeader) -> None:
        self.verifications.check(header, is_unknown=not state.batches)
        sequence = header.base_sequence
        if state.epoch == NO_PRODUCER_EPOCH:
            # The state has no batch of this producer, so the producer may continue at any sequence.
            return
        if header.producer_epoch != state.epoch:
            # KIP-360: a newer epoch restarts at sequence 0.
            if sequence != 0:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Producer {header.producer_id} starts producer epoch {header.producer_epoch} in "
                    f"{self._partition} with sequence {sequence}, not 0. The current producer epoch is "
                    f"{state.epoch}.",
                )
            return
        last = state.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {sequence} of producer {header.producer_id} in {self._partition} does not follow "
                f"sequence {last}.",
            )

    def update(self, header: BatchHeader) -> None:
        """Apply a data batch that has its final offsets."""
        self.end_offset = header.next_offset
        if not header.has_producer_id or header.is_control:
            return
        state = self.producers.get(header.producer_id)
        if state is None:
            state = self.producers[header.producer_id] = ProducerState()
        state.set_epoch(header.producer_epoch)
        state.batches.append(BatchMetadata.of(header))
        state.last_timestamp = header.max_timestamp
        if header.is_transactional:
            self.verifications.complete(header)
        if header.is_transactional and state.txn_first_offset is None:
            state.txn_first_offset = header.base_offset
            self.ongoing[header.producer_id] = header.base_offset

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Check that a marker may be appended.

        With transaction version 2, a marker has a later epoch than the batches of its transaction. Raises
        ApiError INVALID_PRODUCER_EPOCH if the marker's epoch is too low, TRANSACTION_COORDINATOR_FENCED if a
        coordinator of a later epoch has written a marker, and UNKNOWN_SERVER_ERROR for an unknown transaction
        version, which only a follower may append. KIP-890, KIP-1228.
        """
        if producer_id < NO_PRODUCER_ID:
            # As in Kafka, a marker with such an id is accepted. No producer has this id.
            return
        state = self.producers.get(producer_id) or ProducerState()
        # If the epochs are equal and no transaction is open, the same marker is being written again.
        is_again = state.txn_first_offset is None or epoch == MAX_PRODUCER_EPOCH
        if epoch < state.epoch or (epoch == state.epoch and transaction_version >= 2 and not is_again):
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"A transaction marker with producer epoch {epoch} cannot end producer epoch {state.epoch} "
                f"of producer {producer_id} in {self._partition}.",
            )
        if transaction_version == UNKNOWN_TRANSACTION_VERSION:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if coordinator_epoch < state.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Coordinator epoch {coordinator_epoch} of a transaction marker of producer {producer_id} in "
                f"{self._partition} is smaller than the last seen coordinator epoch "
                f"{state.coordinator_epoch}.",
            )

    def update_from_marker(
        self, header: BatchHeader, buffer: Buffer, position: int
    ) -> CompletedTransaction | None:
        """Apply a control batch. Return the transaction that its commit or abort marker ends, or None."""
        self.end_offset = header.next_offset
        marker = next(iter(records(buffer, position, header)), None)
        if marker is None or not header.has_producer_id:
            return None
        _, kind = control_type(marker)
        if kind not in (ABORT, COMMIT) or marker.value is None or len(marker.value) < _MARKER.size:
            return None
        _, coordinator_epoch = _MARKER.unpack_from(marker.value, 0)
        self.verifications.complete(header)
        state = self.producers.get(header.producer_id)
        if state is None:
            state = self.producers[header.producer_id] = ProducerState()
        completed = None
        if state.txn_first_offset is not None:
            completed = CompletedTransaction(
                header.producer_id, state.txn_first_offset, header.base_offset, kind == ABORT
            )
            self.ongoing.pop(header.producer_id, None)
            if completed.is_aborted:
                stable_offset = min(self.ongoing.values(), default=header.last_offset + 1)
                self._aborted.append(
                    AbortedTxn(header.producer_id, completed.first_offset, header.last_offset, stable_offset)
                )
            self.unreplicated[completed.first_offset] = completed
        state.set_epoch(header.producer_epoch)
        state.coordinator_epoch = coordinator_epoch
        state.txn_first_offset = None
        state.last_timestamp = marker.timestamp
        return completed

    @property
    def has_aborted_txns(self) -> bool:
        """Whether `take_aborted_txns` would return a transaction."""
        return bool(self._aborted)

    def take_aborted_txns(self) -> list[AbortedTxn]:
        """Return the transactions whose abort markers were applied since the last call of this method."""
        aborted, self._aborted = self._aborted, []
        return aborted

    # --- transactions

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Return whether the oldest open transaction has had no new records for too long (KIP-664).

        `max_timeout_ms` is transaction.max.timeout.ms, after which the coordinator should have aborted it.
        """
        if not self.ongoing:
            return False
        last_ms = self.producers[min(self.ongoing, key=self.ongoing.__getitem__)].last_timestamp
        return last_ms > 0 and now_ms - last_ms > max_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction in this epoch."""
        state = self.producers.get(producer_id)
        return state is not None and state.txn_first_offset is not None and state.epoch == epoch

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open or in `unreplicated`, or None."""
        if not self.ongoing and not self.unreplicated:
            return None
        return min([*self.ongoing.values(), *self.unreplicated])

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the high watermark."""
        if not self.unreplicated:
            return
        for first_offset in [
            first for first, completed in self.unreplicated.items() if completed.last_offset < high_watermark
        ]:
            del self.unreplicated[first_offset]

    # --- expiration and truncation

    def expire(self, now_ms: int) -> None:
        """Remove producers without an open transaction that were idle for `producer.id.expiration.ms`."""
        idle = [
            producer_id
            for producer_id, state in self.producers.items()
            if state.txn_first_offset is None and now_ms - state.last_timestamp >= self.expiration_ms
        ]
        for producer_id in idle:
            del self.producers[producer_id]

    def clear(self) -> None:
        """Remove the state of all producers and transactions, before it is loaded or replayed."""
        self.producers.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.end_offset = 0

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Apply a new log start offset. The state of all producers is kept.

        An open transaction that started before the offset may have later records. If it is aborted, its entry
        in the transaction index needs its first offset.
        """
        self.on_high_watermark_updated(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all state and all snapshots, for an empty log that continues at `offset`."""
        self.clear()
        self.end_offset = offset
        for snapshot in list(self._known_snapshots()):
            self._remove_snapshot(snapshot)

    def rebuild(
        self, segments: Sequence[SegmentLike], log_start_offset: int, end_offset: int, now_ms: int
    ) -> None:
        """Rebuild the state at `end_offset` from the newest usable snapshot and the batches after it.

        Snapshots after `end_offset` are removed. Raises StorageError.
        """
        from_offset = self.load(log_start_offset, end_offset, now_ms)
        for number, segment in enumerate(segments):
            after = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
            if after <= from_offset or segment.base_offset >= end_offset:
                continue
            position = segment.position_before(from_offset) if from_offset > segment.base_offset else 0
            self._replay_batches(segment.file, position, segment.size_bytes, from_offset, end_offset)
        self.end_offset = end_offset
        # The segments' transaction indexes already have these transactions. A consumer that received an
        # aborted transaction twice would also skip records after its marker.
        self._aborted.clear()

    def _replay_batches(
        self, file: DiskFile, position: int, end: int, from_offset: int, end_offset: int
    ) -> None:
        """Apply the batches of a file between two offsets. Only headers and control batches are read.

        `position` and `end` are positions in the file.
        """
        while position + HEADER_BYTES <= end:
            header = read_header(file.read_at(position, HEADER_BYTES))
            if header.base_offset >= end_offset:
                return
            if header.last_offset >= from_offset:
                if header.is_control and header.has_producer_id:
                    self.update_from_marker(header, file.read_at(position, header.size_bytes), 0)
                else:
                    self.update(header)
            position += header.size_bytes

    # --- snapshot files

    def find_snapshots(self, names: Iterable[str] | None = None) -> list[int]:
        """List the snapshot files again, and return their offsets, oldest first. Raises StorageError.

        `names` are the file names in the directory, if the caller has already listed it.
        """
        self._snapshots = sorted(
            int(name[: -len(SNAPSHOT_SUFFIX)])
            for name in (self._disk.names(self.directory) if names is None else names)
            if name.endswith(SNAPSHOT_SUFFIX) and name[: -len(SNAPSHOT_SUFFIX)].isdigit()
        )
        return list(self._snapshots)

    @property
    def snapshots(self) -> list[int]:
        """The offsets of the snapshot files, oldest first."""
        return list(self._known_snapshots())

    def _known_snapshots(self) -> list[int]:
        if self._snapshots is None:
            self.find_snapshots()
        assert self._snapshots is not None
        return self._snapshots

    def load(self, log_start_offset: int, end_offset: int, now_ms: int) -> int:
        """Load the newest snapshot in an offset range; return the offset from which to replay batches.

        Snapshots after `end_offset` and corrupt snapshots are removed. Raises StorageError.
        """
        for offset in sorted(self._known_snapshots(), reverse=True):
            if offset > end_offset:
                self._remove_snapshot(offset)
                continue
            if offset <= log_start_offset:
                # The snapshot covers only records before the log start offset.
                break
            try:
                self.load_snapshot(self._disk.read(self.snapshot_path(offset)), offset, now_ms=now_ms)
            except CorruptSnapshot as error:
                path = self.snapshot_path(offset)
                self._logger.warning(
                    "Deleting corrupt producer snapshot %s, trying older snapshots and then the log: %s",
                    path,
                    error,
                )
                self._remove_snapshot(offset)
                continue
            return offset
        self.clear()
        self.end_offset = log_start_offset
        return log_start_offset

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{offset:020d}{SNAPSHOT_SUFFIX}"

    def take_snapshot(self) -> None:
        """Write a snapshot of the state at `end_offset`, unless the offset is 0 or the snapshot exists.

        The file is not synced here: the next flush syncs `unsynced_snapshots`. Raises StorageError.
        """
        offset = self.end_offset
        snapshots = self._known_snapshots()
        if not offset or offset in snapshots:
            return
        self._disk.write(self.snapshot_path(offset), encode_snapshot(self.producers), sync=False)
        snapshots.append(offset)
        self._unsynced[offset] = object()

    @property
    def unsynced_snapshots(self) -> Mapping[int, object]:
        """The snapshot files that may not be durable, by offset."""
        return dict(self._unsynced)

    def snapshots_synced(self, synced: Mapping[int, object]) -> None:
        """Record that these `unsynced_snapshots` are durable now, unless a file was written again."""
        for offset, file in synced.items():
            if self._unsynced.get(offset) is file:
                del self._unsynced[offset]

    def forget_snapshot(self, offset: int) -> str | None:
        """Forget the snapshot at `offset`. Return its path, for the caller to delete, or None if missing."""
        snapshots = self._known_snapshots()
        if offset not in snapshots:
            return None
        snapshots.remove(offset)
        self._unsynced.pop(offset, None)
        return self.snapshot_path(offset)

    def _remove_snapshot(self, offset: int) -> None:
        path = self.forget_snapshot(offset)
        if path is not None:
            self._disk.remove(path)

    def load_snapshot(self, content: bytes, offset: int, *, now_ms: int) -> None:
        """Replace the state by the state in a snapshot that was taken at `offset`. Raises CorruptSnapshot.

        Expired producers are not loaded.
        """
        loaded = list(read_snapshot(content))
        self.clear()
        self.end_offset = offset
        for producer_id, state in loaded:
            if state.txn_first_offset is None and now_ms - state.last_timestamp >= self.expiration_ms:
                continue
            self.producers[producer_id] = state
            if state.txn_first_offset is not None:
                self.ongoing[producer_id] = state.txn_first_offset
