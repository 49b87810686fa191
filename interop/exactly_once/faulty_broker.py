"""kwire with a planted fault: ``python -m interop.exactly_once.faulty_broker FAULT serve PROPERTIES``.

This process first replaces methods of the broker's classes, which plants the fault, and then starts the
broker. `faults` describes each fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any

from kwire.broker.api.records import produce
from kwire.broker.node.transaction_ports import NodeTransactionPorts
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.producer_snapshot import BatchMetadata, ProducerState
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.broker.storage.log.transaction_verification import Verifications, VerificationState
from kwire.cli import main as cli
from kwire.coordinator.state_machine import CoordinatorResult
from kwire.coordinator.transactions.state_machine import (
    ProducerDone,
    ProducerIdAndEpoch,
    TransactionMarker,
    TransactionStateMachine,
)
from kwire.coordinator.transactions.transaction_metadata import TransactionMetadata, TransactionState
from kwire.host.host import Host
from kwire.wire.batch import NO_PRODUCER_EPOCH, BatchHeader
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.transactions import TransactionLogValue
from kwire.wire.schema import Message

SLOW_MARKER_MS = 150
SLOW_RESPONSE_MS = 60
TOO_EARLY_MS = 500
TRUNCATED_BYTES = 900
TOPIC_PREFIX = "exactly-once-"

Written = Callable[[ApiError | None], None]
write_marker = NodeTransactionPorts.write_marker


def slow_markers() -> None:
    def write(self: NodeTransactionPorts, *arguments: Any) -> None:
        host: Host = self._node.host
        host.schedule(SLOW_MARKER_MS, lambda: write_marker(self, *arguments))

    setattr(NodeTransactionPorts, "write_marker", write)  # noqa: B010


def slow_responses() -> None:
    finish = produce._Produce.maybe_finish

    def maybe_finish(self: Any) -> None:
        if self.all_sent and not self._waiting:
            self._node.host.schedule(SLOW_RESPONSE_MS, lambda: finish(self))

    setattr(produce._Produce, "maybe_finish", maybe_finish)  # noqa: B010


def delays_only() -> None:
    slow_markers()
    slow_responses()


def marker_skips_a_partition() -> None:
    calls = count()

    def write(
        self: NodeTransactionPorts,
        partition: TopicPartition,
        txn_marker: TransactionMarker,
        epoch: int,
        done: Written,
    ) -> None:
        if partition[1] == 1 and partition[0].startswith("exactly") and next(calls) % 4 == 3:
            self._node.host.call_soon(lambda: done(None))
        else:
            write_marker(self, partition, txn_marker, epoch, done)

    setattr(NodeTransactionPorts, "write_marker", write)  # noqa: B010


def marker_of_the_wrong_kind() -> None:
    calls = count()

    def write(
        self: NodeTransactionPorts,
        partition: TopicPartition,
        txn_marker: TransactionMarker,
        epoch: int,
        done: Written,
    ) -> None:
        if partition[1] == 1 and not txn_marker.commit and next(calls) % 3 == 2:
            txn_marker = txn_marker._replace(commit=True)
        write_marker(self, partition, txn_marker, epoch, done)

    setattr(NodeTransactionPorts, "write_marker", write)  # noqa: B010


def commit_acknowledged_too_early() -> None:
    decide = TransactionStateMachine.end

    def end(
        self: TransactionStateMachine,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        done: ProducerDone,
        **other: Any,
    ) -> CoordinatorResult:
        is_acknowledged = False

        def acknowledge(outcome: ProducerIdAndEpoch | ApiError) -> None:
            if not is_acknowledged:
                done(outcome)

        result = decide(self, transactional_id, producer, commit=commit, done=acknowledge, **other)
        if not commit or not result.records:
            return result
        is_acknowledged = True
        after = self.transactions[transactional_id]
        done(ProducerIdAndEpoch(after.producer_id, after.producer_epoch))
        self._context.schedule(TOO_EARLY_MS, lambda: result)
        return CoordinatorResult()

    setattr(TransactionStateMachine, "end", end)  # noqa: B010


def prepared_commit_not_loaded() -> None:
    slow_markers()
    replay = TransactionStateMachine.replay

    def replay_others(
        self: TransactionStateMachine, key: Message, value: Message | None, offset: int
    ) -> None:
        if (
            isinstance(value, TransactionLogValue)
            and value.transaction_status == TransactionState.PREPARE_COMMIT
        ):
            return
        replay(self, key, value, offset)

    setattr(TransactionStateMachine, "replay", replay_others)  # noqa: B010


def prepared_not_resumed() -> None:
    slow_markers()
    setattr(TransactionStateMachine, "on_loaded", lambda self: None)  # noqa: B010


def timeouts_ignored() -> None:
    setattr(TransactionStateMachine, "abort_timed_out", lambda *_arguments: CoordinatorResult())  # noqa: B010


def aborted_not_indexed() -> None:
    take = ProducerStateManager.take_aborted_txns

    def take_some(self: ProducerStateManager) -> list[AbortedTxn]:
        return [aborted for aborted in take(self) if aborted.last_offset % 2]

    setattr(ProducerStateManager, "take_aborted_txns", take_some)  # noqa: B010


def stable_offset_too_high() -> None:
    setattr(Log, "last_stable_offset", property(lambda self: self.high_watermark))  # noqa: B010


def _at_opening(forget: Callable[[ProducerStateManager, ProducerState], None]) -> None:
    opened = Log.__init__

    def init(self: Log, *arguments: Any, **named: Any) -> None:
        opened(self, *arguments, **named)
        for state in self.producers.producers.values():
            forget(self.producers, state)

    setattr(Log, "__init__", init)  # noqa: B010


def producers_forgotten() -> None:
    slow_responses()

    def forget(_: ProducerStateManager, state: ProducerState) -> None:
        state.set_epoch(NO_PRODUCER_EPOCH)

    _at_opening(forget)


def open_transactions_forgotten() -> None:
    def forget(producers: ProducerStateManager, state: ProducerState) -> None:
        state.txn_first_offset = None
        producers.ongoing.clear()

    _at_opening(forget)


def duplicates_accepted() -> None:
    slow_responses()
    check = ProducerStateManager.check

    def check_rest(self: ProducerStateManager, header: BatchHeader, **named: Any) -> BatchMetadata | None:
        check(self, header, **named)
        return None

    setattr(ProducerStateManager, "check", check_rest)  # noqa: B010


def no_fencing() -> None:
    check, begin = ProducerStateManager.check, ProducerStateManager.begin_verification
    decide = TransactionStateMachine.end

    def check_newer(self: ProducerStateManager, header: BatchHeader, **named: Any) -> BatchMetadata | None:
        state = self.producers.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return None
        return check(self, header, **named)

    def of_any_epoch(
        self: TransactionStateMachine, transactional_id: str, producer: ProducerIdAndEpoch
    ) -> TransactionMetadata:
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer.producer_id:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    def end(
        self: TransactionStateMachine, transactional_id: str, producer: ProducerIdAndEpoch, **other: Any
    ) -> CoordinatorResult:
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.state is TransactionState.ONGOING:
            producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        return decide(self, transactional_id, producer, **other)

    def begin_newer(
        self: ProducerStateManager, producer_id: int, epoch: int, sequence: int, **named: Any
    ) -> VerificationState:
        state = self.producers.get(producer_id)
        if state is None or epoch >= state.epoch:
            return begin(self, producer_id, epoch, sequence, **named)
        return VerificationState(epoch, sequence, **named)

    setattr(ProducerStateManager, "check", check_newer)  # noqa: B010
    setattr(ProducerStateManager, "begin_verification", begin_newer)  # noqa: B010
    setattr(Verifications, "is_current", lambda *_arguments: True)  # noqa: B010
    setattr(TransactionStateMachine, "_checked_transaction", of_any_epoch)  # noqa: B010
    setattr(TransactionStateMachine, "end", end)  # noqa: B010


def tail_lost(properties: Collection[str]) -> None:
    directory = next(line.partition("=")[2] for line in properties if line.startswith("log.dirs="))
    for partition in Path(directory).glob(f"{TOPIC_PREFIX}*"):
        newest = max(partition.glob("*.log"), default=None)
        if newest is not None and newest.stat().st_size > TRUNCATED_BYTES:
            with newest.open("r+b") as file:
                file.truncate(newest.stat().st_size - TRUNCATED_BYTES)


PLANT: dict[str, Callable[[], None]] = {
    planted.__name__.replace("_", "-"): planted
    for planted in (
        marker_skips_a_partition,
        marker_of_the_wrong_kind,
        commit_acknowledged_too_early,
        prepared_commit_not_loaded,
        prepared_not_resumed,
        timeouts_ignored,
        aborted_not_indexed,
        stable_offset_too_high,
        producers_forgotten,
        open_transactions_forgotten,
        duplicates_accepted,
        no_fencing,
        delays_only,
    )
}


def main(fault: str, *arguments: str) -> int:
    if fault == "tail-lost":
        tail_lost(Path(arguments[-1]).read_text().splitlines())
    else:
        PLANT[fault]()
    return cli.main(list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
