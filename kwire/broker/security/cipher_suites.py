"""Java's names of cipher suites, and OpenSSL's names for the same suites.

Java uses the names of IANA's registry. Python has OpenSSL's names, and cannot choose the suites of TLS 1.3.
"""

from __future__ import annotations

from typing import Final

TLS13_SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The suites of TLS 1.3. OpenSSL enables all of them, in this order."""
_KEY_EXCHANGES: Final = {
    "ECDHE_ECDSA": "ECDHE-ECDSA-",
    "ECDHE_RSA": "ECDHE-RSA-",
    "DHE_RSA": "DHE-RSA-",
    "RSA": "",
}
_CIPHERS: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}


def openssl_name(suite: str) -> str | None:
    """Return OpenSSL's name of a TLS 1.2 suite, or None if it has no such suite, or only an unsafe one."""
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not found or exchange not in _KEY_EXCHANGES or cipher not in _CIPHERS:
        return None
    return _KEY_EXCHANGES[exchange] + _CIPHERS[cipher]
