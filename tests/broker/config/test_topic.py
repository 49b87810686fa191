"""Validation of topic settings."""

from __future__ import annotations

import pytest

from kwire.broker.config import ConfigError, load
from kwire.broker.config.topic import check_topic


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"no.such": "1"}, "Unknown topic config name: no.such"),
        (
            {"retention.ms": "soon"},
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        ({"segment.bytes": "200"}, "Value must be at least 1048576"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "conflict topic config setting"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
    ],
)
def test_invalid_topic_settings_are_refused(overrides: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_topic(load(None, {}, {}), overrides)
