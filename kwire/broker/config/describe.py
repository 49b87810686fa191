"""The content of DescribeConfigs: each key's value, its source and its synonyms.

KIP-226 defines the precedence of sources. KIP-524 and KIP-569 add types and documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.broker_keys import BROKER_KEYS, THROTTLE_KEYS
from kwire.broker.config.client_metrics_keys import CLIENT_METRICS_KEYS
from kwire.broker.config.definition import REQUIRED, ConfigError, Key, UpdateMode, Value, to_text
from kwire.broker.config.dynamic import LISTENER_KEY, SYNONYMS
from kwire.broker.config.group import parse_override
from kwire.broker.config.group_keys import BROKER_KEY_PREFIX, GROUP_KEYS
from kwire.broker.config.sasl import MECHANISM_KEYS
from kwire.broker.config.topic import TOPIC_KEYS_BY_NAME, topic_values
from kwire.broker.config.topic_keys import BROKER_SYNONYMS
from kwire.wire.named_tuple import NamedTuple

UNKNOWN_TYPE: Final = 0


class ConfigSource(IntEnum):
    """The source of a value, with its number in the protocol."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """A setting that can determine a key's value. In a list of synonyms, the first one is in effect."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One key of a resource, with its value and source."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: Sequence[Synonym]
    type: int
    read_only: bool
    is_sensitive: bool
    documentation: str | None


_FLUSH_MS: Final = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")


def _synonym_names(name: str) -> tuple[str, ...]:
    for names in SYNONYMS:
        if name in names:
            return names
    if name == _FLUSH_MS[0]:
        return _FLUSH_MS
    match = LISTENER_KEY.match(name)
    return (name, _unprefixed_name(match[1])) if match is not None else (name,)


def _unprefixed_name(own: str) -> str:
    """Return the key without a mechanism prefix, for keys that can have one."""
    return next((name for name in MECHANISM_KEYS if own.endswith(name)), own)


def _synonyms(config: BrokerConfig, name: str, *, is_sensitive: bool) -> list[Synonym]:
    defaults = {
        key: BROKER_KEYS[key].default
        for key in _synonym_names(name)
        if key in BROKER_KEYS and BROKER_KEYS[key].default not in (None, REQUIRED)
    }
    layers: tuple[tuple[Mapping[str, str | None], ConfigSource], ...] = (
        *_layers(config),
        (defaults, ConfigSource.DEFAULT_CONFIG),
    )
    found = [
        Synonym(key, None if is_sensitive else layer[key], source)
        for layer, source in layers
        for key in _synonym_names(name)
        if key in layer
    ]
    # The setting of one listener is not a synonym of the key without a listener prefix.
    while found and found[0].name != name:
        del found[0]
    return found


def _key(name: str) -> Key | None:
    """Return the definition of a key, with or without a listener prefix, or None for an unknown key."""
    match = LISTENER_KEY.match(name)
    if match is not None:
        return BROKER_KEYS.get(_unprefixed_name(match[1]))
    return BROKER_KEYS.get(name) or THROTTLE_KEYS.get(name)


def _layers(config: BrokerConfig) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
    return (
        (config.per_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (config.cluster_wide, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.static_settings, ConfigSource.STATIC_BROKER_CONFIG),
    )


def _shadowed(config: BrokerConfig) -> set[str]:
    """Return the keys whose static value has no effect, because a synonym of higher precedence is dynamic."""
    return {
        name
        for first, *others in (*SYNONYMS, _FLUSH_MS)
        if first in config.per_broker or first in config.cluster_wide
        for name in others
    }


def describe_broker(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Describe all keys of this broker. A key that Kafka does not have is sensitive and shows no value."""
    shadowed = _shadowed(config)
    for name in config.names():
        key = _key(name)
        if key is None:
            value: Value = None
        elif name not in BROKER_KEYS:
            value = next(layer[name] for layer, _ in _layers(config) if name in layer)
        else:
            value = key.default_value if name in shadowed else config.value(name)
        yield _broker_entry(config, name, key, value, _synonyms(config, name, is_sensitive=_is_hidden(key)))


def describe_cluster_defaults(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Describe the cluster-wide default configuration of brokers."""
    for name, text in config.cluster_wide.items():
        key = _key(name)
        synonyms = [
            synonym
            for synonym in _synonyms(config, name, is_sensitive=_is_hidden(key))
            if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        ]
        yield _broker_entry(config, name, key, text, synonyms)


def _broker_entry(
    config: BrokerConfig, name: str, key: Key | None, value: Value, synonyms: list[Synonym]
) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=None if _is_hidden(key) else to_text(value),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        synonyms=synonyms,
        type=key.type if key is not None else UNKNOWN_TYPE,
        read_only=key is None or key.update_mode is UpdateMode.READ_ONLY or key.name != name,
        is_sensitive=_is_hidden(key),
        documentation=key.doc or None if key is not None and key.name == name else None,
    )


def inherited_source(config: BrokerConfig, name: str) -> ConfigSource:
    """Return the source of the value that a topic inherits for a key.

    This is the source for CreateTopics, which considers all synonyms on the broker, such as
    log.retention.hours. DescribeConfigs considers only the first synonym.
    """
    for settings, source in _layers(config):
        if any(key.name in settings for key in BROKER_SYNONYMS.get(name, ())):
            return source
    return ConfigSource.DEFAULT_CONFIG


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Describe all keys of a topic with these overrides. Invalid overrides have no effect on the values."""
    values = topic_values(config, overrides)
    for name, key in TOPIC_KEYS_BY_NAME.items():
        if key.internal and name not in overrides:
            continue
        text = to_text(values[name])
        synonyms: list[Synonym] = []
        if name in BROKER_SYNONYMS:
            synonyms = _synonyms(config, BROKER_SYNONYMS[name][0].name, is_sensitive=False)
        if name in overrides:
            synonyms.insert(0, Synonym(name, text, ConfigSource.TOPIC_CONFIG))
        yield ConfigEntry(
            name=name,
            value=text,
            source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            synonyms=synonyms,
            type=key.type,
            read_only=False,
            is_sensitive=False,
            documentation=key.doc or BROKER_KEYS[name].doc,
        )


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Describe all keys of a group with these overrides."""
    for key in GROUP_KEYS:
        name = key.name
        synonyms: list[Synonym] = []
        if BROKER_KEY_PREFIX + name in BROKER_KEYS:
            default = to_text(config.value(BROKER_KEY_PREFIX + name))
            synonyms = _synonyms(config, BROKER_KEY_PREFIX + name, is_sensitive=False)
        else:
            default = key.default
            synonyms = [Synonym(name, default, ConfigSource.DEFAULT_CONFIG)]
        text = default
        own = parse_override(overrides, name)
        if own is not None:
            text = to_text(own)
            synonyms.insert(0, Synonym(name, text, ConfigSource.GROUP_CONFIG))
        yield ConfigEntry(
            name=name,
            value=text,
            source=synonyms[0].source,
            synonyms=synonyms,
            type=key.type,
            read_only=False,
            is_sensitive=False,
            documentation=key.doc,
        )


def describe_client_metrics(overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Describe all keys of a client metrics subscription with these overrides. KIP-714."""
    for key in sorted(CLIENT_METRICS_KEYS):
        text, source = key.default, ConfigSource.DEFAULT_CONFIG
        synonyms = []
        if key.name in overrides:
            text, source = _normalized(key, overrides[key.name]), ConfigSource.CLIENT_METRICS_CONFIG
            synonyms.append(Synonym(key.name, text, source))
        yield ConfigEntry(
            name=key.name,
            value=text,
            source=source,
            synonyms=synonyms,
            type=key.type,
            read_only=False,
            is_sensitive=False,
            documentation=key.doc,
        )


def _normalized(key: Key, text: str) -> str | None:
    """Parse a value and format it again. Return an invalid value unchanged."""
    try:
        return to_text(key.parse(text))
    except ConfigError:
        return text


def _is_hidden(key: Key | None) -> bool:
    return key is None or key.is_sensitive
