"""The primitive types of Kafka's protocol: unsigned varints, Uuids and length checks.

Every read checks its bounds, because a slice in Python truncates silently.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NewType, Protocol, TypeAlias

from kwire.wire.errors import WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

TopicPartition: TypeAlias = tuple[str, int]
"""A partition: its topic's name and its index."""


class Region(Protocol):
    """Bytes in a file, which the network layer sends without reading them into memory."""

    @property
    def size_bytes(self) -> int:
        """The size of the region."""


Uuid = NewType("Uuid", bytes)
"""The 16 bytes of a Uuid."""
TopicIdPartition: TypeAlias = tuple[Uuid, int]
"""A partition: its topic's id and its index."""

ZERO_UUID = Uuid(bytes(16))


def uuid_to_text(value: Uuid) -> str:
    """Format a Uuid as Kafka does: URL-safe base64 without padding."""
    return urlsafe_b64encode(value)[:22].decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """Parse a Uuid in URL-safe base64, with or without padding. Raises ValueError for any other text."""
    # The base64 decoder skips characters that are not part of its alphabet.
    if _UUID.fullmatch(text) is None:
        raise ValueError(f"not a Uuid: {text!r}")
    return Uuid(urlsafe_b64decode(text[:22] + "=="))


_UUID = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")


def utf16_length(text: str) -> int:
    """Return the length of a string in UTF-16 units, as Java counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2


def truncated(what: str, position: int, end: int) -> WireError:
    """Return the error for a field that exceeds the buffer. `what` is the field's name in the message."""
    return WireError(f"{what} at byte {position} exceeds the buffer, which ends at byte {end}")


def read_unsigned_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it.

    Raises WireError if the varint exceeds 32 bits or the buffer.
    """
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
    """Append `value`, which must not be negative, as an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
