"""Certificates for tests, created with openssl: for a certificate authority, loopback servers and clients."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

LOOPBACK: Final = "subjectAltName=IP:127.0.0.1,DNS:localhost"
VALID_DAYS: Final = 2


class Certificates:
    """A certificate authority and the certificates that it issued, as PEM files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = directory / "authority.pem"
        key = directory / "authority.key"
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority"),
            *("-days", str(VALID_DAYS)),
            *("-keyout", str(key), "-out", str(self.authority)),
        )
        self._authority_key = key

    def issue(self, name: str, extension: str = LOOPBACK, *, file: str = "", days: int = VALID_DAYS) -> Path:
        """Write a new private key and its certificate into one file, as a keystore of type PEM.

        `file` is the name of the file without its suffix; by default the common name of the certificate.
        With a negative number of `days`, the certificate has expired.
        """
        stem = self._directory / (file or name)
        key, request, own, extensions = (stem.with_suffix(f".{one}") for one in ("key", "csr", "crt", "ext"))
        extensions.write_text(f"{extension}\n")
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(request)),
        )
        self._openssl(
            *("x509", "-req", "-days", str(days), "-in", str(request), "-CA", str(self.authority)),
            *("-CAkey", str(self._authority_key), "-CAcreateserial", "-extfile", str(extensions)),
            *("-out", str(own)),
        )
        both = stem.with_suffix(".pem")
        both.write_text(key.read_text() + own.read_text())
        return both

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
