"""The codecs of record batches: gzip, snappy, lz4 and zstd, as Java's client writes and reads them.

Every decompression is bounded: a batch that claims, or turns out, to hold more than `max_bytes` is refused
before
more than about that has been allocated. The codecs' packages are imported when they are first used.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Any

from kwire.wire.primitives import Buffer


class Codec(IntEnum):
    """Compression codecs by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(Exception):
    """Data that the codec cannot read."""


class OutputTooLarge(CompressionError):
    """Data that would decompress to more than is allowed."""


XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
"""How snappy-java frames a stream: a magic, its version, the oldest version that can read it, then blocks."""
XERIAL_BLOCK_BYTES = 32 * 1024
LZ4_DEFAULT_LEVEL = 9
ZSTD_DEFAULT_LEVEL = 3
CHUNK_BYTES = 64 * 1024
SNAPPY_MAX_RATIO = 64
"""A snappy block cannot grow by more: its densest element makes 64 bytes of 3."""
LZ4_CHUNK_RATIO = 8
"""How much of an lz4 frame is decompressed at once, in multiples of its size: as much is allocated first."""
ZSTD_SKIPPABLE = 0x184D2A50


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress as the Java client does: xerial blocks for snappy, independent 64 KiB blocks for lz4.

    `level` is the codec's own; None is Kafka's default, and snappy has none.
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
    """The bytes that were compressed. OutputTooLarge beyond `max_bytes`; CompressionError for other
    faults.
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
        raise OutputTooLarge(f"{len(data)} bytes are more than {max_bytes}")
    return bytes(data)


def _too_large(codec: Codec, max_bytes: int) -> OutputTooLarge:
    return OutputTooLarge(f"{codec.name.lower()} data decompresses to more than {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    out: list[bytes] = []
    left_bytes = max_bytes
    rest: Buffer = data
    # Java's reader goes on with a next member where one follows.
    while len(rest) or not out:
        member = zlib.decompressobj(31)
        try:
            piece = member.decompress(rest, left_bytes + 1)
        except zlib.error as error:
            raise CompressionError(f"gzip: {error}") from None
        if len(piece) > left_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        if not member.eof:
            raise CompressionError("gzip: the data ends in the middle")
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
        raise CompressionError("snappy: the data ends in the header")
    while position < end:
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or size > end - position:
            raise CompressionError(f"snappy: a block of {size} bytes, {end - position} are left")
        block = _decompress_snappy_block(view[position : position + size], left_bytes, max_bytes)
        out.append(block)
        left_bytes -= len(block)
        position += size
    return b"".join(out)


def _decompress_snappy_block(block: memoryview, left_bytes: int, max_bytes: int) -> bytes:
    import snappy

    # The block's preamble says how large it becomes, and so much is allocated: it has to be possible.
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CompressionError("snappy: no valid length in front of a block")
    if size > left_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes)
    if size > SNAPPY_MAX_RATIO * len(block):
        raise CompressionError(f"snappy: {len(block)} bytes cannot become {size}")
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
                raise CompressionError("lz4: the data ends in the middle")
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
        # read_across_frames: Java's reader goes on with a next frame where one follows.
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
    """CompressionError where the last frame is not whole: the reader would end as if all had been there."""
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
                # A block of type 1 is one byte, repeated.
                position += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
            if not is_last:
                raise CompressionError("zstd: the data ends in the middle")
            if zstandard.get_frame_parameters(head).has_checksum:
                position += 4
        if position > end:
            raise CompressionError("zstd: the data ends in the middle")
        if position == end:
            return
