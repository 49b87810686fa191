"""A strict reader of ASN.1 values in DER, and a conversion of BER to DER for PKCS12 files (X.690).

PKCS12 files of some programs have indefinite lengths and octet strings in parts, which only BER permits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

INTEGER, OCTET_STRING, OBJECT_IDENTIFIER = 0x02, 0x04, 0x06
UTF8_STRING, PRINTABLE_STRING = 0x0C, 0x13
SEQUENCE, SET = 0x30, 0x31
CONSTRUCTED: Final = 0x20
MAX_DEPTH: Final = 32
"""Deeper nesting is malformed, so that it does not exhaust Python's stack."""
MAX_VALUES: Final = 100_000
"""The values in one conversion from BER, which takes 3 microseconds for each. A certificate entry has ten."""
MAX_INTEGER_BYTES: Final = 8
MAX_OID_BYTES: Final = 1024
"""The time to decode a number of an object identifier is quadratic in its length."""
_LONG_TAG: Final = 0x1F
_INDEFINITE: Final = 0x80
_MAX_LENGTH_BYTES: Final = 4


class MalformedDer(ValueError):
    """Bytes that are not the expected ASN.1 value."""


class Element(NamedTuple):
    """One ASN.1 value: its tag, its content, and its complete encoding."""

    tag: int
    content: bytes
    encoding: bytes

    def children(self) -> list[Element]:
        """Return the values inside a constructed value."""
        return read_elements(self.content)

    def expect(self, tag: int) -> Element:
        """Return the value itself. Raises MalformedDer if it has another tag."""
        if self.tag != tag:
            raise MalformedDer(f"malformed DER: tag {self.tag:#x} instead of {tag:#x}")
        return self

    def integer(self) -> int:
        """Return the number of an INTEGER."""
        content = self.expect(INTEGER).content
        if not 1 <= len(content) <= MAX_INTEGER_BYTES:
            raise MalformedDer(f"malformed DER: an integer of {plural(len(content), 'byte')}")
        return int.from_bytes(content, "big", signed=True)

    def oid(self) -> str:
        """Return an OBJECT IDENTIFIER in dotted form."""
        return oid_text(self.expect(OBJECT_IDENTIFIER).content)

    def octets(self, depth: int = MAX_DEPTH) -> bytes:
        """Return the bytes of an OCTET STRING, or of a value with an implicit tag, also if it is in parts."""
        if not self.tag & CONSTRUCTED:
            return self.content
        if not depth:
            raise MalformedDer("malformed DER: nested too deeply")
        return b"".join(part.octets(depth - 1) for part in self.children())


def read_element(data: bytes) -> Element:
    """Return the one value that `data` must consist of. Raises MalformedDer."""
    element = read_first(data)
    if len(element.encoding) != len(data):
        raise MalformedDer(
            f"malformed DER: {plural(len(data) - len(element.encoding), 'byte')} after the value"
        )
    return element


def read_elements(data: bytes) -> list[Element]:
    """Return the values that `data` consists of, without parsing their content. Raises MalformedDer."""
    found, at = [], 0
    while at < len(data):
        element = read_first(data, at)
        found.append(element)
        at += len(element.encoding)
    return found


def read_first(data: bytes, at: int = 0) -> Element:
    """Return the value at a position. Raises MalformedDer. X.690, sections 8.1 and 10.1."""
    start, length = _read_header(data, at)
    if length is None:
        raise MalformedDer(f"malformed DER: the length at byte {at + 1} is indefinite")
    if start - at != 2 and (length < 0x80 or not data[at + 2]):
        raise MalformedDer(f"malformed DER: the length at byte {at + 1} is not in its shortest form")
    end = start + length
    return Element(data[at], data[start:end], data[at:end])


def _read_header(data: bytes, at: int) -> tuple[int, int | None]:
    """Return where the content of a value starts, and its length. The length is None if it is indefinite."""
    if at + 2 > len(data) or data[at] & _LONG_TAG == _LONG_TAG:
        raise MalformedDer(f"malformed DER: no tag and length at byte {at}")
    start, length = at + 2, data[at + 1]
    if length == _INDEFINITE:
        return start, None
    if length > _INDEFINITE:
        start += length & 0x7F
        size = data[at + 2 : start]
        if len(size) > _MAX_LENGTH_BYTES:
            raise MalformedDer(f"malformed DER: the length at byte {at + 1} has {plural(len(size), 'byte')}")
        length = int.from_bytes(size, "big")
    if start + length > len(data):
        raise MalformedDer(
            f"malformed DER: {plural(length, 'byte')} at byte {start}, but only {len(data)} in total"
        )
    return start, length


def oid_text(content: bytes) -> str:
    """Return an object identifier in dotted form. Raises MalformedDer. X.690, section 8.19."""
    if not content or content[-1] & 0x80:
        raise MalformedDer("malformed DER: an object identifier has no end")
    if len(content) > MAX_OID_BYTES:
        raise MalformedDer(f"malformed DER: an object identifier of {plural(len(content), 'byte')}")
    numbers = []
    number = 0
    is_first_byte = True
    for byte in content:
        if is_first_byte and byte == 0x80:
            raise MalformedDer("malformed DER: a number of an object identifier is not in its shortest form")
        number = number << 7 | byte & 0x7F
        is_first_byte = byte < 0x80
        if is_first_byte:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def encode(tag: int, content: bytes) -> bytes:
    """Return a value in DER."""
    if len(content) < 0x80:
        return bytes((tag, len(content))) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + content


def der_of_ber(data: bytes) -> bytes:
    """Return the value at the start of `data` with lengths and octet strings as in DER. Raises MalformedDer.

    Values inside octet strings, such as certificates, are unchanged. Bytes behind the value are ignored, as
    in Java.
    """
    return _converted(data, 0, MAX_DEPTH, iter(range(MAX_VALUES)))[0]


def _converted(data: bytes, at: int, depth: int, left: Iterator[int]) -> tuple[bytes, int]:
    """Return the value at a position in DER, and the position behind it."""
    if next(left, None) is None:
        raise MalformedDer(f"malformed BER: more than {MAX_VALUES} values")
    tag, (start, length) = data[at : at + 1], _read_header(data, at)
    if not tag[0] & CONSTRUCTED:
        if length is None:
            raise MalformedDer(f"malformed BER: the length at byte {at + 1} is indefinite")
        return encode(tag[0], data[start : start + length]), start + length
    if not depth:
        raise MalformedDer("malformed BER: nested too deeply")
    parts = []
    end = len(data) if length is None else start + length
    at = start
    while at < end and not (length is None and data[at : at + 2] == b"\0\0"):
        part, at = _converted(data, at, depth - 1, left)
        parts.append(part)
    if length is None:
        if at >= end:
            raise MalformedDer("malformed BER: a value has no end")
        end = at + 2
    elif at != end:
        raise MalformedDer(f"malformed BER: a value ends behind byte {end}")
    content = b"".join(parts)
    if tag[0] == OCTET_STRING | CONSTRUCTED:
        return encode(OCTET_STRING, b"".join(one.octets() for one in read_elements(content))), end
    return encode(tag[0], content), end
