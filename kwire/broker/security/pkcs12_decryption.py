"""Password-based encryption in PKCS12 files: PBES2 (RFC 8018), and the schemes of RFC 7292, appendix B.

Only AES and triple DES need the package `cryptography`.

OpenSSL derives the keys of PBES2. Python derives the keys of RFC 7292, so those have a lower limit.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from kwire.broker.security.der import INTEGER, SEQUENCE, Element, MalformedDer, read_element
from kwire.broker.security.rc2 import decrypt_rc2_cbc

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import BlockCipherAlgorithm

PBES2: Final = "1.2.840.113549.1.5.13"
PBKDF2: Final = "1.2.840.113549.1.5.12"
DEFAULT_PRF: Final = "1.2.840.113549.2.7"
DIGESTS: Final = {
    "1.2.840.113549.2.7": "sha1",
    "1.2.840.113549.2.8": "sha224",
    "1.2.840.113549.2.9": "sha256",
    "1.2.840.113549.2.10": "sha384",
    "1.2.840.113549.2.11": "sha512",
    "1.3.14.3.2.26": "sha1",
    "2.16.840.1.101.3.4.2.4": "sha224",
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
"""The digests, by the object identifiers of their HMAC and their own."""
TRIPLE_DES: Final = "1.2.840.113549.3.7"
CIPHERS: Final = {
    "2.16.840.1.101.3.4.1.2": 16,
    "2.16.840.1.101.3.4.1.22": 24,
    "2.16.840.1.101.3.4.1.42": 32,
    TRIPLE_DES: 24,
}
"""The key sizes, in bytes, of AES in CBC mode and triple DES."""
PKCS12_TRIPLE_DES: Final = {"1.2.840.113549.1.12.1.3": 24, "1.2.840.113549.1.12.1.4": 16}
PKCS12_RC2: Final = {"1.2.840.113549.1.12.1.5": 16, "1.2.840.113549.1.12.1.6": 5}
MAX_NATIVE_ITERATIONS: Final = 5_000_000
"""Java's limit. OpenSSL needs 1 to 3 seconds for it."""
MAX_PYTHON_ITERATIONS: Final = 200_000
"""Twice the highest default of Java, which is the one of Java 8. Python needs 0.1 seconds for it."""
MAX_STORE_ITERATIONS: Final = 10_000_000
"""The limit for all keys and contents of a store, in iterations of OpenSSL."""
PYTHON_COST: Final = 5
"""The cost of an iteration in Python, in iterations of OpenSSL."""
MAX_RC2_BYTES: Final = 256 << 10
"""RC2 in Python needs 1.6 ms per KiB."""
_KEY, _IV, _MAC = 1, 2, 3
"""The purposes of RFC 7292, appendix B.3."""


class WrongPassword(ValueError):
    """A password that does not decrypt the data."""


class CryptographyMissing(ValueError):
    """The package `cryptography` is not installed."""


class IterationLimit:
    """The iterations that are left for the passwords of a store."""

    def __init__(self) -> None:
        self._left = MAX_STORE_ITERATIONS

    def native(self, iterations: Element) -> int:
        """Return the iteration count of a derivation in OpenSSL. Raises MalformedDer if it is too high."""
        return self._spend(iterations, MAX_NATIVE_ITERATIONS, cost=1)

    def python(self, iterations: Element | None) -> int:
        """Return the iteration count of a derivation in Python. Raises MalformedDer if it is too high."""
        return 1 if iterations is None else self._spend(iterations, MAX_PYTHON_ITERATIONS, cost=PYTHON_COST)

    def _spend(self, iterations: Element, limit: int, cost: int) -> int:
        count = iterations.integer()
        if count <= 0:
            raise MalformedDer("its password has no iterations")
        if count > limit:
            raise MalformedDer(
                f"its password has {count} iterations, more than {limit}: "
                "export it again with 10000 iterations"
            )
        self._left -= count * cost
        if self._left < 0:
            raise MalformedDer(
                "its keys together have too many iterations: keep one key, or "
                "export it again with 10000 iterations"
            )
        return count


def check_iterations(encrypted_key: bytes) -> None:
    """Check the iterations of an encrypted private key in PKCS #8. OpenSSL has no limit.

    Raises MalformedDer if they are too many, or if the key is malformed.
    """
    try:
        algorithm, _ = read_element(encrypted_key).expect(SEQUENCE).children()
        name, parameters = algorithm.expect(SEQUENCE).children()
        if name.oid() == PBES2:
            kind, parameters = parameters.children()[0].children()
            if kind.oid() != PBKDF2:
                raise MalformedDer(f"key derivation {kind.oid()} is not supported")
        IterationLimit().native(parameters.children()[1])
    except MalformedDer:
        raise
    except (IndexError, ValueError) as error:
        raise MalformedDer(f"not an encrypted private key: {error}") from error


def decrypt(algorithm: Element, data: bytes, password: str, limit: IterationLimit) -> bytes:
    """Decrypt data with the algorithm in an AlgorithmIdentifier.

    Raises WrongPassword, CryptographyMissing, or MalformedDer if the algorithm is not supported.
    """
    name, parameters = algorithm.children()
    scheme = name.oid()
    if scheme == PBES2:
        found = _decrypt_pbes2(parameters, data, password, limit)
    else:
        found = _decrypt_pkcs12(scheme, parameters, data, password, limit)
    padding = found[-1] if found else 0
    if not 1 <= padding <= 16 or found[-padding:] != bytes([padding]) * padding:
        raise WrongPassword
    return found[:-padding]


def _decrypt_pbes2(parameters: Element, data: bytes, password: str, limit: IterationLimit) -> bytes:
    derivation, encryption = (one.children() for one in parameters.children())
    if derivation[0].oid() != PBKDF2:
        raise MalformedDer(f"key derivation {derivation[0].oid()} is not supported")
    salt, iterations, *rest = derivation[1].children()
    prf = next((one.children()[0].oid() for one in rest if one.tag != INTEGER), DEFAULT_PRF)
    cipher = encryption[0].oid()
    if prf not in DIGESTS or cipher not in CIPHERS:
        raise MalformedDer(f"encryption with {cipher} and {prf} is not supported")
    key = hashlib.pbkdf2_hmac(
        DIGESTS[prf], password.encode(), salt.octets(), limit.native(iterations), CIPHERS[cipher]
    )
    return _decrypt_cbc(key, encryption[1].octets(), data, is_aes=cipher != TRIPLE_DES)


def _decrypt_pkcs12(
    scheme: str, parameters: Element, data: bytes, password: str, limit: IterationLimit
) -> bytes:
    size = PKCS12_TRIPLE_DES.get(scheme) or PKCS12_RC2.get(scheme)
    if size is None:
        raise MalformedDer(f"encryption with {scheme} is not supported")
    if len(data) % 8:
        raise MalformedDer("encrypted data of an odd length")
    if scheme in PKCS12_RC2 and len(data) > MAX_RC2_BYTES:
        raise MalformedDer(f"more than {MAX_RC2_BYTES} bytes are encrypted with RC2")
    salt, iterations = parameters.children()
    key, initial = (
        derive_pkcs12(purpose, "sha1", password, salt.octets(), limit.python(iterations), length)
        for purpose, length in ((_KEY, size), (_IV, 8))
    )
    if scheme in PKCS12_RC2:
        return decrypt_rc2_cbc(key, 8 * size, initial, data)
    return _decrypt_cbc(key if size == 24 else key + key[:8], initial, data, is_aes=False)


def _decrypt_cbc(key: bytes, initial: bytes, data: bytes, *, is_aes: bool) -> bytes:
    try:
        from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CBC
    except ImportError as error:
        raise CryptographyMissing("PKCS12 stores need the package cryptography") from error
    algorithm: BlockCipherAlgorithm = AES(key) if is_aes else TripleDES(key)
    decryptor = Cipher(algorithm, CBC(initial)).decryptor()
    return decryptor.update(data) + decryptor.finalize()


def verify_mac(mac: Element, content: bytes, password: str, limit: IterationLimit) -> bool:
    """Return whether the password gives the MAC of a PKCS12 file. Raises MalformedDer."""
    info, salt, *iterations = mac.children()
    algorithm, expected = info.children()
    name = algorithm.children()[0].oid()
    if name not in DIGESTS:
        raise MalformedDer(f"integrity check {name} is not supported")
    digest, size = DIGESTS[name], hashlib.new(DIGESTS[name]).digest_size
    count = limit.python(iterations[0] if iterations else None)
    key = derive_pkcs12(_MAC, digest, password, salt.octets(), count, size)
    return hmac.compare_digest(hmac.digest(key, content, digest), expected.octets())


def derive_pkcs12(purpose: int, digest: str, password: str, salt: bytes, iterations: int, size: int) -> bytes:
    """Derive a key, initialization vector or MAC key from a password. RFC 7292, appendix B.2.

    The password of one NUL has no characters, as in Java.
    """
    hashed = getattr(hashlib, digest)
    block = hashed().block_size
    encoded = b"" if password == "\0" else password.encode("utf-16-be") + b"\0\0"
    repeated = bytearray(_fill(salt, block) + _fill(encoded, block))
    found = b""
    while len(found) < size:
        part: bytes = hashed(bytes([purpose]) * block + repeated).digest()
        for _ in range(iterations - 1):
            part = hashed(part).digest()
        found += part
        addend = int.from_bytes(_fill(part, block)[:block], "big") + 1
        for at in range(0, len(repeated), block):
            number = int.from_bytes(repeated[at : at + block], "big") + addend
            repeated[at : at + block] = (number % (1 << 8 * block)).to_bytes(block, "big")
    return found[:size]


def _fill(data: bytes, block: int) -> bytes:
    """Repeat the data up to a multiple of the block size."""
    if not data:
        return b""
    size = block * -(-len(data) // block)
    return (data * -(-size // len(data)))[:size]
