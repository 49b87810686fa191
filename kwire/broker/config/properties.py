"""Properties files, and the environment variables of Kafka's container image."""

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
"""Variables for the JVM, its logging, and the shell scripts of Apache Kafka."""


def parse_properties(text: str) -> dict[str, str]:
    """Parse the text of a properties file. If a key is set twice, the last value wins, as in Java.

    Raises ConfigError for a malformed escape.
    """
    try:
        properties = load(text)
    except ValueError as error:
        raise ConfigError(f"the properties file has a {error}") from error
    return {name: value.rstrip() for name, value in properties.items()}


def environment_settings(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return key -> (variable, value) for the variables that Kafka's container image reads as configuration.

    `KAFKA_NUM_PARTITIONS` sets num.partitions. Two underscores stand for an underscore, three for a dash.
    """
    settings: dict[str, tuple[str, str]] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NON_CONFIG_VARIABLES:
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        key = name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
        settings[key] = (variable, value)
    return settings
