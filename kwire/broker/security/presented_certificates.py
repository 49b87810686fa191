"""The certificate that a peer presents in a handshake, for the log line about its refusal.

OpenSSL keeps the certificates of a peer only after it has verified them. `SSLContext._msg_callback` of Python
gets the messages of a handshake, decrypted. It is not documented; in a Python without it, the log line would
have no subject. After the handshake, the connection gets another context, because the callback would be
called for every record.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any, Final

from kwire.broker.security.distinguished_name import rfc2253_name, subject_of
from kwire.host.loggers import escape_unprintable

CALLBACK: Final = "_msg_callback"
PRESENTED: Final = "presented_message"
CERTIFICATE: Final = 11
"""The type of the handshake's message with the certificates."""
HANDSHAKE: Final = 22
MAX_MESSAGE_BYTES: Final = 64 << 10
MAX_SUBJECT_LENGTH: Final = 1_000


def watch_certificates(context: ssl.SSLContext | None) -> None:
    """Let connections of a context keep the message with the certificates of the peer."""
    if context is not None and hasattr(context, CALLBACK):
        setattr(context, CALLBACK, _keep_message)


def _keep_message(
    tls: ssl.SSLObject, direction: str, version: int, content_type: int, message_type: int, data: bytes
) -> None:
    if direction == "read" and content_type == HANDSHAKE and message_type == CERTIFICATE:
        setattr(tls, PRESENTED, bytes(data[:MAX_MESSAGE_BYTES]))


def end_handshake(tls: ssl.SSLObject) -> None:
    """Keep no more messages of a connection whose handshake is complete."""
    if getattr(tls.context, CALLBACK, None) is not None:
        tls.context = _context_without_callback(is_server=tls.server_side)
        vars(tls).pop(PRESENTED, None)


@cache
def _context_without_callback(*, is_server: bool) -> ssl.SSLContext:
    """Return a context for connections after the handshake, which read nothing else from it."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)


def presented_subject(tls: ssl.SSLObject) -> str:
    """Return the subject of the certificate that the peer has presented; empty if it is unknown."""
    message: Any = getattr(tls, PRESENTED, b"")
    try:
        return escape_unprintable(rfc2253_name(subject_of(_first_certificate(message)))[:MAX_SUBJECT_LENGTH])
    except ValueError:
        return ""


def _first_certificate(message: bytes) -> bytes:
    """Return the first certificate of a message (RFC 8446, 4.4.2; RFC 5246, 7.4.2). Raises ValueError."""
    for start in (5, 4):  # TLS 1.3 has a context, which is empty; TLS 1.2 has none
        size = int.from_bytes(message[start : start + 3], "big")
        if size and start + 3 + size == len(message):
            first = int.from_bytes(message[start + 3 : start + 6], "big")
            return message[start + 6 : start + 6 + first]
    raise ValueError("no certificate")
