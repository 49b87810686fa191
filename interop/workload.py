"""The records that all client scenarios send."""

from __future__ import annotations

from dataclasses import dataclass

BASE_TIMESTAMP = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True)
class Sent:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def records(count: int) -> list[Sent]:
    """Return records of several kinds: without key, value or headers, with equal keys, of different sizes.

    Each record has a key or a value.
    """
    return [
        Sent(
            key=None if index % 7 == 0 else f"key-{index % 10}".encode(),
            value=None if index % 11 == 5 and index % 7 else f"value-{index}".encode() * (1 + index % 40),
            headers=[("n", str(index).encode()), ("n", b""), ("ü", b"\x00\xff")] if index % 3 == 0 else [],
            timestamp_ms=BASE_TIMESTAMP + index * 1000,
        )
        for index in range(count)
    ]
