"""The scan of a batch's records: structure, offsets, timestamps and keys, in one pass without a copy.

`scan_in_python` specifies the result. `scan` is the native function of `_record_scan.c` if it was built when
kwire was installed, and `scan_in_python` otherwise (docs/decisions/0002).

A record consists of its length, one byte of attributes, timestamp delta, offset delta, key length, key, value
length, value and header count. Each header follows as key length, key, value length and value. Lengths,
counts and the offset delta are varints, the timestamp delta is a varlong. A negative length of a key or a
value means null. As in Java, a varint has at most 5 bytes and 32 bits, a varlong at most 10 bytes and 64
bits, and higher bits are dropped. Kafka's DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer

NO_TIMESTAMP: Final = -1
MAX_REJECTED: Final = 65_536
"""The maximum number of rejected records that are listed."""

_32_BITS: Final = (1 << 32) - 1
_64_BITS: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
_MIN_THREE_BYTES: Final = 1 << 14
"""The least value that `_read_small` computes for a varint of three or more bytes."""


class Problem(IntEnum):
    """The reasons why records cannot be read. The first one ends the scan."""

    NONE = 0
    RECORD_MISSING = 1
    """The records end before the count in the header is reached."""
    LENGTH_INCOMPLETE = 2
    LENGTH_TOO_LONG = 3
    """A length of more than 5 bytes."""
    LENGTH_NEGATIVE = 4
    RECORD_TRUNCATED = 5
    """A record is longer than the bytes that are left."""
    FIELD_INVALID = 6
    """A field exceeds its record, or a varint in the record is too long."""
    HEADER_COUNT_INVALID = 7
    HEADER_KEY_MISSING = 8
    BYTES_AFTER_HEADERS = 9
    """A record is longer than its fields."""
    BYTES_AFTER_RECORDS = 10
    """Bytes follow the last record that the header counts."""


class Rejection(IntEnum):
    """The reasons why a record that can be read is rejected."""

    KEY_MISSING = 0
    TIMESTAMP_OUT_OF_RANGE = 1


_PROBLEM_TEXTS: Final = {
    Problem.RECORD_MISSING: "The records end before record {0}",
    Problem.LENGTH_INCOMPLETE: "The length of record {0} is incomplete",
    Problem.LENGTH_TOO_LONG: "The length of record {0} has more than 5 bytes",
    Problem.LENGTH_NEGATIVE: "The length of record {0} is negative",
    Problem.RECORD_TRUNCATED: "Record {0} is longer than the batch",
    Problem.FIELD_INVALID: "A field of record {0} is longer than the record",
    Problem.HEADER_COUNT_INVALID: "Record {0} has an invalid number of headers",
    Problem.HEADER_KEY_MISSING: "Record {0} has a header without a key",
    Problem.BYTES_AFTER_HEADERS: "Record {0} has bytes after its last header",
    Problem.BYTES_AFTER_RECORDS: "Bytes follow the {0} records that the header counts",
}


class RecordScan(NamedTuple):
    """The result of a scan."""

    problem: int
    """A Problem. If it is not NONE, the other fields describe only the records before `records_count`."""
    records_count: int
    """The number of records before the problem, or of all records."""
    max_timestamp: int
    """The greatest timestamp of the accepted records in ms, or NO_TIMESTAMP."""
    is_sequential: bool
    """Whether the offset delta of each record is the record's index."""
    rejected_count: int
    has_wrong_timestamp: bool
    """Whether a record was rejected because of its timestamp."""
    rejected: list[tuple[int, int, int, int]]
    """Index, Rejection, timestamp and offset delta of the first MAX_REJECTED rejected records."""

    @property
    def problem_text(self) -> str:
        """The problem as a sentence without a full stop; empty without a problem."""
        return _PROBLEM_TEXTS.get(Problem(self.problem), "").format(self.records_count)


class _Invalid(Exception):
    """The end of a scan, with its Problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


def scan_in_python(
    payload: Buffer, count: int, base_timestamp: int, earliest: int, latest: int, keys_required: bool
) -> RecordScan:
    """Scan `count` records of a batch, given the uncompressed bytes after its header.

    A record with a timestamp before `earliest` or after `latest` (ms) is rejected, unless the timestamp is
    NO_TIMESTAMP. With `keys_required`, a record without a key is rejected.
    """
    data = bytes(payload)
    end = len(data)
    at = index = rejected_count = 0
    problem = Problem.NONE
    max_timestamp = NO_TIMESTAMP
    is_sequential, has_wrong_timestamp = True, False
    rejected: list[tuple[int, int, int, int]] = []
    try:
        while index < count:
            fields = _read_small(data, at, end)
            if fields is None:
                stop, at = _read_length(data, at, end)
                fields = _read_fields(data, at, stop)
            timestamp_delta, offset_delta, has_key, at = fields
            is_sequential = is_sequential and offset_delta == index
            timestamp = ((base_timestamp + timestamp_delta + _SIGN) & _64_BITS) - _SIGN
            if keys_required and not has_key:
                reason = Rejection.KEY_MISSING
            elif timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                reason = Rejection.TIMESTAMP_OUT_OF_RANGE
                has_wrong_timestamp = True
            else:
                index += 1
                if timestamp > max_timestamp:
                    max_timestamp = timestamp
                continue
            if rejected_count < MAX_REJECTED:
                rejected.append((index, int(reason), timestamp, offset_delta))
            rejected_count += 1
            index += 1
        if at != end:
            problem = Problem.BYTES_AFTER_RECORDS
    except _Invalid as error:
        problem = error.problem
    return RecordScan(
        int(problem), index, max_timestamp, is_sequential, rejected_count, has_wrong_timestamp, rejected
    )


def _read_small(data: bytes, at: int, end: int) -> tuple[int, int, bool, int] | None:
    """Read a record without headers whose varints have one or two bytes, as `_read_fields` does.

    Returns None for any other record. Nearly all records are small, and this takes a third of the time.
    """
    try:
        length = data[at]
        if length > 0x7F:
            at += 1
            length = length & 0x7F | data[at] << 7
        stop = at + 1 + (length >> 1)
        timestamp = data[at + 2]
        at += 3
        if timestamp > 0x7F:
            timestamp = timestamp & 0x7F | data[at] << 7
            at += 1
        offset = data[at]
        at += 1
        if offset > 0x7F:
            offset = offset & 0x7F | data[at] << 7
            at += 1
        key = data[at]
        at += 1
        if key > 0x7F:
            key = key & 0x7F | data[at] << 7
            at += 1
        if not key & 1:
            at += key >> 1
        value = data[at]
        at += 1
        if value > 0x7F:
            value = value & 0x7F | data[at] << 7
            at += 1
        if not value & 1:
            at += value >> 1
        if data[at] or at + 1 != stop:
            return None
    except IndexError:
        return None
    if length & 1 or stop > end or (length | timestamp | offset | key | value) >= _MIN_THREE_BYTES:
        return None
    return (timestamp >> 1) ^ -(timestamp & 1), (offset >> 1) ^ -(offset & 1), not key & 1, stop


def _read_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the length of a record. Return the ends of the record and of the length."""
    if at == end:
        raise _Invalid(Problem.RECORD_MISSING)
    length, at = _read_varint(data, at, end)
    if length < 0:
        raise _Invalid(Problem.LENGTH_NEGATIVE)
    if length > end - at:
        raise _Invalid(Problem.RECORD_TRUNCATED)
    return at + length, at


def _read_fields(data: bytes, at: int, end: int) -> tuple[int, int, bool, int]:
    """Read the fields of the record that ends at `end`.

    Returns the timestamp delta, the offset delta, whether the record has a key, and `end`.
    """
    if at == end:
        raise _Invalid(Problem.FIELD_INVALID)
    try:
        timestamp_delta, at = _read_varlong(data, at + 1, end)
        offset_delta, at = _read_varint(data, at, end)
        has_key, at = _skip_field(data, at, end)
        _, at = _skip_field(data, at, end)
        headers_count, at = _read_varint(data, at, end)
        if not 0 <= headers_count <= end - at:
            raise _Invalid(Problem.HEADER_COUNT_INVALID)
        for _ in range(headers_count):
            has_name, at = _skip_field(data, at, end)
            if not has_name:
                raise _Invalid(Problem.HEADER_KEY_MISSING)
            _, at = _skip_field(data, at, end)
    except _Invalid as error:
        if error.problem in (Problem.LENGTH_INCOMPLETE, Problem.LENGTH_TOO_LONG):
            raise _Invalid(Problem.FIELD_INVALID) from None
        raise
    if at != end:
        raise _Invalid(Problem.BYTES_AFTER_HEADERS)
    return timestamp_delta, offset_delta, has_key, at


def _skip_field(data: bytes, at: int, end: int) -> tuple[bool, int]:
    """Skip a key or a value. Return whether it is not null, and its end."""
    size, at = _read_varint(data, at, end)
    if size > end - at:
        raise _Invalid(Problem.FIELD_INVALID)
    return size >= 0, at + max(size, 0)


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and (byte := data[at]) < 0x80:  # nearly all varints
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw, at = _read_unsigned(data, at, end, max_bytes=5)
    raw &= _32_BITS
    return (raw >> 1) ^ -(raw & 1), at


def _read_varlong(data: bytes, at: int, end: int) -> tuple[int, int]:
    raw, at = _read_unsigned(data, at, end, max_bytes=10)
    raw &= _64_BITS
    return (raw >> 1) ^ -(raw & 1), at


def _read_unsigned(data: bytes, at: int, end: int, max_bytes: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, 7 * max_bytes, 7):
        if at == end:
            raise _Invalid(Problem.LENGTH_INCOMPLETE)
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, at
    raise _Invalid(Problem.LENGTH_TOO_LONG)


Scan = Callable[[Buffer, int, int, int, int, bool], RecordScan]


def _native_scan() -> Scan | None:
    try:
        from kwire.wire import _record_scan
    except ImportError:
        return None

    native = _record_scan.scan

    def scan_natively(
        payload: Buffer, count: int, base_timestamp: int, earliest: int, latest: int, keys_required: bool
    ) -> RecordScan:
        return _new_scan(RecordScan, native(payload, count, base_timestamp, earliest, latest, keys_required))

    return scan_natively


_new_scan: Callable[[type[RecordScan], tuple[object, ...]], RecordScan] = tuple.__new__
native_scan: Final = _native_scan()
"""The native function, or None if it was not built."""
scan: Final[Scan] = native_scan or scan_in_python
IMPLEMENTATION: Final = "native" if native_scan else "Python"
"""The language of `scan`, for people: native or Python."""
