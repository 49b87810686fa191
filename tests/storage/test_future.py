"""A copy of a log on its way to another directory: the files that it leaves."""

from __future__ import annotations

import random

import pytest

from broker.storage.future import FutureLog
from broker.storage.log_config import LogConfig
from broker.storage.log_manager import LogManager
from broker.testing.memory_disk import MemoryDisk
from kwire.batch import build
from kwire.primitives import uuid_from_text

TOPIC_ID = uuid_from_text("AAAAAAAAAAAAAAAAAAAABw")


@pytest.mark.parametrize("index_interval_bytes", [0, 1024, 4096])
@pytest.mark.parametrize("largest_value_bytes", [20, 3000])
def test_its_files_are_those_of_the_source(index_interval_bytes: int, largest_value_bytes: int) -> None:
    """Every entry of the indexes is for one batch, as it was appended: kafka-dump-log verifies that."""
    rng = random.Random(largest_value_bytes)
    disk = MemoryDisk()
    manager = LogManager(disk, ["/one", "/two"], rng=rng)
    manager.open(0)
    config = LogConfig(index_interval_bytes=index_interval_bytes, segment_bytes=64 * 1024)
    source = manager.create("t", 0, TOPIC_ID, config, 0)
    target = manager.directory("/two")
    assert target is not None
    for number in range(600):
        value = bytes(rng.randrange(largest_value_bytes))
        batch = build([(1000 + number * 7 % 50, None, value, []) for _ in range(rng.randrange(1, 4))])
        source.append(memoryview(batch), leader_epoch=0, now_ms=0)
        source.commit()
    source.high_watermark = source.log_end_offset
    source.close()
    written = disk.tree("/one/t-0")
    FutureLog(manager, source, target, 0).take_the_place(0).close()
    copied = disk.tree("/two/t-0")
    assert [name for name in written if name.endswith(".log")]
    assert copied == written
