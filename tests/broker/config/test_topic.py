"""What a topic can be told."""

from __future__ import annotations

import pytest

from kwire.broker.config import ConfigError, load
from kwire.broker.config.topic import check_topic


@pytest.mark.parametrize(
    ("overrides", "said"),
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
def test_what_a_topic_cannot_be_told(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_topic(load(None, {}, {}), overrides)
