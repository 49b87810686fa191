"""The primitive types of Kafka's protocol: what a length may be, what a varint is, how a Uuid reads.

Everything that reads is bounds-checked: Python's slices truncate silently, the protocol does not.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NewType, Protocol, TypeAlias

from kwire.wire.errors import WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

TopicPartition: TypeAlias = tuple[str, int]
"""A partition, by its topic's name and its index."""


class Region(Protocol):
    """Bytes that are not in memory: a span of a file that the shell sends as it is."""

    @property
    def size_bytes(self) -> int:
        """How many bytes the region covers."""


Uuid = NewType("Uuid", bytes)
"""A Uuid as its 16 bytes."""

ZERO_UUID = Uuid(bytes(16))


def uuid_to_text(value: Uuid) -> str:
    """Kafka's way to write a Uuid: url-safe base64 without padding."""
    return urlsafe_b64encode(value)[:22].decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """The Uuid that this text stands for. ValueError where it is none."""
    # The decoder passes over what is none of its characters.
    if _UUID.fullmatch(text) is None:
        raise ValueError(f"not a Uuid: {text!r}")
    return Uuid(urlsafe_b64decode(text[:22] + "=="))


_UUID = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")


def utf16_length(text: str) -> int:
    """The length of a string as Java tells it: what lies outside of the first plane counts twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2


def truncated(what: str, position: int, end: int) -> WireError:
    """The error for a field that reaches beyond the end."""
    return WireError(f"{what} at byte {position} reaches beyond the end at {end}")


def read_unsigned_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, and the position after it."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        if position >= end:
            raise truncated("varint", position, end)
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise WireError(f"the varint that ends at byte {position} is longer than 32 bits")


def append_unsigned_varint(out: bytearray, value: int) -> None:
    """Write an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
