"""The entries of a PKCS12 file (RFC 7292), as Java's key store reads them.

`cryptography` and OpenSSL cannot be used for this. They return one private key of several, they decrypt
everything with one password, and they drop the attributes. In Java, a certificate is an entry only if it has
Oracle's attribute `trustedKeyUsage`. Every other certificate only completes the chain of a private key, and
is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kwire.broker.security.certificate_chain import KnownCertificates
from kwire.broker.security.der import (
    OCTET_STRING,
    SEQUENCE,
    Element,
    MalformedDer,
    der_of_ber,
    read_element,
)
from kwire.broker.security.pkcs12_decryption import (
    CryptographyMissing,
    IterationLimit,
    WrongPassword,
    decrypt,
    verify_mac,
)
from kwire.broker.security.x509 import CertificateFields, parse_certificate
from kwire.wire.named_tuple import NamedTuple

VERSION: Final = 3
DATA: Final = "1.2.840.113549.1.7.1"
ENCRYPTED_DATA: Final = "1.2.840.113549.1.7.6"
ENCRYPTED_KEY_BAG: Final = "1.2.840.113549.1.12.10.1.2"
CERTIFICATE_BAG: Final = "1.2.840.113549.1.12.10.1.3"
FRIENDLY_NAME: Final = "1.2.840.113549.1.9.20"
LOCAL_KEY_ID: Final = "1.2.840.113549.1.9.21"
TRUSTED_KEY_USAGE: Final = "2.16.840.1.113894.746875.1.1"
MAX_KEYS: Final = 100
ONLY_KEY_ID: Final = b"01"
"""The key id that Java gives to the only private key and to its certificate if they have none."""

T = TypeVar("T")


class KeyEntry(NamedTuple):
    """A private key that is still encrypted, with its certificate chain."""

    alias: str
    encrypted: Element
    chain: tuple[CertificateFields, ...]
    """The chain begins with the certificate of the key. It is empty if the file has no such certificate."""
    limit: IterationLimit

    def __repr__(self) -> str:
        return f"KeyEntry({self.alias}, [hidden])"

    def decrypt(self, password: str) -> bytes:
        """Return the private key as PKCS #8 in DER. Raises WrongPassword and what `decrypt` raises."""
        try:
            algorithm, data = self.encrypted.children()
            return retry_empty(
                lambda tried: _decrypt_key(algorithm, data.octets(), tried, self.limit), password
            )
        except IndexError as error:
            raise MalformedDer(f"not an encrypted private key: {error}") from error


class TrustedEntry(NamedTuple):
    """A trusted certificate."""

    alias: str
    certificate: CertificateFields


class _Key(NamedTuple):
    alias: str
    key_id: bytes
    encrypted: Element


class _Certificate(NamedTuple):
    alias: str | None
    key_id: bytes | None
    certificate: CertificateFields


class Pkcs12(NamedTuple):
    """The entries of a file, in the order of their aliases in Java."""

    entries: tuple[KeyEntry | TrustedEntry, ...]
    certificates: int
    """The number of certificates, including those that are no entry of their own."""
    has_skipped_content: bool
    """Whether encrypted certificates were skipped, because there is no password."""


def read_pkcs12(data: bytes, password: str | None) -> Pkcs12:
    """Read a PKCS12 file. Without a password, encrypted certificates are skipped, as Java does.

    Raises WrongPassword, CryptographyMissing, or MalformedDer for other files.
    """
    limit = IterationLimit()
    try:
        version, content, *mac = read_element(der_of_ber(data)).expect(SEQUENCE).children()
        if version.integer() != VERSION:
            raise MalformedDer(f"version {version.integer()} instead of {VERSION}")
        kind, value = content.children()
        if kind.oid() != DATA:
            raise MalformedDer("stores with a signature instead of a password are not supported")
        safe = value.children()[0].octets()
        if password is not None and mac:
            retry_empty(lambda tried: _verify(mac[0], safe, tried, limit), password)
        reader = _Reader(limit)
        for part in read_element(der_of_ber(safe)).expect(SEQUENCE).children():
            kind, value = part.children()
            if kind.oid() == DATA:
                reader.read(value.children()[0].octets())
            elif kind.oid() != ENCRYPTED_DATA:
                raise MalformedDer("stores with public keys instead of a password are not supported")
            elif password is None:
                reader.has_skipped_content = True
            else:
                _, algorithm, encrypted = value.children()[0].children()[1].children()
                reader.read(_decrypt(algorithm, encrypted.octets(), password, limit))
        return reader.finish()
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedDer(f"not a PKCS12 file: {error}") from error
    except ValueError as error:
        if isinstance(error, (WrongPassword, CryptographyMissing, MalformedDer)):
            raise
        # Unpacking found another number of elements, or `cryptography` did not accept a size.
        raise MalformedDer(f"not a PKCS12 file: {error}") from error


def _verify(mac: Element, content: bytes, password: str, limit: IterationLimit) -> None:
    if not verify_mac(mac, content, password, limit):
        raise WrongPassword


def _decrypt(algorithm: Element, data: bytes, password: str, limit: IterationLimit) -> bytes:
    return retry_empty(lambda tried: decrypt(algorithm, data, tried, limit), password)


def _decrypt_key(algorithm: Element, data: bytes, password: str, limit: IterationLimit) -> bytes:
    """Decrypt a private key. No checksum covers it, and a wrong password may give valid padding."""
    found = decrypt(algorithm, data, password, limit)
    try:
        read_element(found).expect(SEQUENCE).children()[0].integer()
    except (MalformedDer, IndexError) as error:
        raise WrongPassword from error
    return found


def retry_empty(attempt: Callable[[str], T], password: str) -> T:
    """Try a password. The empty password has two encodings in PKCS12, and Java tries both."""
    try:
        return attempt(password)
    except WrongPassword:
        if password:
            raise
        return attempt("\0")


class _Reader:
    """Collects the contents of a file, as the method engineLoad of Java's PKCS12KeyStore."""

    def __init__(self, limit: IterationLimit) -> None:
        self.has_skipped_content = False
        self._limit = limit
        self._entries: dict[str, _Key | TrustedEntry] = {}
        self._chained: list[_Certificate] = []
        self._certificates: list[CertificateFields] = []
        self._keys = 0
        self._unnamed = 0

    def read(self, contents: bytes) -> None:
        """Add the keys and certificates of one SafeContents."""
        for at, bag in enumerate(read_element(der_of_ber(contents)).expect(SEQUENCE).children()):
            kind, value, *attributes = bag.children()
            names = _attributes(attributes)
            if kind.oid() == ENCRYPTED_KEY_BAG:
                self._keys += 1
                if self._keys > MAX_KEYS:
                    raise MalformedDer(f"more than {MAX_KEYS} private keys")
                self._add_key(value.children()[0], names)
            elif kind.oid() == CERTIFICATE_BAG:
                encoded = value.children()[0].children()[1].children()[0].expect(OCTET_STRING).octets()
                self._add_certificate(parse_certificate(encoded), names, is_first=at == 0)

    def _add_key(self, encrypted: Element, names: dict[str, Element]) -> None:
        key_id = names[LOCAL_KEY_ID].octets() if LOCAL_KEY_ID in names else None
        if key_id is None:
            if self._keys != 1:
                return
            key_id = ONLY_KEY_ID
        alias = _alias(names) or self._number()
        self._entries[alias.lower()] = _Key(alias, key_id, encrypted)

    def _add_certificate(
        self, certificate: CertificateFields, names: dict[str, Element], *, is_first: bool
    ) -> None:
        alias = _alias(names)
        self._certificates.append(certificate)
        if TRUSTED_KEY_USAGE in names:
            alias = alias or self._number()
            self._entries[alias.lower()] = TrustedEntry(alias.lower(), certificate)
            return
        key_id = names[LOCAL_KEY_ID].octets() if LOCAL_KEY_ID in names else None
        if key_id is None and self._keys == 1 and is_first:
            key_id = ONLY_KEY_ID
        self._chained.append(_Certificate(alias, key_id, certificate))

    def _number(self) -> str:
        self._unnamed += 1
        return str(self._unnamed)

    def finish(self) -> Pkcs12:
        """Return the entries, with the chains of the private keys."""
        known = KnownCertificates(self._certificates)
        entries = [
            entry
            if isinstance(entry, TrustedEntry)
            else KeyEntry(alias, entry.encrypted, self._chain(entry, known), self._limit)
            for alias, entry in self._entries.items()
        ]
        return Pkcs12(tuple(entries), len(self._certificates), self.has_skipped_content)

    def _chain(self, key: _Key, known: KnownCertificates) -> tuple[CertificateFields, ...]:
        by_id = [one for one in self._chained if one.key_id == key.key_id]
        named = [one for one in self._chained if one.alias and one.alias.lower() == key.alias.lower()]
        both = [one for one in by_id if one in named]
        # Of several certificates with the same id, Java takes the last one.
        found = both[:1] or by_id[-1:] or named[-1:]
        return tuple(known.chain_of(found[0].certificate)) if found else ()


def _attributes(attributes: list[Element]) -> dict[str, Element]:
    """Return the first value of each attribute of a bag, by its object identifier."""
    found = {}
    for attribute in attributes[0].children() if attributes else []:
        kind, values = attribute.children()
        found[kind.oid()] = values.children()[0]
    return found


def _alias(names: dict[str, Element]) -> str | None:
    return names[FRIENDLY_NAME].content.decode("utf-16-be") if FRIENDLY_NAME in names else None
