"""Message rates of partitions, from end offsets that pages have seen: there is no background sampling."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from kwire.wire.primitives import TopicPartition

MAX_SAMPLES: Final = 16
MAX_PARTITIONS: Final = 20_000
MIN_SECONDS: Final = 1.0
MAX_AGE_SECONDS: Final = 300.0


class Rates:
    """Recent end offsets of partitions. The class is thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Use a clock that returns seconds."""
        self._clock = clock
        self._samples: deque[tuple[float, dict[TopicPartition, int]]] = deque(maxlen=MAX_SAMPLES)
        self._changing = threading.Lock()

    def update(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Add a sample of end offsets, and return messages per second since each partition's oldest sample.

        The result has only partitions with a sample that is at least MIN_SECONDS old.
        """
        now = self._clock()
        with self._changing:
            while self._samples and now - self._samples[0][0] > MAX_AGE_SECONDS:
                self._samples.popleft()
            rates: dict[TopicPartition, float] = {}
            for at, before in self._samples:  # oldest first, for the longest period
                if now - at < MIN_SECONDS:
                    break
                for partition in ends.keys() & before.keys() - rates.keys():
                    rates[partition] = max(0, ends[partition] - before[partition]) / (now - at)
            if not self._samples or now - self._samples[-1][0] >= MIN_SECONDS:
                self._samples.append((now, {}))
            newest = self._samples[-1][1]
            if len(newest) + len(ends) <= MAX_PARTITIONS:
                for partition, end in ends.items():
                    newest.setdefault(partition, end)
        return rates
