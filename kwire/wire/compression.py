"""The codecs of record batches: gzip, snappy, lz4 and zstd, in the formats of the Java client.

Every decompression is bounded. Data that declares or produces more than `max_bytes` is rejected before much
more memory than that is allocated. The codecs' packages are imported when they are first used.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

from kwire.wire.plural import plural
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
XERIAL_VERSION = 1
XERIAL_HEADER = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
"""The header of snappy-java's framing: a magic, its version, the oldest compatible version. Blocks follow."""
XERIAL_BLOCK_BYTES = 32 * 1024
MAX_EMPTY_STREAMS = 1000
"""The maximum number of snappy headers or empty gzip members in a row.

Java's readers call themselves for each one, and overflow their stack after some thousand.
"""
ZSTD_DEFAULT_LEVEL = 3
CHUNK_BYTES = 64 * 1024
SNAPPY_MAX_RATIO = 64
"""The maximum growth of a snappy block, as a factor: its densest element expands 3 bytes to 64."""
GZIP_MAGIC_AND_METHOD = b"\x1f\x8b\x08"
GZIP_HEADER_CRC, GZIP_EXTRA, GZIP_NAME, GZIP_COMMENT = 2, 4, 8, 16
GZIP_TRAILER_BYTES = 8
GZIP_MIN_MEMBER_BYTES = 18
"""The size of a gzip header and trailer without optional fields."""
GZIP_BUFFER_BYTES = 8 * 1024
"""The size of the buffer in which Kafka's reader receives compressed bytes."""
GZIP_FIRST_CHUNK_BYTES = 4096
"""The size of the first chunk of a member. It is small, because zlib copies the bytes after the member."""
LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_VERSION_1 = 0x40
LZ4_INDEPENDENT_BLOCKS = 0x20
LZ4_BLOCK_CHECKSUMS = 0x10
LZ4_CONTENT_SIZE = 0x08
LZ4_CONTENT_CHECKSUM = 0x04
LZ4_FIXED_FLAGS = 0xE3
"""The version, the block independence, a reserved bit and the bit for a dictionary."""
LZ4_MAX_RATIO = 255
"""The maximum growth of an lz4 block, as a factor: each byte of a match length adds at most 255."""
LZ4_UNCOMPRESSED = 0x8000_0000
"""The bit of a block's size for a block that is stored without compression."""
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


def decompress(codec: Codec, data: Buffer, *, max_bytes: int) -> Buffer:
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
        raise OutputTooLarge(f"{plural(len(data), 'byte')}: more than the limit of {max_bytes}")
    return data


def _too_large(codec: Codec, max_bytes: int) -> OutputTooLarge:
    return OutputTooLarge(f"{codec.name.lower()} data decompresses to more than {plural(max_bytes, 'byte')}")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress all members. As in Java, bytes after a member are ignored if they are no complete header.

    Java's GZIPInputStream also ignores a short rest, but only within its current buffer.
    """
    out = bytearray()
    content = bytes(data)
    position = first_buffer = _gzip_header_end(content, 0)
    empty = 0
    while True:
        size_bytes = len(out)
        position = _decompress_member(content, position, out, max_bytes)
        empty = empty + 1 if len(out) == size_bytes else 0
        if empty > MAX_EMPTY_STREAMS:
            raise CompressionError("gzip: too many empty members follow each other")
        filled_bytes = position - GZIP_TRAILER_BYTES - first_buffer
        buffer_end = first_buffer + -(-filled_bytes // GZIP_BUFFER_BYTES) * GZIP_BUFFER_BYTES
        if len(content) <= min(buffer_end, position + GZIP_MIN_MEMBER_BYTES):
            return out
        try:
            position = _gzip_header_end(content, position)
        except CompressionError:
            return out
        if position >= buffer_end:
            first_buffer = position


def _gzip_header_end(data: bytes, start: int) -> int:
    """Return the position after a gzip member's header (RFC 1952). As in Java, unknown flags are ignored."""
    if data[start : start + 3] != GZIP_MAGIC_AND_METHOD:
        raise CompressionError("gzip: this is no gzip data")
    at = start + 10
    flags = data[start + 3] if len(data) >= at else 0
    if flags & GZIP_EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (GZIP_NAME, GZIP_COMMENT):
        if flags & flag:
            at = data.find(b"\0", at) + 1 or len(data) + 1
    if flags & GZIP_HEADER_CRC:
        if zlib.crc32(data[start:at]) & 0xFFFF != int.from_bytes(data[at : at + 2], "little"):
            raise CompressionError("gzip: the header has a wrong CRC")
        at += 2
    if at > len(data):
        raise CompressionError("gzip: the header is incomplete")
    return at


def _decompress_member(data: bytes, start: int, out: bytearray, max_bytes: int) -> int:
    """Append the output of the gzip member whose compressed bytes begin at `start`. Return its end."""
    member = zlib.decompressobj(-zlib.MAX_WBITS)
    view = memoryview(data)
    first = len(out)
    end = start
    chunk_bytes = GZIP_FIRST_CHUNK_BYTES
    try:
        while not member.eof:
            pending: Buffer = view[end : end + chunk_bytes]
            if not len(pending):
                raise CompressionError("gzip: the data is incomplete")
            end += len(pending)
            chunk_bytes = CHUNK_BYTES
            is_full = True
            while is_full:
                piece = member.decompress(pending, CHUNK_BYTES)
                out += piece
                if len(out) > max_bytes:
                    raise _too_large(Codec.GZIP, max_bytes)
                pending = member.unconsumed_tail
                is_full = len(piece) == CHUNK_BYTES and not member.eof
    except zlib.error as error:
        raise CompressionError(f"gzip: {error}") from None
    end -= len(member.unused_data)
    trailer = data[end : end + 8]
    crc, size_bytes = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
    with memoryview(out) as written:
        is_right = crc == zlib.crc32(written[first:]) and size_bytes == (len(out) - first) & 0xFFFFFFFF
    if len(trailer) < 8 or not is_right:
        raise CompressionError("gzip: the trailer has a wrong CRC or size")
    return end + 8


def _compress_xerial(data: Buffer) -> bytes:
    import snappy

    out = bytearray(XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = snappy.compress(bytes(view[start : start + XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    """Decompress a single block, or the blocks of snappy-java's framing."""
    view = memoryview(data)
    if len(view) < len(XERIAL_HEADER) or view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes, max_bytes)
    out = bytearray()
    position, end = 0, len(view)
    headers = 0
    # As in Java, less than the size of a block is ignored at the end.
    while end - position >= 4:
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        if view[position : position + 4] == XERIAL_MAGIC[:4]:
            # Streams can be concatenated.
            if end - position < len(XERIAL_HEADER):
                raise CompressionError("snappy: a header is incomplete")
            if view[position : position + len(XERIAL_MAGIC)] != XERIAL_MAGIC:
                # Java's reader returns the end of the data here once, and continues with the next block.
                if end - position - len(XERIAL_HEADER) >= 4:
                    raise CompressionError("snappy: a header has a wrong magic")
                break
            version = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
            if version < XERIAL_VERSION and position:  # as in Java, the first header may have any version
                raise CompressionError("snappy: the version of the framing is not supported")
            headers += 1
            if headers > MAX_EMPTY_STREAMS:
                raise CompressionError("snappy: too many headers follow each other")
            position += len(XERIAL_HEADER)
            continue
        headers = 0
        position += 4
        if size < 0 or size > end - position:
            raise CompressionError(
                f"snappy: a block of {plural(size, 'byte')} exceeds the {plural(end - position, 'byte')} left"
            )
        out += _decompress_snappy_block(view[position : position + size], max_bytes - len(out), max_bytes)
        position += size
    return out


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
    if size > SNAPPY_MAX_RATIO * len(block):
        raise CompressionError(f"snappy: {plural(len(block), 'byte')} cannot decompress to {size}")
    if size > left_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes)
    try:
        plain: bytes = snappy.uncompress(bytes(block))
    except Exception as error:
        raise CompressionError(f"snappy: {error}") from None
    return plain


def _decompress_lz4(data: Buffer, max_bytes: int) -> Buffer:
    """Decompress the first frame, with the rules of Kafka's Lz4BlockInputStream.

    Blocks must be independent. The checksum of the content is not checked. Bytes after the frame are ignored.
    """
    import lz4.block

    view = memoryview(data)
    position, block_bytes, has_block_checksums, has_content_checksum = _lz4_frame_header(view)
    out = bytearray()
    end = len(view)
    while True:
        if end - position < 4:
            raise CompressionError("lz4: the data is incomplete")
        size = int.from_bytes(view[position : position + 4], "little")
        position += 4
        if not size & ~LZ4_UNCOMPRESSED:
            if has_content_checksum and end - position < 4:
                raise CompressionError("lz4: the data is incomplete")
            return out
        is_compressed = not size & LZ4_UNCOMPRESSED
        size &= ~LZ4_UNCOMPRESSED
        if size > min(block_bytes, end - position):
            raise CompressionError(
                f"lz4: a block has {plural(size, 'byte')}, more than the frame allows or contains"
            )
        block = view[position : position + size]
        position += size
        if is_compressed:
            try:
                # The library allocates this much, and a block of n bytes cannot have more than 255 n.
                most = min(block_bytes, LZ4_MAX_RATIO * size)
                plain: Buffer = lz4.block.decompress(block, uncompressed_size=most)
            except (lz4.block.LZ4BlockError, ValueError) as error:
                raise CompressionError(f"lz4: {error}") from None
        else:
            plain = block
        if has_block_checksums:
            if view[position : position + 4] != xxh32(block):
                raise CompressionError("lz4: a block has a wrong checksum")
            position += 4
        # A consumer takes a block without output for the end of the data.
        if not len(plain):
            return out
        if len(plain) > max_bytes - len(out):
            raise _too_large(Codec.LZ4, max_bytes)
        out += plain


def _lz4_frame_header(view: memoryview) -> tuple[int, int, bool, bool]:
    """Return the size of a frame's header, its block size, and whether blocks and content have checksums."""
    if len(view) < 7 or view[:4] != LZ4_MAGIC:
        raise CompressionError("lz4: this is no lz4 frame")
    flags, descriptor = view[4], view[5]
    block_size_code = descriptor >> 4
    if flags & LZ4_FIXED_FLAGS != LZ4_VERSION_1 | LZ4_INDEPENDENT_BLOCKS:
        if flags & LZ4_FIXED_FLAGS == LZ4_VERSION_1:
            raise CompressionError("lz4: the frame has linked blocks, which no Java client can read")
        raise CompressionError("lz4: the frame has an unknown version or a dictionary")
    if descriptor & 0x8F or not 4 <= block_size_code <= 7:
        raise CompressionError("lz4: the frame has an invalid block size")
    position = 6 + (8 if flags & LZ4_CONTENT_SIZE else 0)
    if len(view) <= position:
        raise CompressionError("lz4: the data is incomplete")
    if view[position] != xxh32(view[4:position])[1]:
        raise CompressionError("lz4: the frame's header has a wrong checksum")
    block_bytes = 1 << (2 * block_size_code + 8)
    return position + 1, block_bytes, bool(flags & LZ4_BLOCK_CHECKSUMS), bool(flags & LZ4_CONTENT_CHECKSUM)


def xxh32(data: Buffer) -> bytes:
    """Return the checksum of lz4 frames, in little-endian order."""
    import xxhash

    return xxhash.xxh32_digest(data)[::-1]


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytearray:
    import zstandard

    out = bytearray()
    try:
        _check_zstd_frames(memoryview(data))
        # read_across_frames: Java's reader continues with the next frame, if there is one.
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(CHUNK_BYTES):
                out += piece
                if len(out) > max_bytes:
                    raise _too_large(Codec.ZSTD, max_bytes)
    except zstandard.ZstdError as error:
        raise CompressionError(f"zstd: {error}") from None
    return out


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
