"""The configuration of groups, and the bounds that the broker sets for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError, Key, Value
from kwire.broker.config.group_keys import BROKER_KEY_PREFIX, GROUP_KEYS
from kwire.wire.named_tuple import NamedTuple

GROUP_KEYS_BY_NAME: Final[dict[str, Key]] = {key.name: key for key in GROUP_KEYS}

PARSE_ORDER: Final = tuple(
    f"{protocol}.{name}"
    for protocol, names in {
        "consumer": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
        "share": (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "record.lock.duration.ms",
            "delivery.count.limit",
            "partition.max.record.locks",
            "auto.offset.reset",
            "isolation.level",
            "renew.acknowledge.enable",
            "assignment.interval.ms",
        ),
        "streams": (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "num.standby.replicas",
            "initial.rebalance.delay.ms",
            "assignment.interval.ms",
        ),
    }.items()
    for name in names
)
"""The keys, in the order in which Kafka parses them. The order decides which error is reported."""


class Bounds(NamedTuple):
    """The broker keys that are the bounds of a group key."""

    low: str | None
    high: str


def _between(protocol: str, name: str) -> tuple[str, Bounds]:
    return f"{protocol}.{name}", Bounds(f"group.{protocol}.min.{name}", f"group.{protocol}.max.{name}")


BOUNDS: Final = dict(
    [
        *(_between("consumer", f"{name}.ms") for name in ("heartbeat.interval", "session.timeout")),
        _between("consumer", "assignment.interval.ms"),
        *(_between("share", f"{name}.ms") for name in ("heartbeat.interval", "session.timeout")),
        _between("share", "record.lock.duration.ms"),
        _between("share", "delivery.count.limit"),
        _between("share", "partition.max.record.locks"),
        _between("share", "assignment.interval.ms"),
        *(_between("streams", f"{name}.ms") for name in ("heartbeat.interval", "session.timeout")),
        ("streams.num.standby.replicas", Bounds(None, "group.streams.max.standby.replicas")),
        _between("streams", "assignment.interval.ms"),
    ]
)
"""The bounds of the group keys, in the order in which Kafka checks them."""


def check_group(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if these overrides cannot be a group's configuration."""
    for name in overrides:
        if name not in GROUP_KEYS_BY_NAME:
            raise ConfigError(f"Unknown group config name: {name}")
    for name in PARSE_ORDER:
        if name in overrides:
            GROUP_KEYS_BY_NAME[name].parse(overrides[name])
    for name, bounds in BOUNDS.items():
        if name not in overrides:
            continue
        value = _number(broker, overrides, name)
        if bounds.low is not None and value < _limit(broker, bounds.low):
            raise ConfigError(f"{name} must be greater than or equal to {bounds.low}")
        if value > _limit(broker, bounds.high):
            raise ConfigError(f"{name} must be less than or equal to {bounds.high}")
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if _number(broker, overrides, session) <= _number(broker, overrides, heartbeat):
            raise ConfigError(f"{session} must be greater than {heartbeat}")


class GroupConfigs:
    """The effective configuration of consumer groups: their overrides, and the broker's defaults."""

    def __init__(self, broker: BrokerConfig, overrides_of: Callable[[str], Mapping[str, str]]) -> None:
        """`overrides_of` returns the overrides of a group."""
        self._broker = broker
        self._overrides_of = overrides_of

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms without a heartbeat after which a member is removed."""
        return self._bounded(group_id, "consumer.session.timeout.ms")

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the time in ms between two heartbeats of a member."""
        return self._bounded(group_id, "consumer.heartbeat.interval.ms")

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the minimum time in ms between two target assignments."""
        return self._bounded(group_id, "consumer.assignment.interval.ms")

    def _bounded(self, group_id: str, name: str) -> int:
        """Return a group's value, moved into the broker's current bounds."""
        overrides = self._overrides_of(group_id)
        if name not in overrides:
            return _limit(self._broker, BROKER_KEY_PREFIX + name)
        value = _number(self._broker, overrides, name)
        bounds = BOUNDS[name]
        if bounds.low is not None:
            value = max(value, _limit(self._broker, bounds.low))
        return min(value, _limit(self._broker, bounds.high))


def parse_override(overrides: Mapping[str, str], name: str) -> Value:
    """Return a group's override of a key, or None if the group has no valid override."""
    text = overrides.get(name)
    try:
        return None if text is None else GROUP_KEYS_BY_NAME[name].parse(text)
    except ConfigError:
        return None


def _number(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> int:
    value = parse_override(overrides, name)
    if value is None:
        value = broker.value(BROKER_KEY_PREFIX + name)
    assert isinstance(value, int)
    return value


def _limit(broker: BrokerConfig, name: str) -> int:
    value = broker.value(name)
    assert isinstance(value, int)
    return value
