"""Where settings are written: properties files, and the environment as Kafka's container image reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.config.definition import ConfigError
from kwire.wire.java_properties import load

ENVIRONMENT_PREFIX: Final = "KAFKA_"

NON_CONFIG_VARIABLES: Final = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_LOGLEVEL",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_GC_LOG_ENABLED",
        "KAFKA_HOME",
    }
)
"""Variables that speak to the JVM, its logging or the shell scripts of Apache Kafka."""


def parse_properties(text: str) -> dict[str, str]:
    """The settings of a properties file; of a key given twice the last counts, as in Java.

    ConfigError for an escape that is cut short.
    """
    try:
        properties = load(text)
    except ValueError as error:
        raise ConfigError(f"a properties file has a {error}") from error
    return {name: value.rstrip() for name, value in properties.items()}


def environment_settings(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Key -> (variable, value) for the variables that Kafka's container image takes for settings.

    `KAFKA_NUM_PARTITIONS` is num.partitions; two underscores stand for one, three for a dash.
    """
    settings: dict[str, tuple[str, str]] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NON_CONFIG_VARIABLES:
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        key = name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
        settings[key] = (variable, value)
    return settings
