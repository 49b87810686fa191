"""`kwire logs verify` of segments with batches that Kafka's clients cannot read."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import lz4.frame
import pytest

from kwire.wire.batch import HEADER_BYTES, LENGTH_AT, LOG_OVERHEAD_BYTES, build, update_crc
from kwire.wire.compression import Codec
from tests.cli.run_command import RunCommand

LINKED_BLOCKS = "the frame has linked blocks, which no Java client can read"
SEGMENT = "00000000000000000000.log"


def good_batch(offset: int, codec: Codec = Codec.NONE) -> bytes:
    return bytes(build([(1, b"k", b"v" * 1000, [("h", None)])] * 3, base_offset=offset, codec=codec))


def batch_with_payload(offset: int, payload: bytes, codec: Codec = Codec.NONE) -> bytes:
    batch = build([(1, None, b"", [])], base_offset=offset)[:HEADER_BYTES] + payload
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LOG_OVERHEAD_BYTES)
    struct.pack_into(">h", batch, 21, codec)
    update_crc(batch, 0, len(batch))
    return bytes(batch)


def write_segment(directory: Path, *batches: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / SEGMENT
    path.write_bytes(b"".join(batches))
    return path


@pytest.mark.parametrize("codec", list(Codec))
def test_readable_batches_have_no_problem(offline: RunCommand, tmp_path: Path, codec: Codec) -> None:
    write_segment(tmp_path / "orders-0", good_batch(0, codec), good_batch(3, codec))
    write_segment(tmp_path / "orders-1", bytes(4096))  # preallocated
    result = offline("logs", "verify", str(tmp_path))
    assert (result.status, result.err) == (0, "all 2 batches can be read\n")


def test_each_unreadable_batch_is_named(offline: RunCommand, tmp_path: Path) -> None:
    record = bytes.fromhex("0c 00 00 00 01 01 00")
    bad = [
        batch_with_payload(3, bytes.fromhex("10 00 00 00 01 01 02 01 01")),
        batch_with_payload(4, lz4.frame.compress(record * 20_000, block_linked=True), Codec.LZ4),
        batch_with_payload(5, record * 2),
        good_batch(6)[:-1] + b"\x03",
    ]
    path = write_segment(tmp_path / "orders-0", good_batch(0), *bad, good_batch(9)[:70])
    result = offline("logs", "verify", str(tmp_path), "--json")
    assert result.status == 1
    rows = json.loads(result.out)
    assert {row["segment"] for row in rows} == {str(path)}
    assert [(row["base_offset"], row["problem"]) for row in rows] == [
        (3, "Record 0 has a header without a key"),
        (4, f"the batch at offset 4 does not decompress: lz4: {LINKED_BLOCKS}"),
        (5, "Bytes follow the 1 records that the header counts"),
        (6, "the CRC is wrong"),
        (None, rows[-1]["problem"]),
    ]
    assert "exceeds the 70 bytes left" in rows[-1]["problem"]
    assert offline("logs", "verify", str(path)).out.count("\n") == 6


def test_damage_outside_of_the_crc_is_named(offline: RunCommand, tmp_path: Path) -> None:
    magic, offset = bytearray(good_batch(3)), bytearray(good_batch(6))
    magic[16] = 5
    struct.pack_into(">q", offset, 0, 2)
    write_segment(tmp_path / "orders-0", good_batch(0), bytes(magic), bytes(offset), good_batch(9))
    result = offline("logs", "verify", str(tmp_path), "--json")
    assert result.status == 1
    assert [(row["base_offset"], row["problem"]) for row in json.loads(result.out)] == [
        (3, "the magic is 5"),
        (2, "the base offset is below 3"),
    ]


@pytest.mark.parametrize("name", ["nothing", "empty", "orders.index"])
def test_path_without_segments_is_an_error(offline: RunCommand, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "orders.index").write_bytes(b"")
    result = offline("logs", "verify", str(tmp_path / name))
    assert result.status == 1
    assert name in result.err
