"""One shared broker; each test uses its own topic names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kwire.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": 2, "log.retention.hours": -1}) as running:
        yield running
