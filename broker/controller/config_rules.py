"""What the controller must know of configuration keys, from those who know: `broker.config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config import BrokerConfig, ConfigError
from broker.config.broker import BROKER_KEYS, LISTENER_PREFIX, THROTTLES
from broker.config.definition import REQUIRED, Key, Kind, Update, invalid, to_text
from broker.config.group import GROUP_KEYS_BY_NAME, check_group
from broker.config.topic import TOPIC_KEYS_BY_NAME, check_topic, default_value
from broker.controller.commands import Fault
from broker.controller.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC
from kwire.errors import ErrorCode

CLUSTER_WIDE_LISTENER_KEYS: Final = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)


THREAD_COUNTS: Final = frozenset(
    {
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    }
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
SSL_ENGINE: Final = "ssl.engine.factory.class"
DEFAULT_SSL_ENGINE: Final = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"
FIXED_HERE: Final = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})
"""Kafka moves to other listeners while it runs; this broker does not."""
JMX_REPORTER: Final = "org.apache.kafka.common.metrics.JmxReporter"


class BrokerConfigRules:
    """The rules of one broker's configuration, its dynamic part included."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def topic_fault(self, values: Mapping[str, str]) -> str | None:
        """Why these cannot be a topic's overrides; None where they can."""
        try:
            check_topic(self._config, values)
        except ConfigError as error:
            return str(error)
        return None

    def group_fault(self, values: Mapping[str, str]) -> str | None:
        """Why these cannot be a group's configuration; None where they can."""
        try:
            check_group(self._config, values)
        except ConfigError as error:
            return str(error)
        return None

    def broker_fault(self, values: Mapping[str, str], *, per_broker: bool) -> Fault | None:
        """Why these cannot be set on a running broker, or on all of them where not `per_broker`. KIP-226."""
        fixed = [
            name
            for name in values
            if (key := BROKER_KEYS.get(name)) is not None and key.update is Update.READ_ONLY
        ]
        if fixed:
            return _refused(f"Cannot update these configs dynamically: {_set_text(fixed)}")
        security = [name for name in values if name in PER_LISTENER_KEYS]
        if security:
            return _refused(
                "These security configs can be dynamically updated only per-listener using the listener "
                f"prefix: {_set_text(security)}"
            )
        for name, text in values.items():
            key = BROKER_KEYS.get(_base_name(name)) or THROTTLES.get(name)
            try:
                if key is not None:
                    key.parse(text)
                if name == SSL_ENGINE and text != DEFAULT_SSL_ENGINE:
                    raise invalid(name, text, f"Class {text} could not be found.")
            except ConfigError as error:
                return _refused(str(error))
        if not per_broker:
            own = [name for name in values if _is_per_broker(name)]
            if own:
                return _refused(
                    "Cannot update these configs at default cluster level, broker id must be specified: "
                    f"{_set_text(own)}"
                )
        for name, text in values.items():
            fault = self._change_fault(name, text)
            if fault is not None:
                return _refused(fault)
        return None

    def _change_fault(self, name: str, text: str) -> str | None:
        """What the parts of a broker have against a change that is well formed."""
        if name in THREAD_COUNTS:
            current = self._config.value(name)
            assert isinstance(current, int)
            count = int(text)
            if count == current:
                return None
            if name == "log.cleaner.threads":
                return _cleaner_threads_fault(count, current)
            failed = f"Dynamic thread count update validation failed for {name}={count}"
            if count <= 0:
                return _invalid(f"{failed}, value should be at least 1")
            if count < current // 2:
                return _invalid(f"{failed}, value should be at least half the current value {current}")
            if count > current * 2:
                return _invalid(
                    f"{failed}, value should not be greater than double the current value {current}"
                )
        if name in FIXED_HERE and text != self._config.given.get(name):
            return f"{name} cannot be changed while the broker runs: this broker listens where it started"
        if name == "cordoned.log.dirs":
            unknown = set(filter(None, text.split(","))) - {"*", *self._config.log_dirs}
            if unknown:
                return (
                    f"requirement failed: All entries in {name} must be present in log.dirs or log.dir. "
                    f"Missing entries : {', '.join(sorted(unknown))}"
                )
        if name == "max.connection.creation.rate" and int(text) < 1:
            return _invalid(f"Invalid {name} {text}, value should be at least 1")
        if name == "metric.reporters" and set(filter(None, text.split(","))) - {JMX_REPORTER}:
            return f"{name} has a class that cannot be loaded: {text}"
        return None

    def is_list(self, resource_type: int, key: str) -> bool:
        """Whether values can be appended to this key."""
        known = _known(resource_type, key)
        return known is not None and known.kind is Kind.LIST

    def is_known_broker_key(self, key: str) -> bool:
        """Whether a broker knows this key at all."""
        return _base_name(key) in BROKER_KEYS

    def default(self, resource_type: int, key: str) -> str | None:
        """The key's default as text, the one of the broker's own settings for a topic's key."""
        if resource_type == RESOURCE_TOPIC and key in TOPIC_KEYS_BY_NAME:
            return to_text(default_value(self._config, key))
        known = _known(resource_type, key)
        return None if known is None or known.default == REQUIRED else known.default


def _cleaner_threads_fault(count: int, current: int) -> str | None:
    """The cleaner's threads go by the same bounds as others, in words of their own."""
    if count < 1:
        return _invalid("Log cleaner threads should be at least 1")
    if count < current // 2:
        return _invalid(
            f"Log cleaner threads cannot be reduced to less than half the current value {current}"
        )
    if count > current * 2:
        return _invalid(
            f"Log cleaner threads cannot be increased to more than double the current value {current}"
        )
    return None


def _known(resource_type: int, key: str) -> Key | None:
    if resource_type == RESOURCE_TOPIC:
        return TOPIC_KEYS_BY_NAME.get(key)
    if resource_type == RESOURCE_GROUP:
        return GROUP_KEYS_BY_NAME.get(key)
    return BROKER_KEYS.get(_base_name(key)) if resource_type == RESOURCE_BROKER else None


def _base_name(name: str) -> str:
    """The key that a listener's own setting is one of."""
    if not name.startswith(LISTENER_PREFIX):
        return name
    return name[len(LISTENER_PREFIX) :].partition(".")[2]


def _is_per_broker(name: str) -> bool:
    if name.startswith(LISTENER_PREFIX):
        return _base_name(name) not in CLUSTER_WIDE_LISTENER_KEYS
    key = BROKER_KEYS.get(name)
    return key is not None and key.update is Update.PER_BROKER


def _invalid(text: str) -> str:
    """As Kafka's broker wraps what one of its parts throws at a new value."""
    return (
        f"Invalid value org.apache.kafka.common.config.ConfigException: {text} "
        "for configuration Invalid dynamic configuration"
    )


def _refused(text: str) -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, text)


def _set_text(names: list[str]) -> str:
    return f"[{', '.join(names)}]"
