"""A fresh coordinator for each script."""

from __future__ import annotations

import pytest

from tests.coordinator.scripting import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
