"""Certificates for development and tests: an authority, and certificates of nodes and clients.

Everything is made in memory. The modules of this package need the optional package `cryptography`, whose
import takes 60 ms, so import them only if certificates are made.
"""

from __future__ import annotations


class CertificatesUnavailable(ImportError):
    """The package `cryptography` is not installed."""
