"""Compression codecs: round trips, compatibility with other clients and limits."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import snappy
import zstandard

from kwire.wire.compression import (
    XERIAL_BLOCK_BYTES,
    XERIAL_HEADER,
    Codec,
    CompressionError,
    OutputTooLarge,
    compress,
    decompress,
)
from tests.wire import kafka_json

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
ENDLESS = 0x7FFFFFFF

DATA = {
    "nothing": b"",
    "a byte": b"x",
    "text": b"".join(b"line %d of a log\n" % line for line in range(9000)),
    "noise": random.Random(1).randbytes(70_000),
    "zeros": bytes(300_000),
}


def kafka_python_codec(name: str) -> Callable[[bytes], bytes]:
    """Return a codec function of kafka-python, such as gzip_encode."""
    found: Any = getattr(kafka_json.reference("kafka.codec"), name)
    return lambda data: bytes(found(data))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("codec", list(Codec))
def test_codec_round_trip(codec: Codec, name: str) -> None:
    data = DATA[name]
    for buffer in (data, bytearray(data), memoryview(data)):
        packed = compress(codec, buffer)
        assert decompress(codec, memoryview(packed), max_bytes=len(data)) == data


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_are_compatible_with_kafka_python(codec: Codec, name: str) -> None:
    data = DATA[name]
    short = codec.name.lower()
    if data or codec is not Codec.SNAPPY:  # its reader takes a header without blocks for a raw block
        assert kafka_python_codec(f"{short}_decode")(compress(codec, data)) == data
    assert decompress(codec, kafka_python_codec(f"{short}_encode")(data), max_bytes=ENDLESS) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_compression_levels(codec: Codec) -> None:
    choose = random.Random(1)
    data = b" ".join(choose.choice((b"kafka", b"log", b"%d" % turn)) for turn in range(20_000))
    low, high = compress(codec, data, 1), compress(codec, data, 9)
    assert len(high) < len(low)
    assert decompress(codec, low, max_bytes=ENDLESS) == decompress(codec, high, max_bytes=ENDLESS) == data


def test_snappy_raw_and_block_format() -> None:
    """Some clients send one raw block; the Java client sends a header and blocks of 32 KiB."""
    data = DATA["text"]
    raw: bytes = snappy.compress(data)
    assert decompress(Codec.SNAPPY, raw, max_bytes=len(data)) == data
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    position, sizes = len(XERIAL_HEADER), []
    while position < len(framed):
        size = int.from_bytes(framed[position : position + 4], "big")
        sizes.append(len(snappy.uncompress(framed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert sizes == [XERIAL_BLOCK_BYTES] * (len(data) // XERIAL_BLOCK_BYTES) + [
        len(data) % XERIAL_BLOCK_BYTES
    ]
    assert decompress(Codec.SNAPPY, XERIAL_HEADER, max_bytes=0) == b""


def test_lz4_frames_are_readable_by_java() -> None:
    """Java's reader supports only independent blocks of at most 64 KiB."""
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, DATA["text"]))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert not info["content_checksum"]


def lz4_frame(data: bytes, *, linked: bool = False, checked: bool = False, sized: bool = False) -> bytes:
    frame: bytes = lz4.frame.compress(
        data, block_linked=linked, content_checksum=checked, block_checksum=checked, store_size=sized
    )
    return frame


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("sized", [True, False])
def test_lz4_frames_of_other_clients(checked: bool, sized: bool) -> None:
    data = DATA["text"] + DATA["noise"]
    frame = lz4_frame(data, checked=checked, sized=sized)
    assert decompress(Codec.LZ4, frame, max_bytes=len(data)) == data
    assert decompress(Codec.LZ4, frame + b"what follows is ignored", max_bytes=len(data)) == data


def test_lz4_frame_with_linked_blocks_is_refused() -> None:
    """Java's reader cannot read such a frame. It is the default of lz4.frame.compress and of the tool lz4."""
    with pytest.raises(CompressionError, match="linked blocks"):
        decompress(Codec.LZ4, lz4_frame(DATA["text"], linked=True), max_bytes=ENDLESS)


def test_lz4_checksums() -> None:
    """A frame's header and its blocks are checked, but not the content, as in Java."""
    frame = lz4_frame(DATA["text"], checked=True)
    for position in (4, 5, 6, 11, 500):
        changed = bytearray(frame)
        changed[position] ^= 0x10
        with pytest.raises(CompressionError):
            decompress(Codec.LZ4, bytes(changed), max_bytes=ENDLESS)
    assert decompress(Codec.LZ4, frame[:-4] + bytes(4), max_bytes=ENDLESS) == DATA["text"]
    with pytest.raises(CompressionError, match="incomplete"):
        decompress(Codec.LZ4, frame[:-1], max_bytes=ENDLESS)


@pytest.mark.parametrize("flags", [0x02, 0x04, 0x08, 0x10, 0x1E, 0xE0])
def test_gzip_header_fields(flags: int) -> None:
    """Java ignores unknown flags."""
    header = bytearray(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
    header[3] = flags
    if flags & 0x04:
        header += b"\x03\x00abc"
    if flags & 0x08:
        header += b"a name\0"
    if flags & 0x10:
        header += b"a comment\0"
    if flags & 0x02:
        header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    packed = bytes(header) + compress(Codec.GZIP, DATA["text"])[10:]
    assert decompress(Codec.GZIP, packed, max_bytes=ENDLESS) == DATA["text"]
    if flags & 0x02:
        with pytest.raises(CompressionError, match="wrong CRC"):
            decompress(Codec.GZIP, packed[:9] + b"\0" + packed[10:], max_bytes=ENDLESS)
    for end in range(len(header)):
        with pytest.raises(CompressionError):
            decompress(Codec.GZIP, packed[:end], max_bytes=ENDLESS)


def test_gzip_trailer() -> None:
    packed = compress(Codec.GZIP, DATA["text"])
    for position in (-8, -5, -4, -1):
        changed = bytearray(packed)
        changed[position] ^= 1
        with pytest.raises(CompressionError, match="trailer"):
            decompress(Codec.GZIP, bytes(changed), max_bytes=ENDLESS)
    for rest in (b"x", b"\x1f\x8b\x08", bytes(100)):
        assert decompress(Codec.GZIP, packed + rest, max_bytes=ENDLESS) == DATA["text"]
    header_of_another_member = b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 9 + b"\0"
    with pytest.raises(CompressionError, match="incomplete"):
        decompress(Codec.GZIP, packed + header_of_another_member, max_bytes=ENDLESS)


@pytest.mark.parametrize(
    ("header_bytes", "least", "most"),
    [(18, 8185, 8210), (10, 8193, 8210)],
)
def test_short_gzip_header_at_a_border_of_javas_buffer_is_incomplete(
    header_bytes: int, least: int, most: int
) -> None:
    """The lengths of the first member were found with Java's GZIPInputStream."""
    header = b"\x1f\x8b\x08" + bytes(header_bytes - 3)
    content = random.Random(0).randbytes(9000)
    for length in (least - 1, least, most, most + 1):
        size_bytes = next(
            size for size in range(length, 0, -1) if len(compress(Codec.GZIP, content[:size])) == length
        )
        packed = compress(Codec.GZIP, content[:size_bytes])
        if least <= length <= most:
            with pytest.raises(CompressionError):
                decompress(Codec.GZIP, packed + header, max_bytes=ENDLESS)
        else:
            assert len(decompress(Codec.GZIP, packed + header, max_bytes=ENDLESS)) == size_bytes


@pytest.mark.parametrize("first", [True, False])
def test_gzip_members_without_data_in_a_row_are_limited(first: bool) -> None:
    packed, empty = compress(Codec.GZIP, b"data"), compress(Codec.GZIP, b"")
    for count in (1, 1000):
        data = empty * count + packed if first else packed + empty * count
        assert decompress(Codec.GZIP, data, max_bytes=ENDLESS) == b"data"
    with pytest.raises(CompressionError, match="too many empty members"):
        decompress(Codec.GZIP, empty * 1001 + packed, max_bytes=ENDLESS)


def test_xerial_headers_within_a_stream() -> None:
    stream = compress(Codec.SNAPPY, b"first")
    older = XERIAL_HEADER[:8] + bytes(4) + XERIAL_HEADER[12:]
    with pytest.raises(CompressionError, match="version"):
        decompress(Codec.SNAPPY, stream + older + stream[16:], max_bytes=ENDLESS)
    assert decompress(Codec.SNAPPY, older + stream[16:], max_bytes=ENDLESS) == b"first"
    with pytest.raises(CompressionError, match="too many headers"):
        decompress(Codec.SNAPPY, stream + XERIAL_HEADER * 2000, max_bytes=ENDLESS)
    no_header = b"\x82SNAPPY\1" + XERIAL_HEADER[8:]
    for rest in (b"", b"abc"):
        assert decompress(Codec.SNAPPY, stream + no_header + rest, max_bytes=ENDLESS) == b"first"
    for rest in (bytes(4), stream[16:], no_header):
        with pytest.raises(CompressionError, match="wrong magic"):
            decompress(Codec.SNAPPY, stream + no_header + rest, max_bytes=ENDLESS)
    many = stream * 500
    assert decompress(Codec.SNAPPY, many, max_bytes=ENDLESS) == b"first" * 500


def test_concatenated_members_and_frames() -> None:
    """Java's readers of gzip, snappy and zstd continue with the next member, stream or frame."""
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.ZSTD):
        twice = compress(codec, b"first ") + compress(codec, b"second")
        assert decompress(codec, twice, max_bytes=12) == b"first second"
        with pytest.raises(OutputTooLarge):
            decompress(codec, twice, max_bytes=11)
    skipped = bytes.fromhex("50 2a 4d 18 03 000000") + b"abc"
    for data in (skipped + compress(Codec.ZSTD, b"x"), compress(Codec.ZSTD, b"x") + skipped):
        assert decompress(Codec.ZSTD, data, max_bytes=1) == b"x"


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("sized", [True, False])
def test_zstd_frames_of_other_clients(checked: bool, sized: bool) -> None:
    packer = zstandard.ZstdCompressor(level=19, write_checksum=checked, write_content_size=sized)
    for data in DATA.values():
        assert decompress(Codec.ZSTD, packer.compress(data), max_bytes=len(data)) == data


@pytest.mark.parametrize("name", ["text", "noise", "zeros"])
@pytest.mark.parametrize("codec", list(Codec))
def test_output_of_exactly_the_limit_is_accepted(codec: Codec, name: str) -> None:
    data = DATA[name]
    packed = compress(codec, data)
    assert len(decompress(codec, packed, max_bytes=len(data))) == len(data)
    for most in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(OutputTooLarge):
            decompress(codec, packed, max_bytes=most)


def bomb(codec: Codec) -> bytes:
    """Return a few kilobytes that decompress to 64 MiB."""
    zeros = bytes(1 << 20)
    if codec == Codec.GZIP:
        return compress(codec, bytes(1 << 26))
    if codec == Codec.SNAPPY:
        block: bytes = snappy.compress(zeros)
        return XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * 64
    if codec == Codec.LZ4:
        return compress(codec, bytes(1 << 26))
    return compress(codec, zeros) * 64


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_bomb_is_bounded(codec: Codec) -> None:
    packed = bomb(codec)
    most = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(
            OutputTooLarge, match=f"{codec.name.lower()} data decompresses to more than {most}"
        ):
            decompress(codec, packed, max_bytes=most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The input may be copied once, and the output grows in steps and by one piece.
    assert peak < len(packed) * 2 + most * 5 / 2 + XERIAL_BLOCK_BYTES


@pytest.mark.parametrize("codec", CODECS)
def test_large_limit_allocates_no_memory(codec: Codec) -> None:
    """The limit is not allocated in advance."""
    packed = compress(codec, DATA["text"])
    decompress(codec, packed, max_bytes=ENDLESS)
    tracemalloc.start()
    try:
        decompress(codec, packed, max_bytes=ENDLESS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(DATA["text"])


def test_wrong_snappy_length_is_refused() -> None:
    """The library allocates the length before a block, so the length must be plausible."""
    for lie in (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10"):
        with pytest.raises(CompressionError):
            decompress(Codec.SNAPPY, lie + b"\x00x", max_bytes=ENDLESS)
    with pytest.raises(CompressionError, match="cannot decompress to"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\x07\x00x", max_bytes=ENDLESS)
    for block in (b"", b"\x80", b"\x80\x80\x80\x80\x80\x01", b"\x05\x00x"):
        with pytest.raises(CompressionError):
            decompress(Codec.SNAPPY, block, max_bytes=ENDLESS)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x09"])
def test_wrong_snappy_block_size_is_refused(size: bytes) -> None:
    with pytest.raises(CompressionError, match="a block of"):
        decompress(Codec.SNAPPY, XERIAL_HEADER + size, max_bytes=ENDLESS)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_data_is_refused(codec: Codec) -> None:
    """Every codec detects missing data, except between two blocks of snappy's framing, which has no end mark.

    As in Java, the framing may also end within the four bytes of a block's size.
    """
    packed = compress(codec, DATA["text"])
    whole_blocks: set[int] = set()
    if codec == Codec.SNAPPY:
        position = len(XERIAL_HEADER)
        while position < len(packed):
            whole_blocks.update(range(position, position + 4))
            position += 4 + int.from_bytes(packed[position : position + 4], "big")
    for end in [*range(40), *range(40, len(packed), 97), *range(len(packed) - 20, len(packed))]:
        if end in whole_blocks:
            continue
        with pytest.raises(CompressionError):
            decompress(codec, packed[:end], max_bytes=ENDLESS)


@pytest.mark.parametrize("codec", CODECS)
def test_random_and_changed_data_is_bounded(codec: Codec) -> None:
    """The data raises CompressionError or decompresses within the limit."""
    choose = random.Random(codec.name)
    packed = compress(codec, DATA["text"][:5000])
    most = 20_000
    for turn in range(1500):
        changed = bytearray(packed if turn % 3 else choose.randbytes(choose.randrange(60)) + packed[:9])
        for _ in range(choose.randint(1, 3)):
            changed[choose.randrange(len(changed))] = choose.randrange(256)
        try:
            assert len(decompress(codec, changed, max_bytes=most)) <= most
        except CompressionError:
            continue
