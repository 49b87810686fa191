"""Fixtures for tests of the group coordinator."""

from __future__ import annotations

import pytest

from tests.coordinator.coordinator_harness import CoordinatorHarness


@pytest.fixture
def harness() -> CoordinatorHarness:
    return CoordinatorHarness()
