"""Out-of-order records: how far a timestamp is behind the maximum of the partition's previous records.

The input is the columns of a task, in offset order. The only state is the latest timestamp, which is reset
when the partition changes or offsets decrease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]

NO_TIMESTAMP_MS: Final = -1
"""The timestamp of a record that has no timestamp."""
NOTHING: Final = np.iinfo(np.int64).min


def behind_ms(columns: Iterable[tuple[Longs, Longs, Longs]]) -> Iterator[Longs]:
    """Yield how many ms each timestamp is before the maximum timestamp of the previous records, at least 0.

    The input is columns of partitions, offsets and timestamps in ms.
    """
    last_partition, last_offset, latest = -1, -1, int(NOTHING)
    for partitions, offsets, times_ms in columns:
        count = len(offsets)
        behind = np.zeros(count, dtype=np.int64)
        if count:
            resets = np.flatnonzero((np.diff(partitions) != 0) | (np.diff(offsets) < 0)) + 1
            starts = [0, *resets.tolist(), count]
            if partitions[0] != last_partition or offsets[0] < last_offset:
                latest = int(NOTHING)
            for start, end in pairwise(starts):
                if start:
                    latest = int(NOTHING)
                own = times_ms[start:end]
                before = np.maximum.accumulate(np.concatenate(([latest], own)))
                late = (own < before[:-1]) & (own != NO_TIMESTAMP_MS)
                behind[start:end][late] = before[:-1][late] - own[late]
                latest = int(before[-1])
            last_partition, last_offset = int(partitions[-1]), int(offsets[-1])
        yield behind


def of_arrow(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Apply `behind_ms` to Arrow arrays. Spark derives the calling convention from the annotations."""

    def columns() -> Iterator[tuple[Longs, Longs, Longs]]:
        for partition, offset, time_ms in batches:
            yield (
                partition.to_numpy(zero_copy_only=False).astype(np.int64),
                offset.to_numpy(zero_copy_only=False).astype(np.int64),
                time_ms.fill_null(NO_TIMESTAMP_MS).to_numpy(zero_copy_only=False).astype(np.int64),
            )

    for behind in behind_ms(columns()):
        yield pa.array(behind)
