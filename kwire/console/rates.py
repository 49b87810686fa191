"""How fast partitions grow, by what has been seen of their ends: nothing is counted while nobody looks."""

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
    """Ends of partitions, as pages have seen them lately. For several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, of whatever beginning."""
        self._clock = clock
        self._samples: deque[tuple[float, dict[TopicPartition, int]]] = deque(maxlen=MAX_SAMPLES)
        self._changing = threading.Lock()

    def update(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Remember where partitions end now. Records a second of those whose ends were seen before."""
        now = self._clock()
        with self._changing:
            while self._samples and now - self._samples[0][0] > MAX_AGE_SECONDS:
                self._samples.popleft()
            rates: dict[TopicPartition, float] = {}
            for at, before in self._samples:  # the oldest first: over the longest time
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
