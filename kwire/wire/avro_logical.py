"""Avro's logical types, and which of them give a stored value another meaning.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
The specification requires readers to ignore an invalid logical type and to use the stored type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

STORED: Final[dict[str, tuple[str, ...]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "big-decimal": ("bytes",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
}
"""The stored types of each logical type."""
FIXED_BYTES: Final = {"uuid": 16, "duration": 12}
"""The required size of a fixed type, in bytes."""
MAX_INT: Final = (1 << 31) - 1


class LogicalType(NamedTuple):
    """A valid logical type. `precision` and `scale` are those of a decimal, in digits."""

    name: str
    precision: int = 0
    scale: int = 0

    @property
    def meaning(self) -> str:
        """The logical type with its unit or scale. A value cannot be converted between different ones."""
        if self.name == "decimal":
            return f"decimal of scale {self.scale}"
        return self.name.removeprefix("local-")


def logical_type_of(schema: Mapping[str, Any], kind: str, size: int) -> LogicalType | None:
    """Return the logical type of a schema in JSON, or None if there is none, or if it is invalid or unknown.

    `kind` is the stored type, and `size` its number of bytes if it is fixed.
    """
    name = schema.get("logicalType")
    if not isinstance(name, str) or kind not in STORED.get(name, ()):
        return None
    if kind == "fixed" and size != FIXED_BYTES.get(name, size):
        return None
    if name != "decimal":
        return LogicalType(name)
    precision, scale = _int(schema.get("precision")), _int(schema.get("scale", 0))
    if precision is None or scale is None or precision == 0 or not 0 <= scale <= precision:
        return None
    if kind == "fixed" and precision > max_precision(size):
        return None
    return LogicalType(name, precision, scale)


def max_precision(size: int) -> int:
    """Return the maximum number of decimal digits in a signed integer of `size` bytes."""
    return math.floor(math.log10(2) * (8 * size - 1))


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value <= MAX_INT else None
