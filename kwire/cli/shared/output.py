"""Output of commands: tables and color for people, JSON for programs, and progress."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Final, TextIO

Row = Mapping[str, object]

BOLD, DIM, RED, YELLOW, GREEN, CYAN = "1", "2", "31", "33", "32", "36"
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that could move a terminal's cursor or send it commands."""
REDRAW_SECONDS: Final = 0.1
MAX_PADDED_WIDTH: Final = 80
"""The longest cell, in characters, that widens its column."""


class Output:
    """Standard output of a command, as text or JSON."""

    def __init__(self, *, as_json: bool, environ: Mapping[str, str], out: TextIO, err: TextIO) -> None:
        self.as_json = as_json
        self.out = out
        self.is_terminal = out.isatty()
        self._err = err
        may = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._colored = may and self.is_terminal and not as_json
        self._reports: list[Row] = []
        self._shows_progress = err.isatty() and environ.get("TERM") != "dumb"

    def show(
        self,
        rows: Sequence[Row],
        *,
        empty: str,
        color: Callable[[Row], str | None] = lambda row: None,
    ) -> None:
        """Print rows as a table, or as a JSON array of objects.

        `color` returns the color of a row, or None. Without rows, the text output is the note `empty`.
        """
        if self.as_json:
            self.document(rows)
        elif rows:
            for number, line in enumerate(format_table(rows)):
                self.line(line, BOLD if number == 0 else color(rows[number - 1]))
        else:
            self.note(empty)

    def names(self, names: Iterable[object]) -> None:
        """Print names, one per line, or as a JSON array."""
        if self.as_json:
            self.document(list(names))
        else:
            for name in names:
                self.line(self.printable(str(name)))

    def document(self, value: object) -> None:
        """Print one JSON document."""
        self.line(json.dumps(value, indent=2, ensure_ascii=False))

    def line(self, text: str, color: str | None = None) -> None:
        self.out.write(self.colored(text, color) + "\n")

    def report(self, text: str, **fields: object) -> None:
        """Print what was done. With JSON output, collect `fields` into the array that `finish` prints."""
        if self.as_json:
            self._reports.append(fields)
        else:
            self.line(text)

    def finish(self) -> None:
        """Print the JSON array of the reported fields, if there are any."""
        if self._reports:
            self.document(self._reports)

    def note(self, text: str) -> None:
        """Print a note to standard error, so that the note is not part of the output."""
        print(text, file=self._err)

    def colored(self, text: str, color: str | None) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if color and self._colored else text

    def printable(self, text: str) -> str:
        """Return text with control characters escaped if the output is a terminal."""
        return (
            CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
            if self.is_terminal
            else text
        )

    def progress(self, what: str) -> Progress:
        return Progress(what, self._err if self._shows_progress else None)


class Progress:
    """A progress line on standard error, if that is a terminal."""

    def __init__(self, what: str, stream: TextIO | None, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._stream = stream
        self._now = now
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def update(self, done: int, total: int | None = None) -> None:
        """Redraw the line, at most every `REDRAW_SECONDS`."""
        if self._stream is None or (now := self._now()) - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        far = f"{done:,}" if not total else f"{done:,} of {total:,} ({100 * done // total} %)"
        self._stream.write(f"\r\x1b[K{self._what}: {far}")
        self._stream.flush()


def standard_output(*, as_json: bool, environ: Mapping[str, str]) -> Output:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # lone surrogates cannot be encoded
    return Output(as_json=as_json, environ=environ, out=sys.stdout, err=sys.stderr)


def format_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table, column names first; columns of numbers are right-aligned.

    A cell that is longer than `MAX_PADDED_WIDTH` moves the rest of its line, and no other line.
    """
    names = list(rows[0])
    cells = [[_format_cell(row.get(name)) for name in names] for row in rows]
    right = [all(isinstance(row.get(name), (int, type(None))) for row in rows) for name in names]
    lines = [[name.replace("_", " ") for name in names], *cells]
    widths = [
        max(length for cell in column if (length := len(cell)) <= MAX_PADDED_WIDTH)
        for column in zip(*lines, strict=True)
    ]
    for line in lines:
        yield "  ".join(
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(line, widths, right, strict=True)
        ).rstrip()


def _format_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else CONTROL_CHARACTERS.sub("?", str(value))


def format_time(timestamp_ms: int) -> str | None:
    """Return a time as ISO 8601 in UTC, or the number if the year exceeds 9999; None if it is negative."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def format_size(size_bytes: int) -> str:
    """Return a size with a binary unit, like 1.5 MiB."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
