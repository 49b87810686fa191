"""Group settings and their bounds. KIP-848, KIP-932, KIP-1071."""

from __future__ import annotations

import pytest

from kwire.broker.config import ConfigError, load
from kwire.broker.config.group import GroupConfigs, check_group


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"no.such": "1"}, "Unknown group config name"),
        ({"consumer.session.timeout.ms": "1"}, "must be greater than or equal to"),
        ({"consumer.session.timeout.ms": "99999999"}, "must be less than or equal to"),
        (
            {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "x"},
            "Invalid value x for configuration consumer.heartbeat.interval.ms",
        ),
        (
            {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "1"},
            "consumer.heartbeat.interval.ms must be greater",
        ),
        ({"streams.num.standby.replicas": "3"}, "group.streams.max.standby.replicas"),
        ({"share.auto.offset.reset": "by_duration:PT"}, "must be either 'earliest', 'latest' or"),
        ({"share.auto.offset.reset": "by_duration:-PT1S"}, "must be either 'earliest', 'latest' or"),
    ],
)
def test_invalid_group_settings_are_refused(overrides: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_group(load(None, {}, {}), overrides)


@pytest.mark.parametrize(
    "text", ["earliest", "by_duration:P1D", "by_duration:pt1h-30m", "by_duration:-PT-1.5S"]
)
def test_share_auto_offset_reset_accepts_durations(text: str) -> None:
    check_group(load(None, {}, {}), {"share.auto.offset.reset": text})


def test_group_settings_apply_within_the_bounds_of_the_broker() -> None:
    broker = load(
        None,
        {},
        {
            "group.consumer.max.session.timeout.ms": "58000",
            "group.consumer.heartbeat.interval.ms": "6000",
        },
    )
    set_for = {"a": {"consumer.session.timeout.ms": "50000"}, "b": {"consumer.session.timeout.ms": "59000"}}
    groups = GroupConfigs(broker, lambda group_id: set_for.get(group_id, {}))
    assert [groups.session_timeout_ms(group_id) for group_id in "abc"] == [50_000, 58_000, 45_000]
    assert groups.heartbeat_interval_ms("a") == 6_000
    assert groups.assignment_interval_ms("a") == 1_000
