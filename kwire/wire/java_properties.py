"""Java's properties files: read as `java.util.Properties.load` reads them, and values as `store` writes them.

With how Java reads numbers and trims text. This is no library, because the one that is kept takes longer to
import than the rest of a broker does to start.
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
    """The properties of a file's text; of a key given twice the last counts.

    ValueError for a \\u escape that is malformed.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # it matches the empty text
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        properties[_unescaped(key[0])] = _unescaped(line[separator.end() :])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; one that ends in an odd number of backslashes goes on in the next."""
    pending: str | None = None
    # Not splitlines: it parts at characters that mean nothing to Java.
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

    # What lies outside of the first plane can be written as the two halves of its UTF-16.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def escaped(value: str) -> str:
    """A value as `store` writes it, for a file in ISO 8859-1: what that has not is escaped."""

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        if char <= "\xff":
            return f"\\{_LETTERS.get(char, char)}"
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))

    return _NEEDS_ESCAPE.sub(escape, value)


_INTEGER: Final = re.compile(r"[+-]?\d+")


def parse_integer(text: str, bits: int = 32) -> int:
    """A number as `Integer.parseInt` reads it, or `Short.parseShort` with 16 bits. ValueError."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"no number: {text!r}")
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{value} does not fit {bits} bits")
    return value
