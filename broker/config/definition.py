"""What a configuration key is: its type, its default, what it may hold, and when it may change.

Types and messages follow Kafka's own configuration library, so that a client that sets a wrong value is told
the same thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

Value = bool | int | float | str | list[str] | None
"""A parsed value."""


class Kind(IntEnum):
    """A key's type. The numbers are those of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT, LONG = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.SHORT, Kind.LONG
DOUBLE, LIST, CLASS, PASSWORD = Kind.DOUBLE, Kind.LIST, Kind.CLASS, Kind.PASSWORD


class Update(IntEnum):
    """When a broker's key may change (KIP-226)."""

    READ_ONLY = 0
    PER_BROKER = 1
    CLUSTER_WIDE = 2


PER_BROKER, CLUSTER_WIDE = Update.PER_BROKER, Update.CLUSTER_WIDE

REQUIRED: Final = "\0required"
"""The default of a key that has none, and must be given."""

Check = Callable[[Value], str | None]
"""Says what is wrong with a value; None where nothing is."""


class ConfigError(Exception):
    """A configuration cannot be used. The text names key, value and what is allowed, in one line."""


class Key(NamedTuple):
    """One configuration key."""

    name: str
    kind: Kind
    default: str | None
    """As text; None for a key that is unset; REQUIRED for one that must be set."""
    check: Check | None = None
    internal: bool = False
    """Whether it is hidden from those who list the configuration."""
    update: Update = Update.READ_ONLY

    @property
    def is_sensitive(self) -> bool:
        """Whether its value must not be shown."""
        return self.kind is PASSWORD

    def parse(self, text: str) -> Value:
        """The value that `text` stands for. ConfigError when it is none, or out of bounds."""
        value = parse(self.name, self.kind, text)
        if self.check is not None:
            fault = self.check(value)
            if fault is not None:
                raise invalid(self.name, self.shown(text), fault)
        return value

    def shown(self, text: str) -> str:
        """`text` as it may be shown."""
        return "[hidden]" if self.is_sensitive else text

    @property
    def default_value(self) -> Value:
        """The parsed default."""
        if self.default is None or self.default == REQUIRED:
            return None
        return parse(self.name, self.kind, self.default)


def invalid(name: str, text: object, fault: str) -> ConfigError:
    """The error for a value, in the words that Kafka's clients know."""
    return ConfigError(f"Invalid value {text} for configuration {name}: {fault}")


_BOUNDS: Final = {INT: 31, SHORT: 15, LONG: 63}
_INTEGER: Final = re.compile(r"[+-]?\d+\Z", re.ASCII)


def parse(name: str, kind: Kind, text: str) -> Value:
    """Read a value of a kind from text. ConfigError."""
    text = text.strip()
    if kind in _BOUNDS:
        if _INTEGER.match(text):
            number = int(text)
            limit = 1 << _BOUNDS[kind]
            if -limit <= number < limit:
                return number
        raise invalid(name, text, f"Not a number of type {kind.name}")
    if kind is BOOLEAN:
        lowered = text.lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        raise invalid(name, text, "Expected value to be either true or false")
    if kind is DOUBLE:
        try:
            return float(text)
        except ValueError:
            raise invalid(name, text, "Not a number of type DOUBLE") from None
    if kind is LIST:
        return [part.strip() for part in text.split(",")] if text else []
    return text


def to_text(value: Value) -> str | None:
    """A value as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return _double_text(value)
    return str(value)


def _double_text(value: float) -> str:
    """As Java writes a double: an exponent is an E without a plus sign, and a mantissa has a point."""
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"


# --- what values may be


def at_least(low: float) -> Check:
    """A number from `low` on."""

    def check(value: Value) -> str | None:
        assert value is None or isinstance(value, (int, float))
        return None if value is None or value >= low else f"Value must be at least {low}"

    return check


def between(low: float, high: float) -> Check:
    """A number from `low` to `high`, both included."""

    def check(value: Value) -> str | None:
        assert value is None or isinstance(value, (int, float))
        if value is None:
            return None
        if value < low:
            return f"Value must be at least {low}"
        return None if value <= high else f"Value must be no more than {high}"

    return check


def gzip_level(value: Value) -> str | None:
    """A level of gzip, or -1 for its own default."""
    assert isinstance(value, int)
    return None if value == -1 or 1 <= value <= 9 else "Value must be between 1 and 9 or equal to -1"


def one_of(*allowed: str) -> Check:
    """One of these texts."""

    def check(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return check


def one_of_any_case(*allowed: str) -> Check:
    """One of these texts, in whatever case."""
    lowered = {text.lower() for text in allowed}

    def check(value: Value) -> str | None:
        if isinstance(value, str) and value.lower() in lowered:
            return None
        return f"String must be one of (case insensitive): {', '.join(allowed)}"

    return check


def each_of(*allowed: str) -> Check:
    """A list whose entries are all of these texts."""

    def check(value: Value) -> str | None:
        assert isinstance(value, list)
        if all(entry in allowed for entry in value):
            return None
        return f"String must be one of: {', '.join(allowed)}"

    return check


def non_empty(value: Value) -> str | None:
    """A text that is not empty."""
    return "String must be non-empty" if value == "" else None


_THROTTLED: Final = re.compile(r"\d+:\d+\Z", re.ASCII)


def throttled_replicas(value: Value) -> str | None:
    """`*`, nothing, or pairs of a partition and a broker."""
    assert isinstance(value, list)
    if not value or value == ["*"] or all(_THROTTLED.match(entry) for entry in value):
        return None
    return (
        "leader.replication.throttled.replicas and follower.replication.throttled.replicas must be the "
        "literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],..."
    )
