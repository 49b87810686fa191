"""Key stores and trust stores: every error is one sentence with the key, the file and the cause."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from kwire.broker.security.der import INTEGER, SEQUENCE, encode, read_element
from kwire.broker.security.pem import PemBlock, pem_blocks
from kwire.broker.security.tls_settings import TlsConfigError
from kwire.broker.security.tls_stores import MAX_STORE_BYTES, load_key_store, load_trust_store
from tests.broker.security.tls_certificates import Identity

ROOT = Identity("root ca")
LEAF = Identity("leaf", ROOT)
PASSWORD = "store-secret"
PKCS12 = pkcs12.serialize_key_and_certificates(
    b"leaf", LEAF.key, x509.load_der_x509_certificate(LEAF.der), None,
    serialization.BestAvailableEncryption(PASSWORD.encode()),
)  # fmt: skip
UNTRUSTED = pkcs12.serialize_key_and_certificates(
    None, None, None, [x509.load_der_x509_certificate(ROOT.der)],
    serialization.BestAvailableEncryption(PASSWORD.encode()),
)  # fmt: skip
TRUSTED = pkcs12.serialize_java_truststore(
    [pkcs12.PKCS12Certificate(x509.load_der_x509_certificate(ROOT.der), b"root")],
    serialization.BestAvailableEncryption(PASSWORD.encode()),
)


def with_iterations(key: str, iterations: int) -> str:
    """Return an encrypted private key with another number of iterations for its password."""
    (block,) = pem_blocks(key)
    algorithm, data = read_element(block.data).children()
    scheme, parameters = algorithm.children()
    derivation, cipher = parameters.children()
    function, arguments = derivation.children()
    salt, _, *rest = (one.encoding for one in arguments.children())
    count = encode(INTEGER, iterations.to_bytes(5, "big"))
    slow = sequence(function.encoding, sequence(salt, count, *rest))
    content = sequence(sequence(scheme.encoding, sequence(slow, cipher.encoding)), data.encoding)
    return PemBlock(block.kind, content).text()


def sequence(*parts: bytes) -> bytes:
    return encode(SEQUENCE, b"".join(parts))


FILES: Mapping[str, bytes] = {
    "own.p12": PKCS12,
    "untrusted.p12": UNTRUSTED,
    "trusted.p12": TRUSTED,
    "cut.p12": PKCS12[:-9],
    "own.pem": (LEAF.key_pem() + LEAF.pem).encode(),
    "locked.pem": (LEAF.key_pem("secret") + LEAF.pem).encode(),
    "slow.pem": (with_iterations(LEAF.key_pem("secret"), 2_000_000_000) + LEAF.pem).encode(),
    "certificate.pem": LEAF.pem.encode(),
    "key.pem": LEAF.key_pem().encode(),
    "two.pem": (LEAF.key_pem() + ROOT.key_pem() + LEAF.pem).encode(),
    "order.pem": (LEAF.key_pem() + ROOT.pem + LEAF.pem).encode(),
    "pkcs1.pem": LEAF.key_pem().replace("PRIVATE KEY", "EC PRIVATE KEY").encode() + LEAF.pem.encode(),
    "damaged.pem": LEAF.key_pem().encode() + LEAF.pem.replace("M", "!", 1).encode(),
    "invalid.pem": LEAF.key_pem().encode() + LEAF.pem.replace("MII", "AII", 1).encode(),
    "other": b"PK\3\4",
    "old.jks": b"\xfe\xed\xfe\xed\0\0\0\2",
    "old.jceks": b"\xce\xce\xce\xce\0\0\0\2",
}


def read_file(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def key_store(path: str, kind: str = "PKCS12", **passwords: str) -> dict[str, str]:
    """Return the settings of a key store. `password` is the one of the store, `key` the one of the key."""
    names = {"password": "ssl.keystore.password", "key": "ssl.key.password"}
    settings = {"ssl.keystore.type": kind, "ssl.keystore.location": path}
    return {**settings, **{names[name]: value for name, value in passwords.items()}}


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", "pkcs12", None])
def test_pkcs12_key_store_is_recognized_by_its_content(kind: str | None) -> None:
    settings = key_store("own.p12", password=PASSWORD)
    if kind is None:
        del settings["ssl.keystore.type"]
    else:
        settings["ssl.keystore.type"] = kind
    store = load_key_store(settings, read_file)
    assert store is not None
    assert store.source == "ssl.keystore.location=own.p12"
    assert store.certificates == (("leaf", LEAF.der),)
    (key,) = store.keys
    assert key.chain == (LEAF.der,)
    assert key.block.text() == LEAF.key_pem()


def test_no_settings_mean_no_stores() -> None:
    assert load_key_store({}, read_file) is None
    assert load_trust_store({}, read_file) is None


def test_secrets_are_not_in_the_text_of_a_store() -> None:
    store = load_key_store(key_store("locked.pem", "PEM", key="secret"), read_file)
    assert "secret" not in repr(store)
    assert LEAF.key_pem()[60:100] not in repr(store)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            key_store("none.pem", "PEM"),
            "ssl.keystore.location=none.pem cannot be read: No such file or directory",
        ),
        (
            key_store("none.p12", password="x"),
            "ssl.keystore.location=none.p12 cannot be read: No such file or directory",
        ),
        (
            key_store("own.p12", password="wrong"),
            "ssl.keystore.password is not the password of ssl.keystore.location=own.p12",
        ),
        (key_store("own.p12"), "ssl.keystore.location=own.p12 needs ssl.keystore.password"),
        (
            key_store("own.p12", password=PASSWORD, key="wrong"),
            "ssl.key.password does not decrypt the key leaf in ssl.keystore.location=own.p12",
        ),
        (
            key_store("trusted.p12", password=PASSWORD),
            "ssl.keystore.location=trusted.p12 has no encrypted private key",
        ),
        (key_store("cut.p12", password=PASSWORD), "ssl.keystore.location=cut.p12 cannot be read: "),
        (
            key_store("own.pem", "JKS", password="x"),
            "ssl.keystore.location=own.pem is a PEM file, but ssl.keystore.type is JKS: set ",
        ),
        (
            {"ssl.keystore.location": "own.pem"},
            "ssl.keystore.location=own.pem is a PEM file, but ssl.keystore.type is JKS: set ",
        ),
        (
            key_store("other", password="x"),
            "ssl.keystore.location=other is neither a PKCS12 file nor a PEM file",
        ),
        (
            key_store("old.jks", "JKS", password="x"),
            "ssl.keystore.location=old.jks is a JKS store, which only Java can read: convert it with "
            "keytool -importkeystore -srckeystore old.jks -srcstoretype JKS -destkeystore old.jks.p12 "
            "-deststoretype PKCS12",
        ),
        (key_store("old.jceks", "JKS", password="x"), "ssl.keystore.location=old.jceks is a JCEKS store"),
        (
            key_store("own.p12", "BCFKS", password="x"),
            "ssl.keystore.type=BCFKS is not supported: use PEM or PKCS12",
        ),
        (
            key_store("own.pem", "PEM", password="x"),
            "ssl.keystore.password is set, but stores of the type PEM have no password: remove it; "
            "ssl.key.password is the password of a private key",
        ),
        ({"ssl.keystore.password": "x"}, "ssl.keystore.password is set without ssl.keystore.location"),
        (
            key_store("slow.pem", "PEM", key="secret"),
            "ssl.keystore.location=slow.pem has a private key that cannot be decrypted: its password has "
            "2000000000 iterations, more than 5000000: export it again with 10000 iterations",
        ),
        (
            key_store("locked.pem", "PEM"),
            "ssl.keystore.location=locked.pem has an encrypted private key: set ssl.key.password",
        ),
        (
            key_store("own.pem", "PEM", key="x"),
            "ssl.key.password is set, but the private key in ssl.keystore.location=own.pem is not encrypted",
        ),
        (
            key_store("certificate.pem", "PEM"),
            "ssl.keystore.location=certificate.pem has no private key in PEM",
        ),
        (key_store("key.pem", "PEM"), "ssl.keystore.location=key.pem has no certificate in PEM format"),
        (key_store("two.pem", "PEM"), "ssl.keystore.location=two.pem has 2 private keys: keep one of them"),
        (
            key_store("order.pem", "PEM"),
            "ssl.keystore.location=order.pem has certificates that are no chain: ",
        ),
        (
            key_store("pkcs1.pem", "PEM"),
            "ssl.keystore.location=pkcs1.pem has a private key in the format EC PRIVATE KEY: convert it to "
            "PKCS #8 with openssl pkcs8 -topk8",
        ),
        (key_store("damaged.pem", "PEM"), "ssl.keystore.location=damaged.pem is not valid PEM: "),
        (key_store("invalid.pem", "PEM"), "ssl.keystore.location=invalid.pem has an invalid certificate: "),
        (
            {"ssl.keystore.key": LEAF.key_pem(), "ssl.keystore.type": "PEM"},
            "ssl.keystore.key and ssl.keystore.certificate.chain need each other: set both",
        ),
        (
            LEAF.keys() | {"ssl.keystore.type": "JKS"},
            "ssl.keystore.key is set, but ssl.keystore.type is JKS: set ",
        ),
        (
            LEAF.keys() | {"ssl.keystore.location": "own.pem"},
            "ssl.keystore.key and ssl.keystore.location=own.pem are both set: remove one of them",
        ),
    ],
)
def test_invalid_key_store_is_explained(settings: dict[str, str], message: str) -> None:
    with pytest.raises(TlsConfigError) as raised:
        load_key_store(settings, read_file)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def trust_store(path: str, kind: str = "PKCS12", password: str | None = None) -> dict[str, str]:
    settings = {"ssl.truststore.type": kind, "ssl.truststore.location": path}
    return settings if password is None else {**settings, "ssl.truststore.password": password}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            trust_store("untrusted.p12", password=PASSWORD),
            "ssl.truststore.location=untrusted.p12 has certificates, but Java trusts none of them",
        ),
        (
            trust_store("trusted.p12"),
            "ssl.truststore.location=trusted.p12 has encrypted certificates: set ssl.truststore.password",
        ),
        (
            trust_store("trusted.p12", password="wrong"),
            "ssl.truststore.password is not the password of ssl.truststore.location=trusted.p12",
        ),
        (
            trust_store("none", "PEM"),
            "ssl.truststore.location=none cannot be read: No such file or directory",
        ),
        (trust_store("key.pem", "PEM"), "ssl.truststore.location=key.pem has no certificate in PEM format"),
        (
            trust_store("certificate.pem", "PEM", "x"),
            "ssl.truststore.password is set, but stores of the type PEM have no password: remove it",
        ),
        ({"ssl.truststore.password": "x"}, "ssl.truststore.password is set without ssl.truststore.location"),
        (
            ROOT.trust() | {"ssl.truststore.location": "x"},
            "ssl.truststore.certificates and ssl.truststore.location=x are both set: remove one of them",
        ),
    ],
)
def test_invalid_trust_store_is_explained(settings: dict[str, str], message: str) -> None:
    with pytest.raises(TlsConfigError) as raised:
        load_trust_store(settings, read_file)
    assert str(raised.value).startswith(message)


def test_only_certificates_with_the_attribute_of_java_are_trusted() -> None:
    store = load_trust_store(trust_store("trusted.p12", password=PASSWORD), read_file)
    assert store is not None
    assert store.certificates == (ROOT.der,)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(TlsConfigError, match=r"needs? the package cryptography: pip install 'kwire\[tls\]'"):
        load_key_store(key_store("own.p12", password=PASSWORD), read_file)
    assert load_key_store(key_store("own.pem", "PEM"), read_file) is not None


def test_pem_stores_do_not_import_cryptography_and_ssl() -> None:
    code = (
        "import sys, kwire.broker.security.tls_stores as stores; "
        "assert stores.load_trust_store({}, open) is None; "
        "print([name for name in ('ssl', 'cryptography') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("store", ["ssl.keystore", "ssl.truststore"])
def test_text_in_place_of_a_path_is_not_in_the_error(store: str) -> None:
    settings = {f"{store}.type": "PEM", f"{store}.location": LEAF.key_pem()}
    load = load_key_store if store == "ssl.keystore" else load_trust_store
    with pytest.raises(TlsConfigError, match="contains PEM text instead of a path") as error:
        load(settings, read_file)
    assert LEAF.key_pem().splitlines()[1] not in str(error.value)


def test_second_certificate_behind_the_first_is_not_trusted_unnoticed() -> None:
    """OpenSSL would trust both, and Java trusts the first one."""
    other = Identity("hidden ca")
    body = base64.encodebytes(ROOT.der + other.der).decode()
    text = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
    with pytest.raises(TlsConfigError, match="bytes behind it, which OpenSSL would trust"):
        load_trust_store({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}, read_file)


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN CERTIFICATE-----\n", "".join(f"-----BEGIN A{at}-----" for at in range(9))],
    ids=["no end", "kinds"],
)
def test_pem_block_without_an_end_is_refused(text: str) -> None:
    settings = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ROOT.pem + text}
    with pytest.raises(TlsConfigError, match=r"is not valid PEM: a block with -----BEGIN .* has no -----END"):
        load_trust_store(settings, read_file)


def test_text_between_pem_blocks_is_skipped() -> None:
    text = (
        f"subject=root\n-----BEGIN lower----- ----------\n{ROOT.pem}\n-----BEGIN \n-----END A-----{LEAF.pem}"
    )
    assert [one.data for one in pem_blocks(text)] == [ROOT.der, LEAF.der]


@pytest.mark.parametrize("part", ["-----BEGIN A-----", "-----BEGIN ", "-----BEGIN A", "-", "-----END A-----"])
def test_time_to_read_pem_is_linear(part: str) -> None:
    """A search for each end up to the end of the text would need minutes."""
    with suppress(ValueError):
        list(pem_blocks(part * (MAX_STORE_BYTES // len(part))))


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
def test_size_of_a_store_is_limited(kind: str) -> None:
    settings = {"ssl.truststore.type": kind, "ssl.truststore.location": "x"}
    file = {"x": bytes(MAX_STORE_BYTES + 1)}
    with pytest.raises(
        TlsConfigError,
        match=r"^ssl\.truststore\.location=x has more than 2097152 bytes: keep only the entries",
    ):
        load_trust_store(settings, file.__getitem__)
    inline = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "x" * (MAX_STORE_BYTES + 1)}
    with pytest.raises(TlsConfigError, match=r"^ssl\.truststore\.certificates has more than 2097152 bytes"):
        load_trust_store(inline, read_file)
