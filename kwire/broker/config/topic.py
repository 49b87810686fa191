"""The effective configuration of a topic: its overrides, and its broker's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError, Key, Value
from kwire.broker.config.topic_keys import BROKER_SYNONYMS, TOPIC_KEYS
from kwire.broker.storage.log.log_config import LogConfig

TOPIC_KEYS_BY_NAME: Final[dict[str, Key]] = {key.name: key for key in TOPIC_KEYS}

INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"

_LOG_FIELDS: Final = {
    name: field
    for name, field in ((key.name, key.name.replace(".", "_")) for key in TOPIC_KEYS)
    if field in LogConfig._fields
}


def default_value(broker: BrokerConfig, name: str) -> Value:
    """Return the value of a topic key without an override."""
    for source in BROKER_SYNONYMS.get(name, ()):
        value = broker.value(source.name)
        if value is not None:
            if isinstance(value, int) and (source.units != 1 or name == "retention.ms"):
                # A negative retention means no limit, in any unit.
                return value * source.units if value >= 0 else -1
            return value
    return TOPIC_KEYS_BY_NAME[name].default_value


def topic_values(broker: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return the values of all topic keys. An invalid override is ignored."""
    values: dict[str, Value] = {}
    for name, key in TOPIC_KEYS_BY_NAME.items():
        text = overrides.get(name)
        if text is not None:
            try:
                values[name] = key.parse(text)
                continue
            except ConfigError:
                pass
        values[name] = default_value(broker, name)
    return values


def log_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Return the log configuration of a topic with these overrides."""
    values = topic_values(broker, overrides)
    fields: dict[str, Any] = {field: values[name] for name, field in _LOG_FIELDS.items()}
    fields["cleanup_policy"] = frozenset(fields["cleanup_policy"])
    if values[INTERNAL_SEGMENT_BYTES] is not None:
        fields["segment_bytes"] = values[INTERNAL_SEGMENT_BYTES]
    return LogConfig(**fields)


def check_topic(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError, with Kafka's message, if these overrides are invalid for a topic."""
    for name in overrides:
        if name not in TOPIC_KEYS_BY_NAME:
            raise ConfigError(f"Unknown topic config name: {name}")
    for key in TOPIC_KEYS:
        if key.name in overrides:
            key.parse(overrides[key.name])
    values = topic_values(broker, overrides)
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
    if values["remote.storage.enable"]:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
