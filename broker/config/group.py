"""What a group's configuration may be, within the bounds that the broker sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config.broker import BROKER_KEYS, BrokerConfig
from broker.config.definition import ConfigError, Key
from broker.config.group_keys import GROUP_KEYS

GROUP_KEYS_BY_NAME: Final[dict[str, Key]] = {key.name: key for key in GROUP_KEYS}


def check_group(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """ConfigError when these cannot be a group's configuration."""
    for name, text in overrides.items():
        key = GROUP_KEYS_BY_NAME.get(name)
        if key is None:
            raise ConfigError(f"Unknown group config name: {name}")
        value = key.parse(text)
        protocol, _, rest = name.partition(".")
        for bound, is_low in (("min", True), ("max", False)):
            limit_name = f"group.{protocol}.{bound}.{rest}"
            if limit_name not in BROKER_KEYS:
                continue
            limit = broker.value(limit_name)
            assert isinstance(limit, int)
            assert isinstance(value, int)
            if is_low and value < limit:
                raise ConfigError(f"{name} must be greater than or equal to {limit_name}")
            if not is_low and value > limit:
                raise ConfigError(f"{name} must be less than or equal to {limit_name}")
    _check_heartbeats(broker, overrides)


def _check_heartbeats(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if session not in overrides and heartbeat not in overrides:
            continue
        values = []
        for name in (session, heartbeat):
            text = overrides.get(name)
            value = (
                GROUP_KEYS_BY_NAME[name].parse(text) if text is not None else broker.value(f"group.{name}")
            )
            assert isinstance(value, int)
            values.append(value)
        if values[0] <= values[1]:
            raise ConfigError(f"{session} must be greater than {heartbeat}")
