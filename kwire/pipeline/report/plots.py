"""Plots as SVG, drawn without a display. The SVG has text as text, which browsers show in their own fonts.

Each function returns the text of an `svg` element. The argument `name` must be unique in a page, because the
ids in the SVG depend on it.

Labels come from records and may contain any characters. Characters that XML does not allow are replaced, and
dollar signs do not start a formula.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import matplotlib as mpl
import matplotlib.dates
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator

WIDTH_INCHES: Final = 9.0
COLOR: Final = "#2563a8"
COLORS: Final = ("#2563a8", "#d9822b", "#3d9970", "#a23b72", "#7a6c5d", "#c0392b")
LABEL_LENGTH: Final = 40
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa5b1",
    "axes.grid": True,
    "grid.color": "#e4e9ee",
    "axes.axisbelow": True,
    "text.parse_math": False,
}
DATES: Final[Any] = matplotlib.dates  # its functions have no types
NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def over_time(name: str, times: Sequence[datetime], values: Sequence[float], unit: str) -> str:
    """Plot one value per time step. `times` has the start times of the steps, which have equal lengths."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(2.6)
        if len(times) == 1:
            axes.bar([0], values, width=0.2, color=COLOR)
            axes.set_xticks([0], [times[0].strftime("%Y-%m-%d %H:%M")])
        else:
            where = DATES.date2num(list(times))
            axes.fill_between(where, values, step="post", color=COLOR, alpha=0.25, linewidth=0)
            axes.step(where, values, where="post", color=COLOR, linewidth=1.1)
            # Matplotlib rejects an axis outside the years 1 to 9999, even if only the axis margin is outside.
            least, most = DATES.date2num([datetime.min, datetime(9999, 12, 31, 23, 59)])
            left, right = axes.get_xlim()
            axes.set_xlim(max(left, least), min(right, most))
            locator = DATES.AutoDateLocator()
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(DATES.ConciseDateFormatter(locator))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.set_ylabel(unit)
        return _svg(figure, name)


def bars(name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> str:
    """Plot vertical bars. Each label has one bar for each series, side by side."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(2.6)
        width = 0.8 / max(1, len(series))
        for number, (title, values) in enumerate(series.items()):
            shift = (number - (len(series) - 1) / 2) * width
            where = [at + shift for at in range(len(labels))]
            axes.bar(where, values, width=width, color=COLORS[number % len(COLORS)], label=title)
        every = max(1, -(-len(labels) // 24))
        axes.set_xticks(range(0, len(labels), every), [_label(text) for text in labels[::every]])
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.set_ylabel(unit)
        axes.grid(visible=False, axis="x")
        if len(series) > 1:
            axes.legend(frameon=False)
        return _svg(figure, name)


def horizontal_bars(name: str, labels: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Plot horizontal bars with the first bar on top, which leaves space for long labels."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(0.7 + 0.24 * max(1, len(labels)))
        axes.barh(range(len(labels)), values, color=COLOR)
        axes.set_yticks(range(len(labels)), [_label(text) for text in labels])
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.set_xlabel(unit)
        axes.grid(visible=False, axis="y")
        return _svg(figure, name)


def grid(
    name: str,
    rows: Sequence[str],
    times: Sequence[datetime],
    cells: Sequence[Sequence[int | None]],
    kinds: Sequence[tuple[str, str]],
) -> str:
    """Plot a grid with one colored cell for each row and time.

    Each of `cells` is an index of `kinds`, or None for an empty cell. `kinds` has names and colors.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _axes(1.1 + 0.22 * max(2, len(rows)))
        numbers = [[float("nan") if kind is None else float(kind) for kind in row] for row in cells]
        axes.imshow(
            numbers,
            cmap=ListedColormap([color for _, color in kinds]),
            vmin=-0.5,
            vmax=len(kinds) - 0.5,
            aspect="auto",
            interpolation="nearest",
        )
        axes.grid(visible=False)
        every = max(1, -(-len(rows) // 40))
        axes.set_yticks(range(0, len(rows), every), [_label(row) for row in rows[::every]])
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, prune=None))
        ticks = [int(at) for at in axes.get_xticks() if 0 <= at < len(times)]
        axes.set_xticks(ticks, [times[at].strftime("%Y-%m-%d\n%H:%M") for at in ticks])
        axes.legend(
            handles=[Patch(color=color, label=title) for title, color in kinds],
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=len(kinds),
            frameon=False,
        )
        return _svg(figure, name)


def _axes(height_inches: float) -> tuple[Any, Any]:
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.add_subplot()


def _label(text: str) -> str:
    text = NOT_XML.sub("\ufffd", text).replace("\n", " ").replace("\r", " ")
    return text if len(text) <= LABEL_LENGTH else f"{text[: LABEL_LENGTH - 1]}…"


def _svg(figure: Any, name: str) -> str:
    # With the salt, plots of one page have different ids, and the output of a plot is reproducible.
    with mpl.rc_context({"svg.hashsalt": name}):
        out = io.StringIO()
        figure.savefig(
            out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    text = out.getvalue()
    return text[text.index("<svg") :]
