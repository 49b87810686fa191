"""TLS from a client's properties, and explanations of failed handshakes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from kwire.broker.security.tls_context import client_context
from kwire.broker.security.tls_stores import MAX_STORE_BYTES, load_key_store, load_trust_store
from kwire.client.errors import SecurityMismatch

HOSTNAME_MISMATCH, IP_MISMATCH = 62, 64
"""OpenSSL's codes for a certificate with another name."""


def create_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for these properties. Raises ValueError with a message about the wrong key."""
    return client_context(
        properties, load_key_store(properties, _read_file), load_trust_store(properties, _read_file)
    )


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_STORE_BYTES + 1)


# --- explanations of handshake errors


def explain_handshake_error(error: OSError, address: str) -> SecurityMismatch | None:
    """Return an error with the reason and the remedy; None if the reason is unknown."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message.rstrip(".")
        if error.verify_code in (HOSTNAME_MISMATCH, IP_MISMATCH):
            return SecurityMismatch(
                f"{address} has a certificate for another name ({what}): connect to that name, or set "
                f"ssl.endpoint.identification.algorithm= to skip the check"
            )
        return SecurityMismatch(
            f"{address} has a certificate that is not trusted ({what}): set ssl.truststore.location to its "
            f"authority's certificate, with ssl.truststore.type=PEM"
        )
    reason = getattr(error, "reason", None) or ""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in reason:
        return None
    alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
    if "certificate" in alert or alert == "unknown ca":
        return SecurityMismatch(
            f"{address} requires a client certificate that it trusts ({alert}): set "
            f"ssl.keystore.location, with ssl.keystore.type=PEM"
        )
    return SecurityMismatch(f"{address} rejects the TLS handshake: {alert}")
