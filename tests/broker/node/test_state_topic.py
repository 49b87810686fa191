"""The partition of a coordinator, as the coordinator loads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kwire.broker.node.node import Node
from kwire.broker.node.state_topic import StateTopic
from kwire.broker.replication.roles import Role
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import read_header
from tests.broker.storage.log_harness import LogHarness


def test_batches_appended_during_the_load_are_loaded_too() -> None:
    harness = LogHarness(MemoryDisk())
    log = harness.open()
    partition = SimpleNamespace(log=log, role=Role.LEADER)
    image = SimpleNamespace(topics={})
    node: Any = SimpleNamespace(partition=lambda _topic, _index: partition, image=image)
    harness.append(log, b"a")
    harness.append(log, b"b")
    log.high_watermark = 1  # as known to a new leader
    batches = StateTopic(cast(Node, node), "__consumer_offsets").stored_batches(0)
    offsets = [read_header(next(batches)).base_offset]
    harness.append(log, b"c")
    offsets += [read_header(data).base_offset for data in batches]
    assert offsets == [0, 1, 2]
