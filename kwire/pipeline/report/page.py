"""HTML pages with facts, plots and tables. A page is a single self-contained file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kwire.pipeline.config import ConfigError

Cell = str | int | float | None

BYTE_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Plot(NamedTuple):
    svg: str
    """The SVG, which is inserted as it is, because pipeline/report/plots.py has escaped its text."""
    caption: str


class Table(NamedTuple):
    """A table. Numbers are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


class Section(NamedTuple):
    title: str
    facts: Sequence[tuple[str, Cell]] = ()
    """Names and values."""
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


class Page(NamedTuple):
    title: str
    subtitle: str
    sections: Sequence[Section]


def render(page: Page) -> str:
    """Render the page as HTML. Escapes all text except the SVG of plots."""
    environment = Environment(
        loader=PackageLoader("kwire.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    environment.filters["svg"] = Markup
    environment.tests["figure"] = lambda value: isinstance(value, int | float)
    return environment.get_template("page.html").render(page=page)


def write(page: Page, path: Path) -> None:
    """Render a page to a file. Raises ConfigError if the file cannot be written."""
    write_text(render(page), path)


def write_text(content: str, path: Path) -> None:
    """Write a file of a report, and create the file's directory. Raises ConfigError if this fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report {path} cannot be written: {error.strerror}") from None


def cell(value: Cell) -> str:
    """Format a value of a table: numbers with thousands separators, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return value


def share(value: float) -> str:
    """Format a fraction as a percentage."""
    percent = value * 100
    if 0 < percent < 0.01:
        return "< 0.01 %"
    return f"{percent:.2f} %" if percent < 10 else f"{percent:.1f} %"


def size(count_bytes: float) -> str:
    """Format a number of bytes with a binary unit, such as `1.5 KiB`."""
    unit = 0
    while count_bytes >= 1024 and unit < len(BYTE_UNITS) - 1:
        count_bytes /= 1024
        unit += 1
    return f"{count_bytes:,.0f} {BYTE_UNITS[unit]}" if not unit else f"{count_bytes:,.1f} {BYTE_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Format a duration with its two largest units that are not 0, such as `2 h 5 s`."""
    left = round(abs(seconds) * 1000)
    parts = []
    for unit_ms, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")):
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count:,} {name}")
    return ("-" if seconds < 0 else "") + " ".join(parts[:2]) if parts else "0 s"
