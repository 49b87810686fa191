"""Metrics as Prometheus reads them: its text format, version 0.0.4."""

from __future__ import annotations

from enum import Enum
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Kind(Enum):
    """What a family of series is."""

    COUNTER = "counter"
    GAUGE = "gauge"


def labels(**values: object) -> str:
    """The labels of a series, as they stand behind its name."""
    if not values:
        return ""
    told = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in values.items())
    return f"{{{told}}}"


class Exposition:
    """A page of metrics in the making. The series of a family stand together, in the order they came."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def gauge(self, name: str, value: float, told: str = "") -> None:
        """Add a value that goes up and down; `told` are its labels."""
        self._add(name, Kind.GAUGE, value, told)

    def counter(self, name: str, value: float, told: str = "") -> None:
        """Add a count that only rises, whose name ends as counters' names do."""
        self._add(name, Kind.COUNTER, value, told)

    def _add(self, name: str, kind: Kind, value: float, told: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = [f"# TYPE {name} {kind.value}\n"]
        family.append(f"{name}{told} {value}\n")

    def text(self) -> str:
        """The whole page."""
        return "".join(["".join(family) for family in self._families.values()])
