"""Untrusted bytes as pages display them: short, and without invisible characters."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LIST_BYTES: Final = 300
"""Maximum displayed bytes of a key or value in a list."""
PAGE_BYTES: Final = 64 * 1024
"""Maximum displayed bytes of a key or value on a message's page."""
HEX_BYTES, DUMP_BYTES = 32, 4 * 1024
"""Maximum displayed bytes of binary data, in a list and in a hex dump on a message's page."""
ROW_BYTES: Final = 16

INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
"""Invisible characters and those that change the text direction, without tabs and line ends."""
MAX_INVISIBLE_SHARE: Final = 0.1
"""Share of invisible characters above which data counts as binary."""


class DisplayedBytes(NamedTuple):
    """A key or value as a page displays it."""

    text: str
    kind: str
    """`null`, `empty`, `text` or `binary`."""
    size_bytes: int
    shown_bytes: int

    @property
    def is_truncated(self) -> bool:
        return self.shown_bytes < self.size_bytes


def display_bytes(data: bytes | None, max_bytes: int = LIST_BYTES, *, dump: bool = False) -> DisplayedBytes:
    """Return how a page displays bytes; `dump` formats binary data as a hex dump.

    `max_bytes` limits the displayed bytes. Binary data also has the limit HEX_BYTES, or DUMP_BYTES in a dump.
    """
    if data is None:
        return DisplayedBytes("", "null", 0, 0)
    if not data:
        return DisplayedBytes("", "empty", 0, 0)
    part = data[:max_bytes]
    try:
        # A character that is cut off at the end is dropped; any other invalid byte means binary data.
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
    r"""Escape the invisible characters of a text, like \u{200b}."""
    return INVISIBLE.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def hex_dump(data: bytes) -> str:
    """Return rows with offset, hex digits and ASCII characters."""
    rows = []
    for at in range(0, len(data), ROW_BYTES):
        row = data[at : at + ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{3 * ROW_BYTES - 1}}  {letters}")
    return "\n".join(rows)
