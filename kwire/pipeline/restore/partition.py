"""Writing of a restored partition's log with the broker's own storage code."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.recovery import open_log
from kwire.pipeline.archive.reading import Row
from kwire.pipeline.restore.batches import Limits, batches
from kwire.wire.batch import read_header
from kwire.wire.primitives import Uuid

COMMIT_BYTES: Final = 4 << 20
_FOREVER: Final = (1 << 63) - 1


class RestoredLog(NamedTuple):
    """The log of a restored partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    records: int
    size_bytes: int


def write(
    directory: Path,
    topic: str,
    partition: int,
    topic_id: Uuid,
    rows: Iterable[Row],
    span: tuple[int, int],
    *,
    segment_bytes: int,
    limits: Limits = Limits(),  # noqa: B008
) -> RestoredLog:
    """Write a new log to a data directory, and make the log durable.

    `span` has the log's start and end offsets. Without rows, the log also starts at the end offset. Raises
    ValueError if rows are outside the span or not in offset order. Also raises StorageError or ApiError.
    """
    start, end = span
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        # All records were deleted, so the new log starts at the end offset of the old log.
        start = end
    config = LogConfig(segment_bytes=segment_bytes, segment_ms=_FOREVER)
    disk = RealDisk()
    log = open_log(
        disk,
        f"{directory}/{topic}-{partition}",
        topic,
        partition,
        config,
        clean=True,
        delayed_deletion=DelayedDeletion(disk),
        rng=random.Random(0),
        now_ms=time.time_ns() // 1_000_000,
        on_failure=lambda log, error: None,
        log_start_offset=start,
        topic_id=topic_id,
    )
    records = staged_bytes = 0
    for batch in batches(chain([first], rows) if first is not None else (), start, end, limits):
        log.append_stored(memoryview(batch))
        records += read_header(batch).records_count
        staged_bytes += len(batch)
        if staged_bytes >= COMMIT_BYTES:
            log.commit()
            staged_bytes = 0
    log.commit()
    log.flush()
    log.close()
    return RestoredLog(topic, partition, log.log_start_offset, log.log_end_offset, records, log.size_bytes)
