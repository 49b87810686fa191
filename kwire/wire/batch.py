"""RecordBatch v2 (KIP-98): its header, its CRC and its records, as views over bytes.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | count 4 |
    records

The length counts the bytes that follow it. The CRC-32C covers the bytes that follow it, so the broker can
change the base offset and the leader epoch without a new CRC. Each record starts with its length as a varint.
Compressed records form one block of the batch's codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct

from kwire.wire.compression import Codec, CompressionError, compress, decompress
from kwire.wire.crc import crc32c
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer

HEADER_BYTES = 61
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: the first bytes of a batch in every format of Kafka's log."""

MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = 0x7FFF
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 0x7FFFFFFF

ABORT, COMMIT = range(2)
"""The types of the control record that ends a transaction."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
_KNOWN_ATTRIBUTES = 0x7F
"""The attributes that have a meaning. Kafka clears the others when it changes a batch's timestamp."""

LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35

HEADER = Struct(">qiibIhiqqqhii")
"""A complete header: the fields of BatchHeader."""
_OVERHEAD = Struct(">qi")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT64 = Struct(">q")
_CONTROL = Struct(">hh")
_32_BITS = (1 << 32) - 1
_64_BITS = (1 << 64) - 1
_SIGN = 1 << 63
_MIN_DELTA = -_SIGN


class CorruptBatch(Exception):
    """The error for bytes that are not a record batch, or for a batch that contradicts itself."""


_CODECS = tuple(Codec)
"""The codecs, by code. A lookup here takes a tenth of the time of a call of the enumeration."""


class UnreadableBatch(CorruptBatch):
    """A batch that cannot be read: an unknown codec, invalid compressed data, a varint without an end.

    This is a separate class because Kafka has no error code for such a batch, only for records that
    contradict themselves.
    """


class BatchHeader(NamedTuple):
    """The fixed-size header of a batch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the batch, including its header."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """The compression codec. Raises UnreadableBatch if the attributes name an unknown codec."""
        code = self.attributes & CODEC_MASK
        if code >= len(_CODECS):
            raise UnreadableBatch(f"the batch at offset {self.base_offset} has compression codec {code}")
        return _CODECS[code]

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_MASK)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record. Sequence numbers wrap from the largest int32 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


_new_header: Callable[[type[BatchHeader], tuple[int, ...]], BatchHeader] = tuple.__new__
"""A function that creates a header from its fields. `_make` would cost a Python call per batch."""


class Record(NamedTuple):
    """One record, with its absolute offset and timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


NewRecord = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""A record to build: timestamp, key, value, headers."""


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`, without checks.

    The buffer must have at least HEADER_BYTES bytes from `position` on.
    """
    return _new_header(BatchHeader, HEADER.unpack_from(buffer, position))


def batches(
    buffer: Buffer, start: int = 0, end: int | None = None, *, allow_partial: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each batch.

    Raises CorruptBatch for an incomplete batch or an invalid length. With `allow_partial`, an incomplete last
    batch is skipped, since a Fetch response may end with an incomplete batch.
    """
    end = len(buffer) if end is None else end
    position = start
    while position < end:
        if end - position < HEADER_BYTES:
            if allow_partial:
                return
            raise CorruptBatch(f"{plural(end - position, 'byte')} at {position}: fewer than a batch header")
        header = read_header(buffer, position)
        if header.magic != MAGIC:
            raise CorruptBatch(f"the batch at {position} has magic {header.magic}")
        next_position = position + header.size_bytes
        if header.size_bytes < HEADER_BYTES or next_position > end:
            if allow_partial and header.size_bytes >= HEADER_BYTES:
                return
            raise CorruptBatch(f"the batch at {position} has length {header.batch_length}")
        yield position, header
        position = next_position


def crc_is_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Return whether the CRC in the header matches the batch."""
    end = position + LOG_OVERHEAD_BYTES + header.batch_length
    return bool(crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : end]) == header.crc)


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the batch's base offset and leader epoch. The CRC does not cover them."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> BatchHeader:
    """Set the batch's timestamp to the append time, update its CRC and return its new header."""
    attributes = header.attributes & _KNOWN_ATTRIBUTES | TIMESTAMP_TYPE_MASK
    _INT16.pack_into(buffer, position + ATTRIBUTES_AT, attributes)
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, timestamp_ms)
    crc = update_crc(buffer, position, header.size_bytes)
    return header._replace(attributes=attributes, max_timestamp=timestamp_ms, crc=crc)


def stamp_max_timestamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp: int
) -> BatchHeader:
    """Set the batch's maximum timestamp and the type CreateTime, update its CRC and return its new header."""
    attributes = header.attributes & _KNOWN_ATTRIBUTES & ~TIMESTAMP_TYPE_MASK
    _INT16.pack_into(buffer, position + ATTRIBUTES_AT, attributes)
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, timestamp)
    crc = update_crc(buffer, position, header.size_bytes)
    return header._replace(attributes=attributes, max_timestamp=timestamp, crc=crc)


def update_crc(buffer: bytearray | memoryview, position: int, size_bytes: int) -> int:
    """Compute the CRC of a batch that was changed, write it into the batch and return it."""
    crc: int = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes])
    _UINT32.pack_into(buffer, position + CRC_AT, crc)
    return crc


def decompress_records(buffer: Buffer, position: int, header: BatchHeader, max_bytes: int) -> Buffer:
    """Return the batch's records, decompressed.

    Raises CorruptBatch if the records are invalid or exceed `max_bytes`.
    """
    span = memoryview(buffer)[position + HEADER_BYTES : position + LOG_OVERHEAD_BYTES + header.batch_length]
    if not header.attributes & CODEC_MASK:
        return span
    try:
        return decompress(header.codec, span, max_bytes=max_bytes)
    except CompressionError as error:
        raise UnreadableBatch(
            f"the batch at offset {header.base_offset} does not decompress: {error}"
        ) from error


_MAX_LENGTH_BYTES = 5
_MIN_RUN = 8
"""The minimum number of equally long records for which one comparison is faster than reading each length."""


def _run_length(payload: Buffer, at: int, stride: int, limit: int) -> int:
    """Count the records from `at` that are as long as the record before them, up to `limit`.

    Returns 0 if there are too few. Each length leads to the next one, so comparing the bytes at
    multiples of `stride` is enough.
    """
    before = at - stride
    for step in range(_MAX_LENGTH_BYTES):
        first = payload[before + step]
        if (
            limit < _MIN_RUN
            or payload[at + step] != first
            or payload[at + 3 * stride + step] != first
            or payload[at + 7 * stride + step] != first
        ):
            return 0
        column = bytes(payload[at + step : at + step + (limit - 1) * stride + 1 : stride])
        limit -= len(column.lstrip(column[:1]))
        if first < 0x80:
            return limit if limit >= _MIN_RUN else 0
    return 0


def _walk(payload: Buffer, limit: int) -> tuple[int, int]:
    """Skip up to `limit` records by their lengths. Return their number and the position after them.

    Raises CorruptBatch if a record exceeds the batch.
    """
    at, end = 0, len(payload)
    count = start = 0
    interval = 1
    next_check = 1 if limit > _MIN_RUN else limit
    while at < end and count < limit:
        if count == next_check:
            same = _run_length(payload, at, at - start, min(limit - count, (end - at) // (at - start)))
            count += same
            at += same * (at - start)
            # If the lengths keep changing, check less and less often for records of equal length.
            interval = 1 if same else 2 * interval
            next_check = count + interval
            if same:
                continue
        stop = min(limit, next_check)
        for number in range(count, stop):
            if at >= end:
                count = number
                break
            start = at
            length = payload[at]
            at += 1
            if length > 0x7F:
                length &= 0x7F
                shift = 7
                while True:
                    if at >= end:
                        raise CorruptBatch(f"record {number} of the batch has an incomplete length")
                    if shift > 28:
                        raise UnreadableBatch(
                            f"record {number} of the batch has a length of more than 32 bits"
                        )
                    byte = payload[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
            if length & 1:
                raise CorruptBatch(f"record {number} of the batch has a negative length")
            at += (length & _32_BITS) >> 1
        else:
            count = stop
    if at > end:
        raise CorruptBatch(f"record {count - 1} exceeds the batch")
    return count, at


def _varlong(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Read a zigzag varint of up to 10 bytes and 64 bits. Higher bits are dropped, as in Java."""
    return _zigzag(data, at, end, 70, _64_BITS)


def _varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Read a zigzag varint of up to 5 bytes and 32 bits. Higher bits are dropped, as in Java."""
    if at < end and (byte := data[at]) < 0x80:  # nearly all varints
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _zigzag(data, at, end, 35, _32_BITS)


def _zigzag(data: Buffer, at: int, end: int, max_shift: int, mask: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < max_shift:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= mask
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise CorruptBatch(f"a varint before byte {at} is incomplete or too long")


def records(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    from_offset: int | None = None,
    max_bytes: int = 0x7FFFFFFF,
    max_headers: int = 0x7FFFFFFF,
    payload: Buffer | None = None,
) -> Iterator[Record]:
    """Yield the records of the batch at `position` in order, from `from_offset` on if it is given.

    `payload` has the decompressed records, if the caller has already decompressed them.
    Records before `from_offset` are skipped by their lengths, without a check of their contents. Raises
    CorruptBatch for an invalid record, for records that decompress to more than `max_bytes`, and for a record
    with more than `max_headers` headers. The limit on headers exists because a header of two bytes becomes
    Python objects of about 100 bytes.
    """
    data = bytes(decompress_records(buffer, position, header, max_bytes) if payload is None else payload)
    end = len(data)
    at = 0
    append_time = header.max_timestamp if header.has_log_append_time else None
    left, min_delta = header.records_count, _MIN_DELTA
    if from_offset is not None:
        min_delta = from_offset - header.base_offset
        # Compaction may have removed records. An offset delta exceeds the record's number by at most this.
        gaps = max(0, header.last_offset_delta + 1 - left)
        passed, at = _walk(data, min(left, min_delta - gaps))
        left -= passed
    for _ in range(left):
        length, at = _varint(data, at, end)
        stop = at + length
        if length < 0 or stop > end:
            raise CorruptBatch(f"a record has {plural(length, 'byte')} at byte {at} of {end}")
        if at >= stop:
            raise CorruptBatch("a record is empty")
        timestamp_delta, at = _varlong(data, at + 1, stop)
        offset_delta, at = _varint(data, at, stop)
        if offset_delta < min_delta:
            at = stop
            continue
        key, at = _field(data, at, stop)
        value, at = _field(data, at, stop)
        count, at = _varint(data, at, stop)
        if not 0 <= count <= stop - at:
            raise CorruptBatch(f"a record has {plural(count, 'header')}")
        if count > max_headers:
            raise CorruptBatch(f"a record has {plural(count, 'header')}; the limit is {max_headers}")
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = _field(data, at, stop)
            if name is None:
                raise CorruptBatch("a header has no key")
            content, at = _field(data, at, stop)
            headers.append((name.decode("utf-8", "replace"), content))
        if at != stop:
            raise CorruptBatch(f"a record has {plural(stop - at, 'byte')} after its last header")
        timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
        if not -_SIGN <= timestamp < _SIGN:  # wraps as in Java
            timestamp = ((timestamp + _SIGN) & _64_BITS) - _SIGN
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)
    if at != end:
        raise CorruptBatch(f"the batch has {plural(end - at, 'byte')} after its last record")


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at, end)
    if length < 0:  # null, whatever the length is, as in Kafka
        return None, at
    stop = at + length
    if stop > end:
        raise CorruptBatch(f"a field has {plural(length, 'byte')} at byte {at} of {end}")
    return data[at:stop], stop


def control_type(record: Record) -> tuple[int, int]:
    """Return a control record's version and type, from its key. Raises CorruptBatch for an invalid key."""
    if record.key is None or len(record.key) < 4:
        raise CorruptBatch(f"the control record at offset {record.offset} has no type")
    version, kind = _CONTROL.unpack_from(record.key, 0)
    return version, kind


def _append_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _append_field(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        _append_varint(out, len(value))
        out += value


def build(
    new_records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    log_append_time: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    offset_deltas: Sequence[int] | None = None,
) -> bytearray:
    """Build a batch of at least one record, with its CRC.

    The first record's timestamp becomes the base timestamp. With `log_append_time`, all records get that
    timestamp. `offset_deltas` create gaps, as compaction does: one delta for each record, then the batch's
    last offset delta.
    """
    body = bytearray()
    base_timestamp = max_timestamp = NO_TIMESTAMP
    count = 0
    for timestamp, key, value, headers in new_records:
        if not count:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        record = bytearray(1)
        _append_varint(record, timestamp - base_timestamp)
        _append_varint(record, count if offset_deltas is None else offset_deltas[count])
        _append_field(record, key)
        _append_field(record, value)
        _append_varint(record, len(headers))
        for name, content in headers:
            _append_field(record, name.encode())
            _append_field(record, content)
        _append_varint(body, len(record))
        body += record
        count += 1
    if not count:
        raise ValueError("a batch needs at least one record")
    attributes = int(codec)
    if log_append_time is not None:
        attributes |= TIMESTAMP_TYPE_MASK
        max_timestamp = log_append_time
    if transactional:
        attributes |= TRANSACTIONAL_MASK
    if control:
        attributes |= CONTROL_MASK
    payload: Buffer = body if codec == Codec.NONE else compress(codec, body, level)
    out = bytearray(HEADER_BYTES)
    out += payload
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - LOG_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1 if offset_deltas is None else offset_deltas[count],
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    update_crc(out, 0, len(out))
    return out
