"""Definitions of configuration keys: type, default, validator and update mode.

Types and error messages follow Kafka's ConfigDef, so that clients get the same error for an invalid value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from kwire.wire.java_strings import BLANKS
from kwire.wire.named_tuple import NamedTuple

Value = bool | int | float | str | list[str] | None
"""The parsed value of a key."""


class ConfigType(IntEnum):
    """The type of a key, with its number in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT, LONG = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.SHORT,
    ConfigType.LONG,
)
DOUBLE, LIST, CLASS, PASSWORD = ConfigType.DOUBLE, ConfigType.LIST, ConfigType.CLASS, ConfigType.PASSWORD


class UpdateMode(IntEnum):
    """The way in which a broker's key can change while the broker runs (KIP-226)."""

    READ_ONLY = 0
    PER_BROKER = 1
    CLUSTER_WIDE = 2


PER_BROKER, CLUSTER_WIDE = UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE

REQUIRED: Final = "\0required"
"""The default of a key that must be set."""

Validator = Callable[[Value], str | None]
"""Returns the reason why a value is invalid, or None if it is valid."""


class ConfigError(Exception):
    """An invalid configuration. The text names the key, the value and the valid values, in one line."""


class Key(NamedTuple):
    """The definition of one configuration key."""

    name: str
    type: ConfigType
    default: str | None
    """The default as text. None means unset, and REQUIRED means that the key must be set."""
    validator: Validator | ListValidator | ThrottledReplicasValidator | None = None
    """A list without a validator can contain any entries that are not empty."""
    internal: bool = False
    """Internal keys are not shown when a configuration is listed."""
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    classes: tuple[str, ...] = ()
    """The only classes that the key can name; empty means any name."""
    doc: str = ""
    """The documentation that DescribeConfigs returns (KIP-569)."""

    @property
    def is_sensitive(self) -> bool:
        """Whether the values of the key are secret, so that they are not shown."""
        return self.type is PASSWORD

    def parse(self, text: str) -> Value:
        """Parse and validate a value. Raises ConfigError if the value is invalid."""
        value = parse(self.name, self.type, text)
        if isinstance(value, list):
            if isinstance(self.validator, ThrottledReplicasValidator):
                self.validator.validate(self.name, value)
                return value
            value = list(dict.fromkeys(value))
            (self.validator if isinstance(self.validator, ListValidator) else NON_EMPTY_ENTRIES).validate(
                self.name, value
            )
        elif self.type is CLASS:
            if self.classes and text.strip(BLANKS) not in self.classes:
                raise invalid(self.name, text, f"Class {text} could not be found.")
        elif callable(self.validator):
            fault = self.validator(value)
            if fault is not None:
                raise invalid(self.name, "[hidden]" if self.is_sensitive else to_text(value), fault)
        return value

    @property
    def default_value(self) -> Value:
        """The parsed default; None if the key is unset by default or must be set."""
        if self.default is None or self.default == REQUIRED:
            return None
        return parse(self.name, self.type, self.default)


def invalid(name: str, text: object, fault: str) -> ConfigError:
    """Return the error for an invalid value, with the text of Kafka's ConfigException."""
    return ConfigError(f"Invalid value {text} for configuration {name}: {fault}")


_BOUNDS: Final = {INT: 31, SHORT: 15, LONG: 63}
_INTEGER: Final = re.compile(r"[+-]?\d+\Z")
_DOUBLE: Final = re.compile(
    r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?"
    r"|(?P<hex>0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)\Z",
    re.ASCII,
)
_MAX_DIGITS: Final = 19
"""The number of digits of the largest 64-bit number. Python does not parse texts of thousands of digits."""


def parse_integer(text: str, bits: int = 31) -> int | None:
    """Parse an integer of `bits` bits and a sign, as Java does. Return None if it is invalid or too large.

    Digits of any script are valid if each is one UTF-16 unit. Whitespace and underscores are not.
    """
    if not _INTEGER.match(text) or max(text) > "\uffff":
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _MAX_DIGITS:
        return None
    number, limit = int(digits or "0") * (-1 if text.startswith("-") else 1), 1 << bits
    return number if -limit <= number < limit else None


def parse_double(text: str) -> float | None:
    """Parse a floating-point number, as Java does. Return None if the text is not a number."""
    match = _DOUBLE.match(text)
    if match is None:
        return None
    if match["hex"]:
        # The exponent of a hexadecimal number is decimal, so a final letter is a suffix.
        try:
            return float.fromhex(text.rstrip("fFdD"))
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    return float(text.rstrip("fFdD"))


def parse(name: str, config_type: ConfigType, text: str) -> Value:
    """Parse the value `text` of the key `name`. Raises ConfigError if the text does not fit the type."""
    trimmed = text.strip(BLANKS)
    if config_type in _BOUNDS:
        number = parse_integer(trimmed, _BOUNDS[config_type])
        if number is None:
            raise invalid(name, text, f"Not a number of type {config_type.name}")
        return number
    if config_type is BOOLEAN:
        lowered = trimmed.lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        raise invalid(name, text, "Expected value to be either true or false")
    if config_type is DOUBLE:
        double = parse_double(trimmed)
        if double is None:
            raise invalid(name, text, "Not a number of type DOUBLE")
        return double
    if config_type is LIST:
        return _COMMA.split(trimmed) if trimmed else []
    return trimmed


_COMMA: Final = re.compile(r"\s*,\s*", re.ASCII)


def to_text(value: Value) -> str | None:
    """Format a value as DescribeConfigs returns it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return _double_to_text(value)
    return str(value)


def _double_to_text(value: float) -> str:
    """Format a double as Java does: in decimal notation from 1e-3 to 1e7, otherwise with an exponent."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal

    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{shown[0]}.{shown[1:] or '0'}E{exponent + len(digits) - 1}"


# --- validators


def at_least(low: float) -> Validator:
    """Return a validator for numbers of at least `low`."""

    def validate(value: Value) -> str | None:
        assert value is None or isinstance(value, (int, float))
        # NaN is neither too small nor too large.
        return f"Value must be at least {low}" if value is not None and value < low else None

    return validate


def between(low: float, high: float) -> Validator:
    """Return a validator for numbers from `low` to `high`, both included."""

    def validate(value: Value) -> str | None:
        assert value is None or isinstance(value, (int, float))
        if value is None:
            return None
        if value < low:
            return f"Value must be at least {low}"
        return f"Value must be no more than {high}" if value > high else None

    return validate


def gzip_level(value: Value) -> str | None:
    """Validate a gzip compression level; -1 means gzip's default."""
    assert isinstance(value, int)
    return None if value == -1 or 1 <= value <= 9 else "Value must be between 1 and 9 or equal to -1"


def one_of(*allowed: str) -> Validator:
    """Return a validator for the given texts."""

    def validate(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return validate


def one_of_any_case(*allowed: str) -> Validator:
    """Return a validator for the given texts, regardless of case."""
    lowered = {text.lower() for text in allowed}

    def validate(value: Value) -> str | None:
        if isinstance(value, str) and value.lower() in lowered:
            return None
        return f"String must be one of (case insensitive): {', '.join(allowed)}"

    return validate


class ListValidator:
    """A validator of lists: no entry is empty, and all entries are among `allowed` if `allowed` is given."""

    def __init__(self, *allowed: str, can_be_empty: bool = True) -> None:
        self._allowed = allowed
        self._can_be_empty = can_be_empty

    def validate(self, name: str, entries: list[str]) -> None:
        """Raise ConfigError for the first invalid entry, or if the list must not be empty but is."""
        if not entries and not self._can_be_empty:
            allowed = f"[{', '.join(self._allowed)}]" if self._allowed else "any non-empty value"
            raise ConfigError(f"Configuration '{name}' must not be empty. Valid values include: {allowed}")
        for entry in entries:
            if not entry:
                raise ConfigError(f"Configuration '{name}' values must not be empty.")
            if self._allowed and entry not in self._allowed:
                raise invalid(name, entry, f"String must be one of: {', '.join(self._allowed)}")


NON_EMPTY_ENTRIES: Final = ListValidator()


def non_empty(value: Value) -> str | None:
    """Validate that a text is not empty."""
    return "String must be non-empty" if value == "" else None


class ThrottledReplicasValidator:
    """A validator of throttled replicas: `*`, or PARTITION:BROKER pairs. Empty entries are allowed."""

    _PAIR: Final = re.compile(r"([0-9]+:[0-9]+)?\Z")

    def validate(self, name: str, entries: list[str]) -> None:
        """Raise ConfigError for any other list."""
        if all(self._PAIR.match(entry) for entry in entries) or "".join(entries) == "*":
            return
        raise invalid(
            name,
            f"[{', '.join(entries)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )
