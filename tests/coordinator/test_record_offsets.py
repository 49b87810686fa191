"""The offsets of a coordinator's records: in replay, of a written result, and for deleting old records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kwire.broker.node.state_topic import StateTopic
from kwire.coordinator.groups.record_serde import record_types, stored_records
from kwire.coordinator.runtime import CoordinatorRuntime, CoordinatorShard, CoordinatorType
from kwire.coordinator.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    DecodedRecord,
    ignore_outcome,
)
from kwire.testing.virtual_host import VirtualHost
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.groups import OffsetCommitKey, OffsetCommitValue
from kwire.wire.schema import Message
from tests.coordinator.coordinator_harness import FakePorts, Reply
from tests.node_harness import NodeHarness

TOPIC = "state"


class RecordingMachine:
    """A state machine whose state are the replayed records."""

    def __init__(self, _shard: CoordinatorShard[RecordingMachine]) -> None:
        self.replayed: list[tuple[str, int]] = []
        """The name and the offset of each record."""
        self.transactional: list[tuple[str, int]] = []

    @staticmethod
    def decode_batch(data: memoryview) -> Iterator[DecodedRecord]:
        return stored_records(record_types(()), data)

    def replay(self, key: Message, _value: Message | None, offset: int) -> None:
        assert isinstance(key, OffsetCommitKey)
        self.replayed.append((key.group, offset))

    def replay_transactional(self, key: Message, _value: Message | None, offset: int) -> None:
        assert isinstance(key, OffsetCommitKey)
        self.transactional.append((key.group, offset))

    def record_pending(self, key: Message) -> None:
        pass

    def record_committed(self, key: Message) -> None:
        pass

    def transactional_record_written(self, key: Message) -> None:
        pass

    def on_loaded(self) -> None:
        pass

    def on_unloaded(self, code: ErrorCode) -> None:
        pass


def record(name: str, *, applied: bool = False) -> CoordinatorRecord:
    key = OffsetCommitKey(group=name, topic="t", partition=0)
    return CoordinatorRecord(
        key, OffsetCommitValue(offset=0, metadata="", commit_timestamp=0), applied=applied
    )


def coordinator_type(*, batches_commands: bool) -> CoordinatorType[RecordingMachine]:
    return CoordinatorType(TOPIC, RecordingMachine, 5_000, batches_commands=batches_commands)


class Runtime:
    """A runtime whose only partition is in the log of a node."""

    def __init__(self, *, batches_commands: bool) -> None:
        self.node_harness = NodeHarness()
        self.node_harness.create(TOPIC)
        self.ports = StateTopic(self.node_harness.node, TOPIC)
        kind = coordinator_type(batches_commands=batches_commands)
        self.runtime = CoordinatorRuntime(kind, self.node_harness.host, self.ports)
        self.runtime.elected(0, 0)

    @property
    def shard(self) -> CoordinatorShard[RecordingMachine]:
        return self.runtime.shard_for("any")

    @property
    def log(self) -> Any:
        partition = self.node_harness.node.partition(TOPIC, 0)
        assert partition is not None
        return partition.log

    def end_turn(self) -> None:
        self.node_harness.host.run_pending()
        self.node_harness.node.end_turn()
        self.node_harness.host.run_pending()

    def reload(self) -> list[tuple[str, int]]:
        """Load the partition again, and return the replayed records."""
        self.runtime.resigned(0, 0)
        self.runtime.elected(0, 0)
        self.end_turn()
        return self.shard.machine.replayed


@pytest.mark.parametrize("batches_commands", [False, True])
def test_replay_gets_the_offset_of_each_record(*, batches_commands: bool) -> None:
    runtime = Runtime(batches_commands=batches_commands)
    shard = runtime.shard
    shard.execute(CoordinatorResult([record("a"), record("b", applied=True), record("c")]))
    shard.execute(CoordinatorResult([record("held")], producer=(7, 0)))
    shard.execute(CoordinatorResult([record("d")]))
    runtime.end_turn()
    shard.execute(CoordinatorResult([record("e")]))
    assert shard.machine.replayed == [("a", 0), ("c", 2), ("d", 4), ("e", 5)]
    shard.on_transaction_completed(7, commit=True)
    assert shard.machine.transactional == [("held", 3)]
    runtime.end_turn()
    assert runtime.reload() == [("a", 0), ("b", 1), ("c", 2), ("d", 4), ("e", 5)]


@pytest.mark.parametrize("batches_commands", [False, True])
def test_result_reports_the_offset_of_its_last_record_before_it_is_committed(
    *, batches_commands: bool
) -> None:
    runtime = Runtime(batches_commands=batches_commands)
    events: list[object] = []

    def result(*records: CoordinatorRecord) -> CoordinatorResult:
        return CoordinatorResult(records, lambda error: events.append(error), written=events.append)

    runtime.shard.execute(result(record("a"), record("b", applied=True)))
    runtime.shard.execute(result(record("c", applied=True)))
    runtime.end_turn()
    assert events == [1, 2, None, None]
    runtime.shard.execute(result())
    assert events[4:] == [None]


def test_result_of_a_refused_append_reports_no_offset() -> None:
    host = VirtualHost(seed=1)
    ports = FakePorts(host)
    shard = CoordinatorShard(0, 0, coordinator_type(batches_commands=False), host, ports)
    ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    written, committed = Reply(), Reply()
    shard.execute(CoordinatorResult([record("a")], committed, written=written))
    assert written.pending
    assert committed.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("batches_commands", [False, True])
def test_deletion_below_an_offset_moves_the_log_start_offset(*, batches_commands: bool) -> None:
    runtime = Runtime(batches_commands=batches_commands)
    for name in "abc":
        runtime.shard.execute(CoordinatorResult([record(name)]))
        runtime.end_turn()
    runtime.shard.delete_records_before(2)
    assert runtime.log.log_start_offset == 2
    assert runtime.reload() == [("c", 2)]
    runtime.shard.delete_records_before(1)
    assert runtime.log.log_start_offset == 2
    runtime.shard.execute(CoordinatorResult([record("d")]))
    assert runtime.shard.machine.replayed == [("c", 2), ("d", 3)]


def test_deletion_keeps_records_that_are_not_committed() -> None:
    runtime = Runtime(batches_commands=False)
    runtime.shard.execute(CoordinatorResult([record("a")]))
    runtime.end_turn()
    runtime.shard.execute(CoordinatorResult([record("b")]))
    runtime.shard.delete_records_before(2)
    assert runtime.log.log_start_offset == 1
    runtime.end_turn()
    assert runtime.reload() == [("b", 1)]


def test_deletion_fails_without_the_leadership() -> None:
    runtime = Runtime(batches_commands=False)
    shard = runtime.shard
    partition = runtime.node_harness.node.partition(TOPIC, 0)
    assert partition is not None
    partition.remove(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(ApiError):
        shard.delete_records_before(1)


def test_batch_of_another_producer_in_the_same_turn_reloads_the_shard() -> None:
    """The records were replayed with offsets that the other batch has taken."""
    host = VirtualHost(seed=1)
    ports = FakePorts(host)
    kind = coordinator_type(batches_commands=True)
    runtime = CoordinatorRuntime(kind, host, ports)
    ports.partitions = 1
    runtime.elected(0, 0)
    committed, written = Reply(), Reply()
    runtime.shard_for("any").execute(CoordinatorResult([record("a")], committed, written=written))
    ports.append(0, batch.build([(0, None, None, ())]), ignore_outcome)
    host.run_pending()
    assert committed.value.code is ErrorCode.NOT_COORDINATOR
    assert written.pending
    assert runtime.shard_for("any").machine.replayed == [("a", 1)]
