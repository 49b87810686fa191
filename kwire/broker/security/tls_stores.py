"""Key stores and trust stores: PEM files, inline PEM texts and PKCS12 files.

The rules are those of Kafka's DefaultSslEngineFactory. As in Java, the first bytes of a file decide whether
it is a PKCS12 file: the configured type may be JKS or PKCS12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kwire.broker.security.certificate_chain import is_chain
from kwire.broker.security.der import SEQUENCE, MalformedDer
from kwire.broker.security.pem import CERTIFICATE, ENCRYPTED_KEY, PRIVATE_KEY, PemBlock, pem_blocks
from kwire.broker.security.pkcs12 import KeyEntry, Pkcs12, TrustedEntry, read_pkcs12
from kwire.broker.security.pkcs12_decryption import CryptographyMissing, WrongPassword, check_iterations
from kwire.broker.security.tls_settings import TlsConfigError, read_setting
from kwire.broker.security.x509 import CertificateFields, parse_certificate
from kwire.wire.java_strings import hash_set_order
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

DEFAULT_TYPE: Final = "JKS"
PEM_TYPE: Final = "PEM"
PKCS12_TYPES: Final = (DEFAULT_TYPE, "PKCS12")
JAVA_MAGICS: Final = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}
"""The first bytes of the formats that only Java reads."""
MAX_STORE_BYTES: Final = 2 << 20
"""The limit for a file or an inline text. The certificates of all public authorities have 0.2 MiB as PEM."""
INSTALL: Final = "pip install 'kwire[tls]'"
PEM_ALIAS: Final = "kafka"

ReadFile = Callable[[str], bytes]
"""Returns the content of a file, or its first `MAX_STORE_BYTES` + 1 bytes. Raises OSError."""


class PrivateKey(NamedTuple):
    """A private key with its certificate chain."""

    block: PemBlock
    """The key in PKCS #8, encrypted if `password` is set."""
    password: str | None
    chain: tuple[bytes, ...]
    """The certificates as DER: the one of the key, its issuer, and so on."""

    def __repr__(self) -> str:
        return f"PrivateKey([hidden], {plural(len(self.chain), 'certificate')})"


class KeyStore(NamedTuple):
    """A loaded key store."""

    source: str
    """The key and the file, for messages."""
    keys: tuple[PrivateKey, ...]
    """The private keys that Java uses: one of each algorithm."""
    certificates: tuple[tuple[str, bytes], ...]
    """The first certificate, as DER, of each alias, in Java's order. KIP-226 compares these."""


class TrustStore(NamedTuple):
    """A loaded trust store."""

    source: str
    certificates: tuple[bytes, ...]
    """The trusted certificates, as DER."""


def load_key_store(settings: Mapping[str, str], read_file: ReadFile) -> KeyStore | None:
    """Load the key store of a listener or client; None if there is none. Raises TlsConfigError."""
    kind = read_setting(settings, "ssl.keystore.type") or DEFAULT_TYPE
    path = read_setting(settings, "ssl.keystore.location")
    password = read_setting(settings, "ssl.keystore.password")
    key_password = read_setting(settings, "ssl.key.password")
    key = read_setting(settings, "ssl.keystore.key")
    chain = read_setting(settings, "ssl.keystore.certificate.chain")
    if key is not None or chain is not None:
        inline = "ssl.keystore.key" if key is not None else "ssl.keystore.certificate.chain"
        _check_inline(inline, "ssl.keystore", kind, path, password)
        if key is None or chain is None:
            raise TlsConfigError(
                "ssl.keystore.key and ssl.keystore.certificate.chain need each other: set both"
            )
        return _pem_key_store("ssl.keystore.key", key, "ssl.keystore.certificate.chain", chain, key_password)
    if path is None:
        if password is not None:
            raise TlsConfigError("ssl.keystore.password is set without ssl.keystore.location")
        return None
    source = _location("ssl.keystore", path)
    if kind == PEM_TYPE:
        _check_pem_password("ssl.keystore", password)
        text = _read_text(source, path, read_file)
        return _pem_key_store(source, text, source, text, key_password)
    data = _read_pkcs12("ssl.keystore", kind, path, read_file)
    if password is None:
        raise TlsConfigError(f"{source} needs ssl.keystore.password")
    store = _parse_pkcs12("ssl.keystore", source, data, password)
    return _pkcs12_key_store(source, store, password, key_password)


def load_trust_store(settings: Mapping[str, str], read_file: ReadFile) -> TrustStore | None:
    """Load the trusted certificates; None if the settings name none. Raises TlsConfigError."""
    kind = read_setting(settings, "ssl.truststore.type") or DEFAULT_TYPE
    path = read_setting(settings, "ssl.truststore.location")
    password = read_setting(settings, "ssl.truststore.password")
    inline = read_setting(settings, "ssl.truststore.certificates")
    if inline is not None:
        source = "ssl.truststore.certificates"
        _check_inline(source, "ssl.truststore", kind, path, password)
        return TrustStore(source, tuple(one.der for one in _pem_certificates(source, inline)))
    if path is None:
        if password is not None:
            raise TlsConfigError("ssl.truststore.password is set without ssl.truststore.location")
        return None
    source = _location("ssl.truststore", path)
    if kind == PEM_TYPE:
        _check_pem_password("ssl.truststore", password)
        text = _read_text(source, path, read_file)
        return TrustStore(source, tuple(one.der for one in _pem_certificates(source, text)))
    data = _read_pkcs12("ssl.truststore", kind, path, read_file)
    store = _parse_pkcs12("ssl.truststore", source, data, password)
    found = {certificate.der for _, certificate in _first_certificates(store)}
    if not found:
        raise TlsConfigError(f"{source} {_why_empty(store)}")
    return TrustStore(source, tuple(sorted(found)))


def _check_inline(key: str, store: str, kind: str, path: str | None, password: str | None) -> None:
    if kind != PEM_TYPE:
        raise TlsConfigError(f"{key} is set, but {store}.type is {kind}: set {store}.type={PEM_TYPE}")
    if path is not None:
        raise TlsConfigError(f"{key} and {store}.location={path} are both set: remove one of them")
    _check_pem_password(store, password)


def _check_pem_password(store: str, password: str | None) -> None:
    if password is not None:
        hint = "; ssl.key.password is the password of a private key" if store == "ssl.keystore" else ""
        raise TlsConfigError(
            f"{store}.password is set, but stores of the type PEM have no password: remove it{hint}"
        )


def _location(store: str, path: str) -> str:
    """Return the key and the file, for messages. Raises TlsConfigError if the value is not a path."""
    if "-----BEGIN" in path:  # the value may be a private key, so no message may contain it
        inline = "certificate.chain and ssl.keystore.key" if store == "ssl.keystore" else "certificates"
        raise TlsConfigError(f"{store}.location contains PEM text instead of a path: use {store}.{inline}")
    return f"{store}.location={path}"


def _read(source: str, path: str, read_file: ReadFile) -> bytes:
    try:
        data = read_file(path)
    except OSError as error:
        raise TlsConfigError(f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise TlsConfigError(f"{source} cannot be read: {error}") from error
    _check_size(source, len(data))
    return data


def _check_size(source: str, size: int) -> None:
    if size > MAX_STORE_BYTES:
        raise TlsConfigError(
            f"{source} has more than {MAX_STORE_BYTES} bytes: keep only the entries that are needed"
        )


# --- PEM


def _read_text(source: str, path: str, read_file: ReadFile) -> str:
    return _read(source, path, read_file).decode("utf-8", "replace")


def _pem_key_store(
    key_source: str, key: str, chain_source: str, chain: str, password: str | None
) -> KeyStore:
    block = _pem_key(key_source, key, password)
    certificates = _pem_certificates(chain_source, chain)
    if not is_chain(certificates):
        raise TlsConfigError(
            f"{chain_source} has certificates that are no chain: put the private key's certificate first, "
            "and each issuer's certificate behind the certificate that it issued"
        )
    ders = tuple(one.der for one in certificates)
    return KeyStore(chain_source, (PrivateKey(block, password, ders),), ((PEM_ALIAS, ders[0]),))


def _pem_key(source: str, text: str, password: str | None) -> PemBlock:
    keys = [one for one in _pem_blocks(source, text) if one.kind.endswith(PRIVATE_KEY)]
    if not keys:
        raise TlsConfigError(f"{source} has no private key in PEM format")
    if len(keys) > 1:
        raise TlsConfigError(f"{source} has {plural(len(keys), 'private key')}: keep one of them")
    key = keys[0]
    if key.kind not in (PRIVATE_KEY, ENCRYPTED_KEY):
        raise TlsConfigError(
            f"{source} has a private key in the format {key.kind}: convert it to PKCS #8 with "
            "openssl pkcs8 -topk8"
        )
    if key.kind == ENCRYPTED_KEY and password is None:
        raise TlsConfigError(f"{source} has an encrypted private key: set ssl.key.password")
    if key.kind == ENCRYPTED_KEY:
        try:
            check_iterations(key.data)
        except MalformedDer as error:
            raise TlsConfigError(f"{source} has a private key that cannot be decrypted: {error}") from error
    if key.kind == PRIVATE_KEY and password is not None:
        raise TlsConfigError(
            f"ssl.key.password is set, but the private key in {source} is not encrypted: "
            "remove ssl.key.password"
        )
    return key


def _pem_certificates(source: str, text: str) -> list[CertificateFields]:
    blocks = [one for one in _pem_blocks(source, text) if one.kind == CERTIFICATE]
    if not blocks:
        raise TlsConfigError(f"{source} has no certificate in PEM format")
    try:
        return [parse_certificate(one.data) for one in blocks]
    except MalformedDer as error:
        raise TlsConfigError(f"{source} has an invalid certificate: {error}") from error


def _pem_blocks(source: str, text: str) -> list[PemBlock]:
    _check_size(source, len(text))
    try:
        return list(pem_blocks(text))
    except ValueError as error:
        raise TlsConfigError(f"{source} is not valid PEM: {error}") from error


# --- PKCS12


def _read_pkcs12(store: str, kind: str, path: str, read_file: ReadFile) -> bytes:
    """Return the content of a PKCS12 file. Java reads it under the type JKS, too, which is the default."""
    source = f"{store}.location={path}"
    if kind.upper() not in PKCS12_TYPES:
        raise TlsConfigError(f"{store}.type={kind} is not supported: use {PEM_TYPE} or PKCS12")
    data = _read(source, path, read_file)
    if java_format := JAVA_MAGICS.get(data[:4]):
        raise TlsConfigError(
            f"{source} is a {java_format} store, which only Java can read: convert it with "
            f"keytool -importkeystore -srckeystore {path} -srcstoretype {java_format} "
            f"-destkeystore {path}.p12 -deststoretype PKCS12"
        )
    if data[:1] == bytes([SEQUENCE]):
        return data
    if b"-----BEGIN " in data:
        raise TlsConfigError(
            f"{source} is a PEM file, but {store}.type is {kind}: set {store}.type={PEM_TYPE}"
        )
    raise TlsConfigError(f"{source} is neither a PKCS12 file nor a PEM file")


def _parse_pkcs12(store: str, source: str, data: bytes, password: str | None) -> Pkcs12:
    try:
        return read_pkcs12(data, password)
    except WrongPassword as error:
        raise TlsConfigError(f"{store}.password is not the password of {source}") from error
    except CryptographyMissing as error:
        raise TlsConfigError(f"{source} cannot be read: {error}: {INSTALL}") from error
    except MalformedDer as error:
        raise TlsConfigError(f"{source} cannot be read: {error}") from error


def _first_certificates(store: Pkcs12) -> list[tuple[str, CertificateFields]]:
    """Return the certificate of each entry. Java trusts all of them if the store is a trust store."""
    return [
        (one.alias, one.certificate if isinstance(one, TrustedEntry) else one.chain[0])
        for one in store.entries
        if isinstance(one, TrustedEntry) or one.chain
    ]


def _why_empty(store: Pkcs12) -> str:
    if store.has_skipped_content:
        return "has encrypted certificates: set ssl.truststore.password"
    if store.certificates:
        return (
            "has certificates, but Java trusts none of them, since they lack the attribute trustedKeyUsage: "
            "import them with keytool -importcert into a new store"
        )
    return "has no certificate"


def _pkcs12_key_store(source: str, store: Pkcs12, password: str, key_password: str | None) -> KeyStore:
    # Java decrypts every key when it starts, also the keys that it does not use.
    decrypted = [
        (entry, _decrypt(source, entry, password, key_password))
        for entry in store.entries
        if isinstance(entry, KeyEntry)
    ]
    if not decrypted:
        raise TlsConfigError(f"{source} has no encrypted private key")
    usable = {entry.alias: (entry.chain, key) for entry, key in decrypted if entry.chain}
    if not usable:
        raise TlsConfigError(f"{source} has a private key, but no certificate for it")
    # Java's key manager keeps the entries in a HashMap, and takes the first one of an algorithm.
    chosen: dict[str, PrivateKey] = {}
    for alias in hash_set_order(usable):
        chain, key = usable[alias]
        ders = tuple(one.der for one in chain)
        chosen.setdefault(chain[0].key_algorithm, PrivateKey(PemBlock(PRIVATE_KEY, key), None, ders))
    entries = tuple((alias, certificate.der) for alias, certificate in _first_certificates(store))
    return KeyStore(source, tuple(chosen.values()), entries)


def _decrypt(source: str, entry: KeyEntry, password: str, key_password: str | None) -> bytes:
    try:
        return entry.decrypt(password if key_password is None else key_password)
    except WrongPassword as error:
        what = f"the key {entry.alias} in {source}"
        if key_password is None:
            raise TlsConfigError(f"{what} has a password of its own: set ssl.key.password") from error
        raise TlsConfigError(f"ssl.key.password does not decrypt {what}") from error
    except CryptographyMissing as error:
        raise TlsConfigError(f"{source} cannot be read: {error}: {INSTALL}") from error
    except ValueError as error:
        raise TlsConfigError(f"the key {entry.alias} in {source} cannot be decrypted: {error}") from error
