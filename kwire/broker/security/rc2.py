"""Decryption of RC2 in CBC mode (RFC 2268).

Java up to 8u301 and OpenSSL up to 1.1 encrypt the certificates of a PKCS12 store with RC2 and 40-bit keys. No
current library decrypts that: OpenSSL 3 needs its legacy provider, and `cryptography` only has 128-bit keys.
"""

from __future__ import annotations

import struct
from typing import Final

BLOCK: Final = 8
_PI: Final = bytes.fromhex(
    "d978f9c419ddb5ed28e9fd794aa0d89dc67e37832b76538e624c6488448bfba2179a59f587b34f1361456d8d09817d32"
    "bd8f40eb86b77b0bf09521225c6b4e8254d66593ce60b21c7356c014a78cf1dc1275ca1f3bbee4d1423dd430a33cb626"
    "6fbf0eda4669075727f21d9bbc944303f811c7f690ef3ee706c3d52fc8661ed708e8eade8052eef784aa72ac354d6a2a"
    "961ad2715a1549744b9fd05e0418a4ecc2e0416e0f51cbcc2491af50a1f47039997c3a8523b8b47afc02365b25559731"
    "2d5dfa98e38a92ae05df2910676cbac9d300e6cfe19ea82c6316013f58e289a90d38341bab33ffb0bb480c5fb9b1cd2e"
    "c5f3db47e5a59c770aa62068fe7fc1ad"
)
"""The digits of pi, as RFC 2268 arranges them."""


def expand_key(key: bytes, bits: int) -> tuple[int, ...]:
    """Return the 64 words of the key schedule for a key of `bits` effective bits."""
    table = bytearray(key)
    for at in range(len(key), 128):
        table.append(_PI[(table[at - 1] + table[at - len(key)]) & 0xFF])
    size = (bits + 7) // 8
    table[128 - size] = _PI[table[128 - size] & 0xFF >> (8 * size - bits)]
    for at in reversed(range(128 - size)):
        table[at] = _PI[table[at + 1] ^ table[at + size]]
    return struct.unpack("<64H", table)


def decrypt_rc2_cbc(key: bytes, bits: int, initial: bytes, data: bytes) -> bytes:
    """Decrypt whole blocks. The result still has its padding."""
    words = expand_key(key, bits)
    previous, found = int.from_bytes(initial, "big"), []
    for at in range(0, len(data), BLOCK):
        block = data[at : at + BLOCK]
        found.append((int.from_bytes(_decrypt_block(words, block), "big") ^ previous).to_bytes(BLOCK, "big"))
        previous = int.from_bytes(block, "big")
    return b"".join(found)


def _decrypt_block(words: tuple[int, ...], block: bytes) -> bytes:
    a, b, c, d = struct.unpack("<4H", block)
    for at in range(60, -4, -4):
        d = (d << 11 | d >> 5) & 0xFFFF
        d = d - words[at + 3] - (c & b) - (~c & a) & 0xFFFF
        c = (c << 13 | c >> 3) & 0xFFFF
        c = c - words[at + 2] - (b & a) - (~b & d) & 0xFFFF
        b = (b << 14 | b >> 2) & 0xFFFF
        b = b - words[at + 1] - (a & d) - (~a & c) & 0xFFFF
        a = (a << 15 | a >> 1) & 0xFFFF
        a = a - words[at] - (d & c) - (~d & b) & 0xFFFF
        if at in (44, 20):
            d = d - words[c & 63] & 0xFFFF
            c = c - words[b & 63] & 0xFFFF
            b = b - words[a & 63] & 0xFFFF
            a = a - words[d & 63] & 0xFFFF
    return struct.pack("<4H", a, b, c, d)
