"""Java's properties files: parsing as in `Properties.load`, escaping as in `store`, and Java's integers.

This module uses no library, because importing a maintained library takes longer than all other parts of a
broker's start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_NEEDS_ESCAPE: Final = re.compile(r"^ |[\\=:#!\t\n\r\f]|[^\0-\xff]")
_LETTERS: Final = {char: letter for letter, char in _ESCAPES.items()}


def load(text: str) -> dict[str, str]:
    r"""Parse the text of a properties file. If a key is set twice, the last value wins.

    Raises ValueError for a malformed \u escape.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # the pattern matches the empty text
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        properties[_unescaped(key[0])] = _unescaped(line[separator.end() :])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments. A line that ends in an odd number of backslashes continues."""
    pending: str | None = None
    # splitlines would also split at characters that Java does not treat as line ends.
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(" \t\f")
        if pending is None and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = (pending or "") + line[:-1]
            continue
        yield (pending or "") + line
        pending = None
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        if escape == "u":
            raise ValueError(f"malformed \\u escape in {text!r}")
        return _ESCAPES.get(escape, escape)

    # A character outside of the Basic Multilingual Plane may be escaped as its two UTF-16 surrogates.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def escaped(value: str) -> str:
    """Escape a value as `Properties.store` does, for a file in ISO 8859-1."""

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        if char <= "\xff":
            return f"\\{_LETTERS.get(char, char)}"
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))

    return _NEEDS_ESCAPE.sub(escape, value)


_INTEGER: Final = re.compile(r"[+-]?\d+")


def parse_integer(text: str, bits: int = 32) -> int:
    """Parse a number as `Integer.parseInt` does, or as `Short.parseShort` with 16 bits. Raises ValueError."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"not a number: {text!r}")
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{value} does not fit {bits} bits")
    return value
