"""The fields of an X.509 certificate in DER (RFC 5280)."""

from __future__ import annotations

from calendar import timegm
from typing import Final

from kwire.broker.security.der import (
    INTEGER,
    OCTET_STRING,
    SEQUENCE,
    Element,
    MalformedDer,
    read_element,
    read_first,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

_VERSION, _EXTENSIONS = 0xA0, 0xA3
_SUBJECT_KEY_ID: Final = "2.5.29.14"
_AUTHORITY_KEY_ID: Final = "2.5.29.35"
_KEY_ID: Final = 0x80
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


class CertificateFields(NamedTuple):
    """The fields of a certificate."""

    der: bytes
    issuer: bytes
    """The distinguished name of the issuer, as DER."""
    validity: Element
    """The first and the last second in which the certificate is valid, for `validity_of`."""
    subject: bytes
    """The distinguished name of the subject, as DER."""
    key_algorithm: str
    """The object identifier of the public key's algorithm."""
    subject_key_id: bytes | None
    authority_key_id: bytes | None
    extensions: dict[str, bytes]
    """The values of all extensions, as DER, by object identifier."""


def parse_certificate(der: bytes) -> CertificateFields:
    """Parse a certificate. Raises MalformedDer."""
    certificate = read_first(der)
    if rest := len(der) - len(certificate.encoding):
        raise MalformedDer(
            f"malformed certificate: {plural(rest, 'byte')} behind it, which OpenSSL would trust, too"
        )
    parts = certificate.expect(SEQUENCE).children()
    if len(parts) != 3:
        raise MalformedDer(f"malformed certificate: it has {len(parts)} parts, not 3")
    fields = parts[0].expect(SEQUENCE).children()
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    if [one.tag for one in fields[:6]] != [INTEGER, *[SEQUENCE] * 5]:
        raise MalformedDer("malformed certificate: fields before the extensions are missing")
    _serial, _algorithm, issuer, validity, subject, key = fields[:6]
    extensions = _extensions(fields[6:])
    return CertificateFields(
        der,
        issuer.encoding,
        validity,
        subject.encoding,
        _key_algorithm(key),
        _subject_key_id(extensions),
        _authority_key_id(extensions),
        extensions,
    )


class Validity(NamedTuple):
    """The times in ms since 1970 between which a certificate is valid, both included."""

    not_before_ms: int
    not_after_ms: int


def validity_of(certificate: CertificateFields) -> Validity:
    """Return when a certificate is valid. Raises MalformedDer."""
    times = certificate.validity.children()
    if len(times) != 2:
        raise MalformedDer(f"malformed certificate: its validity has {len(times)} parts, not 2")
    return Validity(_milliseconds(times[0]), _milliseconds(times[1]))


def _milliseconds(time: Element) -> int:
    """Return a time in ms since 1970. RFC 5280, section 4.1.2.5."""
    text = time.content
    if time.tag == _UTC_TIME and len(text) == 13:
        text = (b"19" if text[:2] >= b"50" else b"20") + text
    elif time.tag != _GENERALIZED_TIME:
        text = b""
    if len(text) != 15 or not text[:14].isdigit() or text[14:] != b"Z":
        raise MalformedDer(f"malformed certificate: its validity has the time {time.content!r}")
    year, month, day, hour, minute, second = (int(text[at : at + 2]) for at in (2, 4, 6, 8, 10, 12))
    year += 100 * int(text[:2])
    if not (year and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 60):
        raise MalformedDer(f"malformed certificate: its validity has the time {time.content!r}")
    return 1000 * timegm((year, month, day, hour, minute, second))


def _key_algorithm(key: Element) -> str:
    parts = key.children()
    algorithm = parts[0].expect(SEQUENCE).children() if parts else []
    if not algorithm:
        raise MalformedDer("malformed certificate: the public key has no algorithm")
    return algorithm[0].oid()


def _extensions(fields: list[Element]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for field in fields:
        if field.tag != _EXTENSIONS:
            continue
        for extension in read_element(field.content).expect(SEQUENCE).children():
            parts = extension.expect(SEQUENCE).children()
            if len(parts) not in (2, 3):
                raise MalformedDer(f"malformed certificate: an extension has {len(parts)} parts")
            name = parts[0].oid()
            if name in found:  # as in Java, which value counts must not depend on the reader
                raise MalformedDer(f"malformed certificate: it has two extensions {name}")
            found[name] = parts[-1].expect(OCTET_STRING).content
    return found


def _subject_key_id(extensions: dict[str, bytes]) -> bytes | None:
    value = extensions.get(_SUBJECT_KEY_ID)
    return None if value is None else read_element(value).expect(OCTET_STRING).content


def _authority_key_id(extensions: dict[str, bytes]) -> bytes | None:
    value = extensions.get(_AUTHORITY_KEY_ID)
    fields = [] if value is None else read_element(value).expect(SEQUENCE).children()
    return next((field.content for field in fields if field.tag == _KEY_ID), None)
