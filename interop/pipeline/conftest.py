"""What the scenarios of the pipeline start from, where they have nothing of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.brokers import Broker


@pytest.fixture(scope="module")
def broker(kind: type[Broker]) -> Iterator[Broker]:
    """A broker whose records are as old as their times say, and stay."""
    broker = kind({"log.retention.ms": "-1"})
    try:
        broker.start()
        yield broker
    finally:
        broker.discard()
