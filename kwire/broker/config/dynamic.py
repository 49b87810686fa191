"""Dynamic broker configuration: validation of changes while the broker runs. KIP-226.

Kafka validates a change in three steps, and so does this module. `check_settings` validates each setting
separately. `check_values` validates all effective settings together, including the static ones.
`check_change` validates the difference between the old and the new values. Settings in the metadata log were
validated when they were written, but perhaps by another version or with other static settings. Therefore
`remove_invalid` ignores invalid settings, and contradictory settings are not applied, so that no stored
setting can prevent a start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from kwire.broker.config.broker_keys import BROKER_KEYS, DYNAMIC_KEYS
from kwire.broker.config.definition import ConfigError, Key, UpdateMode, Value
from kwire.broker.config.listeners import (
    ListenerSettings,
    affects_listeners,
    check_advertised_addresses,
    check_listener_names,
    listener_update_error,
    parse_counts,
    read_listeners,
)
from kwire.broker.config.providers import PROVIDERS
from kwire.broker.config.sasl import check_inter_broker
from kwire.broker.config.topic_keys import BROKER_SYNONYMS, HOUR_MS, MINUTE_MS
from kwire.host.loggers import NodeLogger

Values = Mapping[str, Value]

LISTENER_KEY: Final = re.compile(r"listener\.name\.[^.]*\.(.*)\Z", re.DOTALL)

SYNONYMS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
"""Keys of the same setting, in the order of their precedence."""

CLUSTER_WIDE_LISTENER_KEYS: Final = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)

PER_LISTENER_KEYS: Final = frozenset(
    f"ssl.{name}"
    for name in (
        "keystore.type",
        "keystore.location",
        "keystore.password",
        "key.password",
        "truststore.type",
        "truststore.location",
        "truststore.password",
        "keystore.certificate.chain",
        "keystore.key",
        "truststore.certificates",
    )
)

ASSIGNMENT_INTERVALS: Final = tuple(
    (
        f"group.{kind}.assignment.interval.ms",
        f"group.{kind}.min.assignment.interval.ms",
        f"group.{kind}.max.assignment.interval.ms",
    )
    for kind in ("consumer", "share", "streams")
)

THREAD_COUNTS: Final = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "remote.log.reader.threads",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
)
NETWORK_THREADS: Final = "num.network.threads"
FOLLOWER_THREADS: Final = "remote.log.manager.follower.thread.pool.size"
REMOTE_THREADS: Final = "remote.log.manager.thread.pool.size"
TOPIC_DEFAULTS: Final = frozenset(
    source.name for sources in BROKER_SYNONYMS.values() for source in sources
) | {"cordoned.log.dirs"}
"""The broker keys that affect partition logs."""
SAME_AS_RETENTION: Final = -2
"""The value of the local retention that stands for the retention of the log."""
JMX_REPORTER: Final = "org.apache.kafka.common.metrics.JmxReporter"

_MEBIBYTE: Final = 1 << 20
_HOST: Final = re.compile(r"[0-9a-zA-Z\-%._:]*\Z")


# --- each setting separately


def dynamic_key(name: str) -> Key | None:
    """Return the definition of a dynamic key, with or without a listener prefix. None for other keys."""
    match = LISTENER_KEY.match(name)
    return DYNAMIC_KEYS.get(name if match is None else match[1])


def check_settings(settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Raise ConfigError if a setting is invalid: for one broker, or without `per_broker`, cluster-wide."""
    _refuse("Cannot update these configs dynamically", _non_dynamic(settings))
    _refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        _without_listener_prefix(settings),
    )
    # Validate in the order of the keys, so that the first error does not depend on the order of the request.
    order = {name: index for index, name in enumerate(DYNAMIC_KEYS)}
    for name in sorted(settings, key=lambda name: order.get(_base_name(name), len(order))):
        _check_value(name, settings[name])
    if not per_broker:
        _refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            _per_broker_only(settings),
        )


def remove_invalid(stored: Mapping[str, str], logger: NodeLogger, *, per_broker: bool) -> dict[str, str]:
    """Return the stored settings that are valid. Log an error for the invalid settings."""
    kept = dict(stored)
    wrong: list[str] = []
    for name, text in stored.items():
        try:
            _check_value(name, text)
        except ConfigError as error:
            wrong.append(str(error))
            del kept[name]
    where = "broker" if per_broker else "cluster"
    if wrong:
        logger.error(
            "Ignoring dynamic configs of the %s, correct or delete them with kafka-configs: %s",
            *(where, "; ".join(wrong)),
        )
    rules: tuple[tuple[Callable[[Iterable[str]], list[str]], str], ...] = (
        (_non_dynamic, "they can change only with a restart"),
        (_without_listener_prefix, "they need a listener prefix"),
        *(() if per_broker else ((_per_broker_only, "they can be set only per broker"),)),
    )
    for rule, reason in rules:
        found = rule(kept)
        if found:
            names = ", ".join(found)
            logger.error(
                "Ignoring dynamic configs of the %s, delete them with kafka-configs: %s, because %s",
                *(where, names, reason),
            )
        for name in found:
            del kept[name]
    return kept


def _refuse(text: str, names: list[str]) -> None:
    if names:
        raise ConfigError(f"{text}: [{', '.join(names)}]")


def _check_value(name: str, text: str) -> None:
    key = dynamic_key(name)
    if key is not None and not name.startswith(PROVIDERS):
        key.parse(text)


def without_providers(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without config.providers, which Kafka does not validate in a change."""
    return {name: text for name, text in settings.items() if not name.startswith(PROVIDERS)}


def _base_name(name: str) -> str:
    match = LISTENER_KEY.match(name)
    return name if match is None else match[1]


def _non_dynamic(names: Iterable[str]) -> list[str]:
    return [name for name in names if name in BROKER_KEYS and name not in DYNAMIC_KEYS]


def _without_listener_prefix(names: Iterable[str]) -> list[str]:
    return [name for name in names if name in PER_LISTENER_KEYS]


def _per_broker_only(names: Iterable[str]) -> list[str]:
    return [
        name
        for name in names
        if ((key := DYNAMIC_KEYS.get(name)) is not None and key.update_mode is UpdateMode.PER_BROKER)
        or ((match := LISTENER_KEY.match(name)) is not None and match[1] not in CLUSTER_WIDE_LISTENER_KEYS)
    ]


# --- all effective settings


def merge_layers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge layers of settings; later layers win.

    As in Kafka, a key in any layer but the first also removes the synonyms that were merged before the key.
    """
    settings: dict[str, str] = {}
    for layer in layers:
        for name, text in layer.items():
            for names in SYNONYMS:
                if name in names and layer is not layers[0]:
                    for other in names:
                        settings.pop(other, None)
            settings[name] = text
    return settings


def parse_all(settings: Mapping[str, str]) -> dict[str, Value]:
    """Return every key's value. Raises ConfigError for an invalid setting."""
    return {
        name: key.parse(settings[name]) if name in settings else key.default_value
        for name, key in BROKER_KEYS.items()
    }


def clamp_assignment_intervals(settings: Mapping[str, str], logger: NodeLogger) -> dict[str, str]:
    """Return the settings, with assignment intervals moved into their current bounds."""
    settings = dict(settings)
    for names in ASSIGNMENT_INTERVALS:
        name = names[0]
        if name not in settings:
            continue
        values = {key: BROKER_KEYS[key].parse(settings[key]) for key in names if key in settings}
        low, high = (_number({key: BROKER_KEYS[key].default_value} | values, key) for key in names[1:])
        value = _number(values, name)
        if not low <= value <= high:
            settings[name] = str(min(max(value, low), high))
            logger.warning(
                "Config %s is %d, but must be from %d (%s) to %d (%s): using %s. Change one of the three",
                *(name, value, low, names[1], high, names[2], settings[name]),
            )
    return settings


def check_values(state: EffectiveSettings) -> None:
    """Raise ConfigError for values that contradict each other. The order of the checks is Kafka's."""
    values = state.values
    for name, low, high in ASSIGNMENT_INTERVALS:
        if _number(values, name) < _number(values, low):
            raise ConfigError(f"{name} must be greater than or equal to {low}")
        if _number(values, name) > _number(values, high):
            raise ConfigError(f"{name} must be less than or equal to {high}")
    listeners = state.listeners
    if _first_set_ms(values, ("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)) < 1:
        raise ConfigError("requirement failed: log.roll.ms must be greater than or equal to 1")
    if _first_set_ms(values, ("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)) < 0:
        raise ConfigError("requirement failed: log.roll.jitter.ms must be greater than or equal to 0")
    if _retention_ms(values) == 0:
        raise ConfigError(
            "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
        )
    threads = _number(values, "log.cleaner.threads")
    if threads == 0:
        raise ConfigError("/ by zero")
    if _number(values, "log.cleaner.dedupe.buffer.size") // threads <= _MEBIBYTE:
        raise ConfigError(
            "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
        )
    roles = _list(values, "process.roles")
    check_listener_names(listeners, is_broker="broker" in roles, is_controller="controller" in roles)
    _check_cordoned(values)
    check_advertised_addresses(listeners)
    check_inter_broker(state)
    _check_connections(values)


def _check_cordoned(values: Values) -> None:
    cordoned = _list(values, "cordoned.log.dirs")
    if "*" in cordoned:
        if len(cordoned) > 1:
            raise ConfigError(
                "requirement failed: When cordoned.log.dirs is set to *, it must not contain other values"
            )
        return
    directories = _list(values, "log.dirs") or _list(values, "log.dir")
    missing = [entry for entry in cordoned if entry not in directories]
    if missing:
        raise ConfigError(
            "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )


def _check_connections(values: Values) -> None:
    name = "max.connections.per.ip.overrides"
    counts = parse_counts(name, str(values[name]))
    if _number(values, "max.connections.per.ip") == 0 and not counts:
        raise ConfigError(
            f"requirement failed: max.connections.per.ip can be set to zero only if {name} property is set."
        )
    wrong = [host for host in counts if not _HOST.match(host)]
    if wrong:
        raise ConfigError(f"{name} contains invalid addresses : {','.join(wrong)}")
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if 0 <= _number(values, idle) <= _number(values, delay):
        raise ConfigError(
            f"requirement failed: {delay}={_number(values, delay)} should always be less than "
            f"{idle}={_number(values, idle)} to prevent failed authentication responses from timing out"
        )


def _number(values: Values, name: str) -> int:
    value = values[name]
    assert isinstance(value, int)
    return value


def _list(values: Values, name: str) -> Sequence[str]:
    value = values[name]
    assert value is None or isinstance(value, list)
    return value or ()


def _first_set_ms(values: Values, *names: tuple[str, int]) -> int:
    """Return the first value that is set, in milliseconds, given keys and their units in milliseconds."""
    return next(_number(values, name) * units for name, units in names if values[name] is not None)


def _retention_ms(values: Values) -> int:
    """Return the log retention in ms; -1 means no limit."""
    found = _first_set_ms(
        values,
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    )
    return max(found, -1)


# --- changes of the effective settings


class EffectiveSettings:
    """The effective settings, as text and as values."""

    def __init__(self, settings: Mapping[str, str], values: Values | None = None) -> None:
        """Parse the settings unless `values` are given. Raises ConfigError for an invalid setting."""
        self.settings = settings
        self.values = parse_all(settings) if values is None else values

    @cached_property
    def listeners(self) -> ListenerSettings:
        """The listeners. Raises ConfigError for invalid listener settings."""
        return read_listeners(self.settings, self.values)

    def listener_number(self, name: str, listener: str) -> int:
        """Return a number for a listener, from the key with the listener's prefix or else without it."""
        text = self.settings.get(f"listener.name.{listener.lower()}.{name}")
        value = self.values[name] if text is None else BROKER_KEYS[name].parse(text)
        assert isinstance(value, int)
        return value

    def check_listener(self, listener: str) -> None:
        """Raise ConfigError for an invalid setting with this listener's prefix."""
        prefix = f"listener.name.{listener.lower()}."
        for name, text in self.settings.items():
            if name.startswith(prefix):
                own = name.removeprefix(prefix)
                key = BROKER_KEYS.get(own) or BROKER_KEYS.get(own.partition(".")[2])
                if key is not None:
                    key.parse(text)


def check_change(old: EffectiveSettings, new: EffectiveSettings, static_settings: Mapping[str, str]) -> None:
    """Raise ConfigError if a broker with these static settings cannot change from `old` to `new`."""
    listeners = [endpoint.name for endpoint in old.listeners.broker_endpoints()]
    names = {*old.settings, *new.settings}
    changed = {name for name in names if old.settings.get(name) != new.settings.get(name)}
    faults = (
        _connection_limits_error(old, new, listeners),
        _metric_reporters_error(new.values, changed),
        *(
            _thread_count_error(name, _thread_count(old, name), _number(new.values, name))
            for name in THREAD_COUNTS
            if name in changed
        ),
        _local_retention_error(new.values) if changed & TOPIC_DEFAULTS else None,
        listener_update_error(
            old.listeners,
            new.listeners,
            static_settings,
            new.settings,
            PER_LISTENER_KEYS | CLUSTER_WIDE_LISTENER_KEYS,
        )
        if affects_listeners(changed)
        else None,
        _cleaner_threads_error(*(_number(state.values, "log.cleaner.threads") for state in (old, new))),
    )
    for fault in faults:
        if fault is not None:
            raise ConfigError(
                f"Invalid value org.apache.kafka.common.config.ConfigException: {fault} "
                "for configuration Invalid dynamic configuration"
            )


def _connection_limits_error(
    old: EffectiveSettings, new: EffectiveSettings, listeners: Collection[str]
) -> str | None:
    limits = "max.connections", "max.connection.creation.rate"
    for listener in listeners:
        try:
            new.check_listener(listener)
        except ConfigError as error:
            return str(error)
        if any(old.listener_number(name, listener) != new.listener_number(name, listener) for name in limits):
            for name in limits:
                count = new.listener_number(name, listener)
                if count <= 0:
                    return f"Invalid {name} {count}"
        threads = (state.listener_number(NETWORK_THREADS, listener) for state in (old, new))
        fault = _thread_count_error(NETWORK_THREADS, *threads)
        if fault is not None:
            return fault
    return None


def _metric_reporters_error(values: Values, changed: Collection[str]) -> str | None:
    name = "metric.reporters"
    if name not in changed or not set(_list(values, name)) - {JMX_REPORTER}:
        return None
    return (
        f"Validation of dynamic config update of Set({', '.join(sorted(changed))}) failed with class "
        "class kafka.server.DynamicMetricsReporters"
    )


def _thread_count(state: EffectiveSettings, name: str) -> int:
    if name == FOLLOWER_THREADS and name not in state.settings:
        name = REMOTE_THREADS
    return _number(state.values, name)


def _thread_count_error(name: str, old: int, new: int) -> str | None:
    """Return an error if the new number of threads is below 1, below half or above double the old number."""
    failed = f"Dynamic thread count update validation failed for {name}={new}"
    if new == old:
        return None
    if new <= 0:
        return f"{failed}, value should be at least 1"
    if new < old // 2:
        return f"{failed}, value should be at least half the current value {old}"
    if new > old * 2:
        return f"{failed}, value should not be greater than double the current value {old}"
    return None


def _cleaner_threads_error(old: int, new: int) -> str | None:
    """Return an error as for other threads, but with Kafka's messages for cleaner threads."""
    if new < old // 2:
        return f"Log cleaner threads cannot be reduced to less than half the current value {old}"
    if new > old * 2:
        return f"Log cleaner threads cannot be increased to more than double the current value {old}"
    return None


def _local_retention_error(values: Values) -> str | None:
    """Return an error if the local retention exceeds the retention. KIP-405."""
    for unit, kept in (("ms", _retention_ms(values)), ("bytes", _number(values, "log.retention.bytes"))):
        local, whole = f"log.local.retention.{unit}", f"log.retention.{unit}"
        count = _number(values, local)
        if kept < 0 or count == SAME_AS_RETENTION:
            continue
        if count == -1:
            return (
                f"Invalid value -1 for configuration {local}: "
                f"Value must not be -1 as {whole} value is set as {kept}."
            )
        if count > kept:
            return (
                f"Invalid value {count} for configuration {local}: "
                f"Value must not be more than {whole} property value: {kept}"
            )
    return None
