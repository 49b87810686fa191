"""Counts and durations of the verifications of transactional appends (KIP-890)."""

from __future__ import annotations

from collections import deque
from typing import Final

RESERVOIR_SIZE: Final = 1_000
"""The number of durations that quantiles are computed from."""


class VerificationMetrics:
    """The verifications of one broker since it started, with and without a request to another broker."""

    def __init__(self) -> None:
        self.count = self.failures = 0
        self.recent_ms: deque[int] = deque(maxlen=RESERVOIR_SIZE)
        """The durations of the last verifications in ms."""

    def record(self, duration_ms: int, *, is_failure: bool) -> None:
        """Count a verification."""
        self.count += 1
        self.failures += is_failure
        self.recent_ms.append(duration_ms)
