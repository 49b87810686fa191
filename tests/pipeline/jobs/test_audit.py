"""The configuration of an audit."""

from __future__ import annotations

import pytest

from kwire.pipeline.config import ConfigError, JobConfig
from kwire.pipeline.jobs.audit import AuditConfig


def window(told: str) -> str:
    side = {"format": "kwire", "options": {"path": "/srv/data", "subscribe": "flights"}}
    return AuditConfig.of(JobConfig({"audit": {"window": told}, "left": side, "right": side})).window


@pytest.mark.parametrize(
    "told",
    ["1 hour", "30 days", "1 millisecond", "interval 1 week 2 Days", "90  SECONDS", "1 hour 30 minutes"],
)
def test_a_window(told: str) -> None:
    assert window(told) == told


@pytest.mark.parametrize(
    "told", ["1 fortnight", "1 month", "-1 hour", "1.5 hours", "hour", "1h", "", "1 hour and"]
)
def test_an_invalid_window_is_named(told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        window(told)
    assert str(caught.value) == f'audit.window must be an interval like "1 hour" or "7 days", not {told!r}'


@pytest.mark.parametrize("told", ["0 hours", "0 days 0 seconds", "600000 weeks", "9" * 30 + " weeks"])
def test_a_window_must_be_positive_and_bounded(told: str) -> None:
    with pytest.raises(ConfigError, match=r"^audit\.window must be positive and at most 10,000 years"):
        window(told)
