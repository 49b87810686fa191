"""Metrics as Prometheus reads them: its text format, version 0.0.4."""

from __future__ import annotations

from enum import Enum
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricType(Enum):
    """What a family of series is."""

    COUNTER = "counter"
    GAUGE = "gauge"


def labels(**values: object) -> str:
    """The labels of a series, as they stand behind its name."""
    if not values:
        return ""
    series_labels = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in values.items())
    return f"{{{series_labels}}}"


class Exposition:
    """A page of metrics in the making. The series of a family stand together, in the order they came."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def gauge(self, name: str, value: float, series_labels: str = "") -> None:
        """Add a value that goes up and down; `series_labels` are its labels."""
        self._add(name, MetricType.GAUGE, value, series_labels)

    def counter(self, name: str, value: float, series_labels: str = "") -> None:
        """Add a count that only rises, whose name ends as counters' names do."""
        self._add(name, MetricType.COUNTER, value, series_labels)

    def _add(self, name: str, kind: MetricType, value: float, series_labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = [f"# TYPE {name} {kind.value}\n"]
        family.append(f"{name}{series_labels} {value}\n")

    def text(self) -> str:
        """The whole page."""
        return "".join(["".join(family) for family in self._families.values()])
