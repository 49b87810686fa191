"""Where settings are written: Java properties files, and the environment as Kafka's container image reads it.

A properties file is read here and not by a library, because the one that is kept takes longer to import than
the rest of a broker does to start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from broker.config.definition import ConfigError

ENVIRONMENT_PREFIX: Final = "KAFKA_"

NOT_SETTINGS: Final = frozenset(
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

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_KEY: Final = re.compile(r"(?:\\.|[^\\=:\s])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")


def parse_properties(text: str) -> dict[str, str]:
    """The settings of a properties file; of a key given twice the last counts, as in Java.

    ConfigError for an escape that is cut short.
    """
    settings: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # it matches the empty text
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        settings[_unescape(key[0])] = _unescape(line[separator.end() :]).rstrip()
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; one that ends in an odd number of backslashes goes on in the next."""
    pending = ""
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        if escape == "u":
            raise ConfigError(f"a properties file has an incomplete \\u escape in {text!r}")
        return _ESCAPES.get(escape, escape)

    return _ESCAPE.sub(replace, text)


def environment_settings(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Key -> (variable, value) for the variables that Kafka's container image takes for settings.

    `KAFKA_NUM_PARTITIONS` is num.partitions; two underscores stand for one, three for a dash.
    """
    settings: dict[str, tuple[str, str]] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        key = name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
        settings[key] = (variable, value)
    return settings
