"""Texts in PEM format: keys and certificates (RFC 7468)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final

from kwire.wire.named_tuple import NamedTuple

CERTIFICATE: Final = "CERTIFICATE"
PRIVATE_KEY: Final = "PRIVATE KEY"
ENCRYPTED_KEY: Final = "ENCRYPTED PRIVATE KEY"
_LINE: Final = 64
_DASHES: Final = "-----"
_BEGIN: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----")


class PemBlock(NamedTuple):
    """One block of a PEM text."""

    kind: str
    data: bytes

    def __repr__(self) -> str:
        return f"PemBlock({self.kind}, [hidden])"

    def text(self) -> str:
        """Return the block as PEM with line breaks, as OpenSSL requires."""
        body = base64.b64encode(self.data).decode()
        lines = [body[at : at + _LINE] for at in range(0, len(body), _LINE)]
        return "\n".join([f"-----BEGIN {self.kind}-----", *lines, f"-----END {self.kind}-----", ""])


def pem_blocks(text: str) -> Iterator[PemBlock]:
    """Yield the blocks of a PEM text, whose lines may be joined.

    Raises ValueError if a block has no end or is not Base64.
    """
    at = 0
    while found := _BEGIN.search(text, at):
        kind, start = found[1], found.end()
        # Base64 has no dash, so the next dashes begin the end. A search for each end would be quadratic.
        at = text.find(_DASHES, start)
        end = f"-----END {kind}-----"
        if at < 0 or not text.startswith(end, at):
            raise ValueError(f"a block with -----BEGIN {kind}----- has no {end}")
        try:
            yield PemBlock(kind, base64.b64decode("".join(text[start:at].split()), validate=True))
        except binascii.Error as error:
            raise ValueError(f"{error}; keys must be in PKCS #8") from error
        at += len(end)
