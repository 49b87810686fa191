"""What a job is told: a file of TOML, with a table for its input and one of its own.

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

CLEAN, FAILED, DIFFERENT = 0, 1, 3
"""Exit statuses of a job; the last is that of an audit that found something."""
METRICS_VARIABLE: Final = "KWIRE_PIPELINE_METRICS"
"""In the environment: the file for a stream's metrics."""
INPUT_FORMATS: Final = ("kafka", "kwire")
TOPICS: Final = ("subscribe", "subscribePattern", "assign")
"""The options of Spark's Kafka source that say what to read, of which it wants one."""
AVAILABLE_NOW: Final = "availableNow"
_UNIT: Final = r"(micro|milli)?seconds?|minutes?|hours?|days?|weeks?"
_INTERVAL: Final = re.compile(rf"(interval\s+)?(\d+(\.\d+)?\s+({_UNIT})\s*)+", re.IGNORECASE)
PATH_KEYS: Final = frozenset({"directory", "checkpoint", "report", "into_directory", "properties"})
"""Keys that name a place in the file system, in the table of whichever job."""
_NAMES: Final = PATH_KEYS | {"job", "topic"}
"""Keys whose text names something, so that an empty one is no way to ask for nothing."""
_URL: Final = re.compile(r"file:|[A-Za-z][A-Za-z0-9+.-]+:(/|$)")
_SERVERS: Final = ("bootstrap.servers", "kafka.bootstrap.servers")


class ConfigError(Exception):
    """A job's configuration is wrong; the message names the key, and what it should be."""


class MissingError(Exception):
    """Something that a job needs is not on this machine; the message says what, and how to get it."""


class Input(NamedTuple):
    """Where records come from."""

    format: str
    options: Mapping[str, str]


class Table:
    """One table of the file, whose keys are asked for by name and type; what nobody asked for is an error."""

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self._name = name
        self._content = content
        self._read_keys: set[str] = set()

    def text(self, key: str, default: str | None = None, *, one_of: tuple[str, ...] = ()) -> str:
        """A string. ConfigError."""
        value = self._value(key, str, default)
        if one_of and value not in one_of:
            raise ConfigError(f"{self._name}.{key} is one of {', '.join(one_of)}, not {value!r}")
        if "\0" in value:
            # Neither the system's calls nor librdkafka read on behind it.
            raise ConfigError(f"{self._name}.{key} has a character NUL in it: {value!r}")
        if not value and (default is None or (default and key in _NAMES)):
            # As a path it would be the working directory, and librdkafka dies of an empty name of a job.
            raise self._empty(key)
        if key in PATH_KEYS and _URL.match(value):
            # Spark would go by it as a URL, and all else take it for a path: two places, not one.
            raise ConfigError(f"{self._name}.{key} is a path like '/srv/kwire', not a URL like {value!r}")
        return str(value)

    def path(self, key: str, default: str | None = None) -> Path:
        """A directory or a file. ConfigError."""
        text = self.text(key, default)
        if not text:
            raise self._empty(key)
        return Path(text)

    def number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number. ConfigError."""
        value = self._value(key, int, default)
        if value < least:
            raise ConfigError(f"{self._name}.{key} is at least {least}, not {value}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value. ConfigError."""
        return bool(self._value(key, bool, default))

    def table(self, key: str) -> Table:
        """A table within this one, empty where there is none. ConfigError."""
        return Table(f"{self._name}.{key}", self._value(key, dict, {}))

    def texts(self) -> dict[str, str]:
        """All that is in the table, as Spark wants its options."""
        self._read_keys.update(self._content)
        for key, value in self._content.items():
            if isinstance(value, dict | list):
                raise ConfigError(f"{self._name}.{key} is a string, a number or a truth value")
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in self._content.items()
        }

    def trigger(self, key: str = "trigger") -> str:
        """`availableNow`, which is the default, or an interval as Spark reads it. ConfigError."""
        value = self.text(key, AVAILABLE_NOW)
        if value != AVAILABLE_NOW and _INTERVAL.fullmatch(value.strip()) is None:
            raise ConfigError(
                f"{self._name}.{key} is {AVAILABLE_NOW}, or how often to look, like '10 seconds', "
                f"not {value!r}"
            )
        return value

    def check_unknown_keys(self) -> None:
        """ConfigError for a key that nobody asked for: it may be misspelt."""
        unknown = sorted(set(self._content) - self._read_keys)
        if unknown:
            known = ", ".join(sorted(self._read_keys))
            raise ConfigError(f"there is no {self._name}.{unknown[0]}; {self._name} has {known}")

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
            names = {str: "a string", int: "a whole number", bool: "true or false", dict: "a table"}
            raise ConfigError(f"{self._name}.{key} is {names[kind]}, not {value!r}")
        return value


def _not_a_table(name: str) -> ConfigError:
    return ConfigError(f"{name} is one table, written [{name}], and not a list of them like [[{name}]]")


class JobConfig:
    """A job's file."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    @classmethod
    def load(cls, path: Path) -> JobConfig:
        """ConfigError where there is no such file, or it is no TOML."""
        try:
            return cls(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path} is no TOML: {error}") from None

    def with_text(self, table: str, key: str, value: str) -> JobConfig:
        """The same with one key told otherwise, as the command line does. ConfigError."""
        self.table(table)
        return JobConfig({**self._content, table: {**self._content[table], key: value}})

    def has(self, name: str) -> bool:
        """Whether there is such a table, or what should be one."""
        return name in self._content

    def table(self, name: str) -> Table:
        """A table. ConfigError where it is missing."""
        if isinstance(self._content.get(name), list):
            raise _not_a_table(name)
        if not isinstance(self._content.get(name), dict):
            raise ConfigError(f"the table [{name}] is missing")
        return Table(name, self._content[name])

    def input(self, name: str = "input") -> Input:
        """Where records come from. ConfigError."""
        table = self.table(name)
        found = Input(table.text("format", "kafka", one_of=INPUT_FORMATS), table.table("options").texts())
        table.check_unknown_keys()
        given = {option.lower() for option in found.options}
        if sum(option.lower() in given for option in TOPICS) != 1:
            raise ConfigError(f"{name}.options say with one of {', '.join(TOPICS)} what to read")
        return found

    def check_tables(self, job: str, known: Mapping[str, Iterable[str]]) -> None:
        """ConfigError for a table of another name than those of the job, as it may be misspelt.

        A file may be that of several jobs: `known` says which tables each has beside its own.
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
            has = f"did you mean [{near[0]}]" if near else f"{job} has [{'], ['.join(sorted(expected))}]"
            raise ConfigError(f"there is no {what}: {has}")

    def servers(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The clusters that tables of those names speak of: the key, and the addresses there."""
        for name in names:
            yield from _servers(name, self._content.get(name))


def _servers(name: str, content: Any) -> Iterator[tuple[str, str]]:
    # The files of a broker are read without it, whatever the options say.
    if not isinstance(content, dict) or content.get("format") in ("kwire", "archive"):
        return
    for key, value in content.items():
        if key.lower() in _SERVERS and isinstance(value, str):
            yield f'{name}."{key}"', value
        yield from _servers(f"{name}.{key}", value)
