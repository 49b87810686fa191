"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from enum import Enum
from math import isnan
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricType(Enum):
    """The type in the TYPE line of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"


def labels(**values: object) -> str:
    """Format the labels of a series, for example `{topic="orders"}`. Without labels, return ""."""
    if not values:
        return ""
    series_labels = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in values.items())
    return f"{{{series_labels}}}"


class Exposition:
    """A page of metrics. It groups the series of each metric, in the order in which they were added."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def gauge(self, name: str, value: float, series_labels: str = "") -> None:
        """Add the value of a gauge."""
        self._add(name, MetricType.GAUGE, value, series_labels)

    def counter(self, name: str, value: float, series_labels: str = "") -> None:
        """Add the value of a counter. The name must end with `_total` or another suffix of counters."""
        self._add(name, MetricType.COUNTER, value, series_labels)

    def _add(self, name: str, kind: MetricType, value: float, series_labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = [f"# TYPE {name} {kind.value}\n"]
        text = "NaN" if isnan(value) else str(value)
        family.append(f"{name}{series_labels} {text}\n")

    def text(self) -> str:
        """Return the complete page."""
        return "".join(["".join(family) for family in self._families.values()])
