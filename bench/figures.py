"""Measured values and the table of their medians."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Figure:
    """A measured quantity, with its samples by broker name."""

    name: str
    unit: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, broker: str, *values: float) -> None:
        self.samples.setdefault(broker, []).extend(values)

    def median(self, broker: str) -> float | None:
        values = self.samples.get(broker)
        return statistics.median(values) if values else None

    @property
    def ratio(self) -> float | None:
        """The median of kwire divided by that of Apache Kafka, if both were measured."""
        kwire, apache = self.median("kwire"), self.median("apache")
        return kwire / apache if kwire is not None and apache else None


@dataclass
class Samples:
    """The figures of a measurement, to which `add` adds samples of the broker `name`."""

    figures: dict[str, Figure]
    name: str

    def add(self, figure: str, unit: str, *values: float) -> None:
        self.figures.setdefault(figure, Figure(figure, unit)).add(self.name, *values)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the percentile by the nearest-rank method, which is always one of the values."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def format_value(value: float | None) -> str:
    """Format a number with three significant digits and commas."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def table(figures: Iterable[Figure]) -> str:
    """Format the medians as a Markdown table that is also readable in a terminal."""
    rows = [["", "unit", "Apache Kafka", "kwire", "kwire / Apache", "samples"]]
    for figure in figures:
        ratio = figure.ratio
        rows.append(
            [
                figure.name,
                figure.unit,
                format_value(figure.median("apache")),
                format_value(figure.median("kwire")),
                "–" if ratio is None else f"{ratio:.2f}",
                ", ".join(sorted({str(len(values)) for values in figure.samples.values()})),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(_aligned(cell, width, column) for column, (cell, width) in enumerate(cells)) + " |"
        for cells in (zip(row, widths, strict=True) for row in rows)
    ]
    rule = "|".join("-" * (width + 1) + (":" if column > 1 else "-") for column, width in enumerate(widths))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column > 1 else cell.ljust(width)
