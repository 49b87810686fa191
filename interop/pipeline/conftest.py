"""Fixtures that several pipeline scenarios use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.brokers import Broker


@pytest.fixture(scope="module")
def broker(kind: type[Broker]) -> Iterator[Broker]:
    """Start a broker whose retention keeps records with old timestamps."""
    broker = kind({"log.retention.ms": "-1"})
    try:
        broker.start()
        yield broker
    finally:
        broker.discard()
