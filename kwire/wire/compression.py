"""The codecs of record batches: gzip, snappy, lz4 and zstd, in the formats of the Java client.

Every decompression is bounded. Data that declares or produces more than `max_bytes` is rejected before much
more memory than that is allocated. The codecs' packages are imported when they are first used.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Any

from kwire.wire.primitives import Buffer


class Codec(IntEnum):
    """Compression codecs, by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(Exception):
    """The error for data that the codec cannot decompress."""


class OutputTooLarge(CompressionError):
    """The error for data that decompresses to more bytes than allowed."""


XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
"""The header of snappy-java's framing: a magic, its version, the oldest compatible version. Blocks follow."""
XERIAL_BLOCK_BYTES = 32 * 1024
LZ4_DEFAULT_LEVEL = 9
ZSTD_DEFAULT_LEVEL = 3
CHUNK_BYTES = 64 * 1024
SNAPPY_MAX_RATIO = 64
"""The maximum growth of a snappy block, as a factor: its densest element expands 3 bytes to 64."""
LZ4_CHUNK_RATIO = 8
"""The part of an lz4 frame that is decompressed in one call, as a multiple of the frame's size.

The library allocates this much memory before it decompresses.
"""
ZSTD_SKIPPABLE = 0x184D2A50


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress data as the Java client does: xerial blocks for snappy, independent 64 KiB blocks for lz4.

    `level` is the codec's level. None means Kafka's default. Snappy has no levels.
    """
    if codec == Codec.GZIP:
        compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return compressor.compress(data) + compressor.flush()
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.LZ4:
        import lz4.frame

        framed: bytes = lz4.frame.compress(
            bytes(data),
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            block_checksum=False,
            store_size=False,
        )
        return framed
    if codec == Codec.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=ZSTD_DEFAULT_LEVEL if level is None else level).compress(data)
    return bytes(data)


def decompress(codec: Codec, data: Buffer, *, max_bytes: int) -> bytes:
    """Decompress data.

    Raises OutputTooLarge if the output exceeds `max_bytes`, or CompressionError for invalid data.
    """
    if codec == Codec.GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == Codec.LZ4:
        return _decompress_lz4(data, max_bytes)
    if codec == Codec.ZSTD:
        return _decompress_zstd(data, max_bytes)
    if len(data) > max_bytes:
        raise OutputTooLarge(f"{len(data)} bytes exceed the limit of {max_bytes}")
    return bytes(data)


def _too_large(codec: Codec, max_bytes: int) -> OutputTooLarge:
    return OutputTooLarge(f"{codec.name.lower()} data decompresses to more than {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    out: list[bytes] = []
    left_bytes = max_bytes
    rest: Buffer = data
    # Java's reader continues with the next member, if there is one.
    while len(rest) or not out:
        member = zlib.decompressobj(31)
        try:
            piece = member.decompress(rest, left_bytes + 1)
        except zlib.error as error:
            raise CompressionError(f"gzip: {error}") from None
        if len(piece) > left_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        if not member.eof:
            raise CompressionError("gzip: the data is incomplete")
        out.append(piece)
        left_bytes -= len(piece)
        rest = member.unused_data
    return b"".join(out)


def _compress_xerial(data: Buffer) -> bytes:
    import snappy

    out = bytearray(XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = snappy.compress(bytes(view[start : start + XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes, max_bytes)
    out: list[bytes] = []
    left_bytes = max_bytes
    position, end = len(XERIAL_HEADER), len(view)
    if position > end:
        raise CompressionError("snappy: the header is incomplete")
    while position < end:
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or size > end - position:
            raise CompressionError(
                f"snappy: a block of {size} bytes, but only {end - position} bytes are left"
            )
        block = _decompress_snappy_block(view[position : position + size], left_bytes, max_bytes)
        out.append(block)
        left_bytes -= len(block)
        position += size
    return b"".join(out)


def _decompress_snappy_block(block: memoryview, left_bytes: int, max_bytes: int) -> bytes:
    import snappy

    # The block's preamble declares its decompressed size, which the library allocates: check the size first.
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CompressionError("snappy: a block has no valid length")
    if size > left_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes)
    if size > SNAPPY_MAX_RATIO * len(block):
        raise CompressionError(f"snappy: {len(block)} bytes cannot decompress to {size}")
    try:
        plain: bytes = snappy.uncompress(bytes(block))
    except Exception as error:
        raise CompressionError(f"snappy: {error}") from None
    return plain


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    import lz4.frame

    out: list[bytes] = []
    left_bytes = max_bytes
    frame: Any = lz4.frame.LZ4FrameDecompressor()
    pending: bytes = bytes(data)
    chunk_bytes = max(CHUNK_BYTES, LZ4_CHUNK_RATIO * len(pending))
    try:
        while True:
            piece: bytes = frame.decompress(pending, max_length=min(chunk_bytes, left_bytes + 1))
            if len(piece) > left_bytes:
                raise _too_large(Codec.LZ4, max_bytes)
            out.append(piece)
            left_bytes -= len(piece)
            if frame.eof:
                break
            if frame.needs_input or not piece:
                raise CompressionError("lz4: the data is incomplete")
            pending = b""
    except (RuntimeError, EOFError, MemoryError) as error:
        raise CompressionError(f"lz4: {error}") from None
    return b"".join(out)


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    import zstandard

    out: list[bytes] = []
    left_bytes = max_bytes
    try:
        _check_zstd_frames(memoryview(data))
        # read_across_frames: Java's reader continues with the next frame, if there is one.
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            while True:
                piece = reader.read(min(CHUNK_BYTES, left_bytes + 1))
                if not piece:
                    break
                if len(piece) > left_bytes:
                    raise _too_large(Codec.ZSTD, max_bytes)
                out.append(piece)
                left_bytes -= len(piece)
    except zstandard.ZstdError as error:
        raise CompressionError(f"zstd: {error}") from None
    return b"".join(out)


def _check_zstd_frames(data: memoryview) -> None:
    """Raise CompressionError if the last frame is incomplete. The reader would silently end there."""
    import zstandard

    position, end = 0, len(data)
    while True:
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        else:
            head = bytes(data[position : position + 18])
            position += zstandard.frame_header_size(head)
            is_last = False
            while not is_last and position < end:
                block = int.from_bytes(data[position : position + 3], "little")
                is_last = bool(block & 1)
                # A block of type 1 is a single byte that is repeated.
                position += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
            if not is_last:
                raise CompressionError("zstd: the data is incomplete")
            if zstandard.get_frame_parameters(head).has_checksum:
                position += 4
        if position > end:
            raise CompressionError("zstd: the data is incomplete")
        if position == end:
            return
