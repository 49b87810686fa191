"""Bytes of strangers as a page shows them: text that is short, and in which nothing hides."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LIST_BYTES: Final = 300
"""How much of a key or value a list shows."""
PAGE_BYTES: Final = 64 * 1024
"""How much a page of one message shows."""
HEX_BYTES, DUMP_BYTES = 32, 4 * 1024
"""How much of that, where it is no text: in a list, and on a page."""
ROW_BYTES: Final = 16

INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
"""Characters that are not seen, or turn around what follows; tabs and ends of lines are let be."""
MAX_INVISIBLE_SHARE: Final = 0.1
"""The part of hidden characters from which on something is no text."""


class DisplayedBytes(NamedTuple):
    """A key or a value."""

    text: str
    kind: str
    """`null`, `empty`, `text` or `binary`."""
    size_bytes: int
    shown_bytes: int

    @property
    def is_truncated(self) -> bool:
        return self.shown_bytes < self.size_bytes


def display_bytes(data: bytes | None, most_bytes: int = LIST_BYTES, *, dump: bool = False) -> DisplayedBytes:
    """What a page shows of a key or value; `dump`: what is no text in rows, as hex dumps have it."""
    if data is None:
        return DisplayedBytes("", "null", 0, 0)
    if not data:
        return DisplayedBytes("", "empty", 0, 0)
    part = data[:most_bytes]
    try:
        # A character that the end has cut is left out; any other that is none makes it binary.
        text = part.decode()
    except UnicodeDecodeError as error:
        if len(part) < len(data) and error.end == len(part) and error.start > len(part) - 4:
            part = part[: error.start]
            text = part.decode()
        else:
            text = ""
    if not text or len(INVISIBLE.findall(text)) > MAX_INVISIBLE_SHARE * len(text):
        part = part[: DUMP_BYTES if dump else HEX_BYTES]
        return DisplayedBytes(hex_dump(part) if dump else part.hex(" "), "binary", len(data), len(part))
    return DisplayedBytes(visible(text), "text", len(data), len(part))


def visible(text: str) -> str:
    """Text in which each character is seen."""
    return INVISIBLE.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def hex_dump(data: bytes) -> str:
    """Rows of offset, digits and letters."""
    rows = []
    for at in range(0, len(data), ROW_BYTES):
        row = data[at : at + ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{3 * ROW_BYTES - 1}}  {letters}")
    return "\n".join(rows)
