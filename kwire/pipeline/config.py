"""The configuration of a job: a TOML file with a table for the input and a table for the job.

[input]                       # Spark's Kafka source, or `kwire`, the segment source
format = "kafka"
[input.options]
"kafka.bootstrap.servers" = "127.0.0.1:9092"
subscribe = "flights"

[archive]
directory = "/srv/archive"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire.pipeline.origin import internal_topics

CLEAN, FAILED, DIFFERENT = 0, 1, 3
"""Exit statuses of a job. Only an audit exits with DIFFERENT, when it has found differences."""
METRICS_VARIABLE: Final = "KWIRE_PIPELINE_METRICS"
"""The environment variable with the path of the file for a stream's metrics."""
INPUT_FORMATS: Final = ("kafka", "kwire")
TOPICS: Final = ("subscribe", "subscribePattern", "assign")
"""The options of Spark's Kafka source that select topics. Exactly one of them is required."""
AVAILABLE_NOW: Final = "availableNow"
_UNIT: Final = r"(micro|milli)?seconds?|minutes?|hours?|days?|weeks?"
_INTERVAL: Final = re.compile(rf"(interval\s+)?(\d+(\.\d+)?\s+({_UNIT})\s*)+", re.IGNORECASE)
PATH_KEYS: Final = frozenset({"directory", "checkpoint", "report", "into_directory", "properties"})
"""Keys, in the table of any job, whose values are paths."""
_NAMES: Final = PATH_KEYS | {"job", "topic"}
"""Keys whose values must not be empty, unless the key's default is empty."""
_URL: Final = re.compile(r"file:|[A-Za-z][A-Za-z0-9+.-]+:(/|$)")
_SERVERS: Final = ("bootstrap.servers", "kafka.bootstrap.servers")


class ConfigError(Exception):
    """A job's configuration is invalid, or does not fit its checkpoint or cluster. The message says why."""


class MissingDependencyError(Exception):
    """A prerequisite is missing on this machine. The message says how to install it."""


class Input(NamedTuple):
    """The Spark source of a job's records, with its options."""

    format: str
    options: Mapping[str, str]


class Table:
    """A table of the configuration file. It records which keys were read, to report unknown keys."""

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self._name = name
        self._content = content
        self._read_keys: set[str] = set()

    def text(self, key: str, default: str | None = None, *, one_of: tuple[str, ...] = ()) -> str:
        """Read a string. Raises ConfigError if it is invalid, not in `one_of`, or missing with no default."""
        value = self._value(key, str, default)
        if one_of and value not in one_of:
            raise ConfigError(f"{self._name}.{key} must be one of {', '.join(one_of)}, not {value!r}")
        if "\0" in value:
            # A NUL character ends a string for system calls and librdkafka.
            raise ConfigError(f"{self._name}.{key} contains a NUL character: {value!r}")
        if not value and (default is None or (default and key in _NAMES)):
            # An empty path would mean the working directory, and an empty job name crashes librdkafka.
            raise self._empty(key)
        if key in PATH_KEYS and _URL.match(value):
            # Spark would treat such a text as a URL, while the other parts of the job treat it as a path.
            raise ConfigError(f"{self._name}.{key} must be a path like '/srv/kwire', not the URL {value!r}")
        return str(value)

    def topic(self, key: str, default: str | None = None) -> str:
        """Read the name of a topic to write to. Raises ConfigError as `text` does, or if it is internal."""
        name = self.text(key, default)
        if internal_topics([name]):
            raise ConfigError(f"{self._name}.{key} is the internal topic {name}: choose another topic")
        return name

    def path(self, key: str, default: str | None = None) -> Path:
        """Read a path. Raises ConfigError if it is invalid, empty, or missing with no default."""
        text = self.text(key, default)
        if not text:
            raise self._empty(key)
        return Path(text)

    def number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """Read an integer. Raises ConfigError if it is invalid, below `least`, or missing with no default."""
        value = self._value(key, int, default)
        if value < least:
            raise ConfigError(f"{self._name}.{key} must be at least {least}, not {value}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """Read a boolean. Raises ConfigError if the value has another type."""
        return bool(self._value(key, bool, default))

    def table(self, key: str) -> Table:
        """Read a nested table; empty if the key is missing. Raises ConfigError for any other value."""
        return Table(f"{self._name}.{key}", self._value(key, dict, {}))

    def texts(self) -> dict[str, str]:
        """Read all values as strings, like Spark's options. Raises ConfigError for a table or an array."""
        self._read_keys.update(self._content)
        for key, value in self._content.items():
            if isinstance(value, dict | list):
                raise ConfigError(f"{self._name}.{key} must be a string, a number or a boolean")
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in self._content.items()
        }

    def trigger(self, key: str = "trigger") -> str:
        """Read a trigger: `availableNow` (the default) or a Spark interval. Raises ConfigError otherwise."""
        value = self.text(key, AVAILABLE_NOW)
        if value != AVAILABLE_NOW and _INTERVAL.fullmatch(value.strip()) is None:
            raise ConfigError(
                f"{self._name}.{key} must be {AVAILABLE_NOW} or an interval like '10 seconds', not {value!r}"
            )
        return value

    def check_unknown_keys(self) -> None:
        """Raise ConfigError if the table has a key that was not read, because it may be misspelled."""
        unknown = sorted(set(self._content) - self._read_keys)
        if unknown:
            known = ", ".join(sorted(self._read_keys))
            raise ConfigError(f"unknown key {self._name}.{unknown[0]}; the keys of {self._name}: {known}")

    def _empty(self, key: str) -> ConfigError:
        return ConfigError(f"{self._name}.{key} is empty")

    def _value(self, key: str, kind: type, default: Any) -> Any:
        self._read_keys.add(key)
        value = self._content.get(key, default)
        if value is None:
            raise ConfigError(f"{self._name}.{key} is missing")
        if kind is dict and isinstance(value, list):
            raise _not_a_table(f"{self._name}.{key}")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            names = {str: "a string", int: "an integer", bool: "true or false", dict: "a table"}
            raise ConfigError(f"{self._name}.{key} must be {names[kind]}, not {value!r}")
        return value


def _not_a_table(name: str) -> ConfigError:
    return ConfigError(f"{name} must be one table, written [{name}], not an array of tables like [[{name}]]")


class JobConfig:
    """The configuration file of a job."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    @classmethod
    def load(cls, path: Path) -> JobConfig:
        """Read a file. Raises ConfigError if it cannot be read or is not TOML."""
        try:
            return cls(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None

    def with_text(self, table: str, key: str, value: str) -> JobConfig:
        """Return a copy that has `value` for a key of a table. Raises ConfigError if the table is missing."""
        self.table(table)
        return JobConfig({**self._content, table: {**self._content[table], key: value}})

    def has(self, name: str) -> bool:
        """Return whether the file has a table with this name."""
        return name in self._content

    def table(self, name: str) -> Table:
        """Return a table of the file. Raises ConfigError if it is missing or is not a table."""
        if isinstance(self._content.get(name), list):
            raise _not_a_table(name)
        if not isinstance(self._content.get(name), dict):
            raise ConfigError(f"the table [{name}] is missing")
        return Table(name, self._content[name])

    def input(self) -> Input:
        """Read the table [input]. Raises ConfigError if the table is missing or invalid."""
        table = self.table("input")
        found = Input(table.text("format", "kafka", one_of=INPUT_FORMATS), table.table("options").texts())
        table.check_unknown_keys()
        given = {option.lower() for option in found.options}
        if sum(option.lower() in given for option in TOPICS) != 1:
            raise ConfigError(f"input.options must have exactly one of {', '.join(TOPICS)}")
        return found

    def check_tables(self, job: str, known: Mapping[str, Iterable[str]]) -> None:
        """Raise ConfigError if the file has a table that is not read, because the name may be misspelled.

        The file may configure other jobs than `job`; their tables are accepted. `known` maps the name of each
        job to the tables that the job reads besides its own.
        """
        expected = {job, *known.get(job, ())}
        for other, tables in known.items():
            if other in self._content:
                expected |= {other, *tables}
        for name, content in self._content.items():
            if name in expected:
                continue
            what = f"table [{name}]" if isinstance(content, dict) else f"key {name} outside of the tables"
            near = get_close_matches(name, sorted(expected), 1)
            has = f"did you mean [{near[0]}]?" if near else f"{job} reads [{'], ['.join(sorted(expected))}]"
            raise ConfigError(f"unknown {what}: {has}")

    def servers(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the full name and the value of each key for bootstrap servers in the named tables.

        Skips tables for a data directory or an archive.
        """
        for name in names:
            yield from _servers(name, self._content.get(name))


def _servers(name: str, content: Any) -> Iterator[tuple[str, str]]:
    # Reading a data directory or an archive needs no broker, even if the table has bootstrap servers.
    if not isinstance(content, dict) or content.get("format") in ("kwire", "archive"):
        return
    for key, value in content.items():
        if key.lower() in _SERVERS and isinstance(value, str):
            yield f'{name}."{key}"', value
        yield from _servers(f"{name}.{key}", value)
