"""Differences from Apache Kafka that are meant: (scenario, path, reason), the first two as shell patterns.

The list is short and each entry says why. An entry that no longer matches anything fails the run of
the whole suite, so the list can only be true.
"""

from __future__ import annotations

KNOWN: list[tuple[str, str, str]] = []
