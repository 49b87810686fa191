"""Subjects and subject alternative names of X.509 certificates, as text in Java's form. RFC 5280, RFC 2253.

The name of a client's principal is `X500Principal.getName()` of its certificate (KIP-371), so this module
formats a subject exactly like Java. Java differs from RFC 4514, which other libraries implement: it escapes
every `#` and `=`, it has only nine keywords, and it writes the values of all other types in hexadecimal.

A name is refused with ValueError in these cases, because a wrong text is a wrong identity:

- The encoding is not DER. Java also accepts BER.
- The text depends on Java's version: Java 17 decodes all string types as UTF-8, Java 25 decodes each type
  with its own charset. Both return the same text for ASCII and for UTF8String.
- The text is not valid in its charset. Java replaces invalid bytes, so different certificates could have the
  same name.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from kwire.broker.security.der import (
    PRINTABLE_STRING,
    SEQUENCE,
    SET,
    UTF8_STRING,
    Element,
    MalformedDer,
    oid_text,
    read_element,
)
from kwire.broker.security.x509 import parse_certificate
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

TEXT_CHARSETS: Final = {
    UTF8_STRING: "utf-8",
    PRINTABLE_STRING: "latin-1",
    0x14: "latin-1",  # TeletexString
    0x16: "latin-1",  # IA5String
    0x1B: "latin-1",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
"""The charsets of Java 25 by tag. Java writes values with other tags, UniversalString too, in hexadecimal."""

KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The keywords of RFC 2253. Java writes every other type as an OID, emailAddress and serialNumber too."""

SUBJECT_ALTERNATIVE_NAME: Final = "2.5.29.17"
DNS_NAME: Final = 2
DIRECTORY_NAME: Final = 4
IP_ADDRESS: Final = 7
REGISTERED_ID: Final = 8
TEXT_NAMES: Final = (1, DNS_NAME, 6)
"""The types of alternative names that are IA5String: rfc822Name, dNSName, uniformResourceIdentifier."""

ESCAPED: Final = {ord(character): f"\\{character}" for character in ',=+<>#;"\\'} | {0: "\\00"}
CANONICAL_ESCAPED: Final = {ord(character): f"\\{character}" for character in ',+<>;"\\'}
BLANKS: Final = " \r"
CONTROLS_AND_SPACE: Final = "".join(map(chr, range(0x21)))


class Attribute(NamedTuple):
    """One type and value of a relative distinguished name; the type is an OID."""

    type: str
    value: Element


def subject_of(certificate: bytes) -> bytes:
    """Return the DER of a certificate's subject. Raises ValueError if the certificate is malformed."""
    return parse_certificate(certificate).subject


def rfc2253_name(name: bytes) -> str:
    """Return the text of a distinguished name that Java's `X500Principal.getName()` returns for its DER.

    The result is empty for an empty name. Raises ValueError if the name is malformed or refused.
    """
    return ",".join("+".join(map(_attribute_text, attributes)) for attributes in reversed(_attributes(name)))


def canonical_name(name: bytes) -> str:
    """Return the text of a distinguished name that Java's `X500Principal.equals` compares.

    Names that differ only in case, in spaces or in the order within a multi-valued RDN have the same text.
    Only the form of a sigma at the end of a word may differ from Java's text.
    Raises ValueError like `rfc2253_name`.
    """
    parts = []
    for attributes in reversed(_attributes(name)):
        texts = sorted((one.type not in KEYWORDS, _canonical_text(one)) for one in attributes)
        parts.append("+".join(text for _, text in texts))
    return ",".join(parts)


def comparable_name(name: bytes) -> str | bytes:
    """Return a value that is the same for two names that are equal by Java's `X500Principal.equals`.

    It is `canonical_name`, or the DER itself if the text of the name is refused. Such a name is equal to no
    other encoding of it. Raises MalformedDer.
    """
    try:
        return canonical_name(name)
    except MalformedDer:
        raise
    except ValueError:
        return name


def is_same_subject(name: bytes, other: bytes) -> bool:
    """Return whether Kafka accepts one subject in place of the other without ssl.allow.dn.changes.

    Raises ValueError like `rfc2253_name`.
    """
    return (
        name == other
        or canonical_name(name) == canonical_name(other)
        or _ignoring_case(rfc2253_name(name)) == _ignoring_case(rfc2253_name(other))
    )


def san_of(certificate: bytes) -> list[tuple[int, str | bytes]]:
    """Return types and values of the subject alternative names, as Java's `getSubjectAlternativeNames`.

    Types without a text form (otherName, x400Address, ediPartyName) have the content of their DER as value.
    Raises ValueError if the certificate is malformed.
    """
    value = parse_certificate(certificate).extensions.get(SUBJECT_ALTERNATIVE_NAME)
    names = [] if value is None else read_element(value).expect(SEQUENCE).children()
    return [_alternative_name(one) for one in names]


def _alternative_name(name: Element) -> tuple[int, str | bytes]:
    kind = name.tag & 0x1F
    if name.tag & 0xC0 != 0x80 or kind > REGISTERED_ID:
        raise ValueError(f"malformed certificate: an alternative name has tag {name.tag:#x}")
    if kind in TEXT_NAMES:
        if not name.content.isascii():
            raise ValueError(f"malformed certificate: the alternative name {name.content!r} is not ASCII")
        return kind, name.content.decode()
    if kind == DIRECTORY_NAME:
        return kind, rfc2253_name(name.content)
    if kind == IP_ADDRESS:
        return kind, _address(name.content)
    if kind == REGISTERED_ID:
        return kind, oid_text(name.content)
    return kind, name.content


def _address(octets: bytes) -> str:
    """Return an IP address in Java's form, in which no part of an IPv6 address is left out."""
    if len(octets) == 16 and octets[:12] == bytes(10) + b"\xff\xff":
        octets = octets[12:]  # Java reads an IPv4-mapped address as the IPv4 address
    if len(octets) == 4:
        return ".".join(map(str, octets))
    if len(octets) == 16:
        return ":".join(f"{int.from_bytes(octets[at : at + 2]):x}" for at in range(0, 16, 2))
    raise ValueError(f"malformed certificate: an IP address has {plural(len(octets), 'byte')}")


def _attributes(name: bytes) -> list[list[Attribute]]:
    """Return the relative distinguished names, each a list of attributes, in their order in the DER."""
    found = []
    for rdn in read_element(name).expect(SEQUENCE).children():
        attributes = []
        for pair in rdn.expect(SET).children():
            parts = pair.expect(SEQUENCE).children()
            if len(parts) != 2:
                raise MalformedDer(f"malformed name: an attribute has {len(parts)} parts, not 2")
            attributes.append(Attribute(parts[0].oid(), parts[1]))
        found.append(attributes)
    return found


def _attribute_text(attribute: Attribute) -> str:
    keyword = KEYWORDS.get(attribute.type)
    if keyword is None or attribute.value.tag not in TEXT_CHARSETS:
        return _hexadecimal(attribute)
    text = _value_text(attribute).translate(ESCAPED)
    inner = text.strip(BLANKS)
    start = len(text) - len(text.lstrip(BLANKS))
    escaped = "".join(
        character if start <= at < start + len(inner) else f"\\{character}"
        for at, character in enumerate(text)
    )
    return f"{keyword}={escaped}"


def _canonical_text(attribute: Attribute) -> str:
    keyword = KEYWORDS.get(attribute.type)
    if keyword is None or attribute.value.tag not in (UTF8_STRING, PRINTABLE_STRING):
        text = _hexadecimal(attribute)
    else:
        value = _value_text(attribute)
        escaped = value.translate(CANONICAL_ESCAPED)
        if value.startswith("#"):
            escaped = f"\\{escaped}"
        while "  " in escaped:
            escaped = escaped.replace("  ", " ")
        text = f"{keyword}={escaped.strip(CONTROLS_AND_SPACE)}"
    return unicodedata.normalize("NFKD", text.upper().lower())


def _value_text(attribute: Attribute) -> str:
    tag, content, _ = attribute.value
    try:
        text = content.decode(TEXT_CHARSETS[tag])
    except UnicodeDecodeError:
        raise ValueError(
            f"malformed name: the {KEYWORDS[attribute.type]} is not valid {TEXT_CHARSETS[tag]}"
        ) from None
    if tag != UTF8_STRING and text.encode() != content:
        raise ValueError(
            f"the {KEYWORDS[attribute.type]} of the distinguished name is not a UTF8String and not ASCII, so "
            "its text depends on the version of Java. Issue the certificate with UTF8String."
        )
    return text


def _hexadecimal(attribute: Attribute) -> str:
    return f"{KEYWORDS.get(attribute.type, attribute.type)}=#{attribute.value.encoding.hex()}"


def _ignoring_case(text: str) -> str:
    """Return a text that is the same for two texts that are equal by Java's `equalsIgnoreCase`."""
    upper = "".join(up if len(up := character.upper()) == 1 else character for character in text)
    return "".join(low if len(low := character.lower()) == 1 else character for character in upper)
