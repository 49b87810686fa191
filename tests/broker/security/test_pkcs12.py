"""PKCS12 files: encryption, encodings that Java accepts, and damaged files."""

from __future__ import annotations

import base64
import random
from contextlib import suppress
from pathlib import Path

import pytest

from interop.certificate_names import PRINTABLE, der, name
from kwire.broker.security import pkcs12, pkcs12_decryption
from kwire.broker.security.certificate_chain import KnownCertificates, is_self_signed
from kwire.broker.security.der import (
    INTEGER,
    MAX_VALUES,
    Element,
    MalformedDer,
    der_of_ber,
    encode,
    read_element,
)
from kwire.broker.security.distinguished_name import comparable_name
from kwire.broker.security.pkcs12 import TRUSTED_KEY_USAGE, TrustedEntry, read_pkcs12
from kwire.broker.security.pkcs12_decryption import (
    MAX_NATIVE_ITERATIONS,
    MAX_PYTHON_ITERATIONS,
    IterationLimit,
    derive_pkcs12,
)
from kwire.broker.security.rc2 import decrypt_rc2_cbc
from kwire.broker.security.tls_settings import TlsConfigError
from kwire.broker.security.tls_stores import load_key_store, load_trust_store
from kwire.broker.security.x509 import parse_certificate
from tests.broker.security.golden import CN
from tests.broker.security.tls_certificates import Identity

DATA = Path(__file__).parent / "data" / "kafka-4.3.1-tls-stores.tsv"
PASSWORD = "changeit"
ROOT = Identity("root ca")


def store(name: str) -> bytes:
    """Return the file of a case."""
    line = next(line for line in DATA.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name} "))
    words = dict(word.split("=", 1) for word in line.partition("\t")[0].split(" ")[1:])
    return base64.b64decode(next(value for key, value in words.items() if key.endswith(".location")))


@pytest.mark.parametrize(
    ("key", "bits", "plain", "encrypted"),
    [
        ("0000000000000000", 63, "0000000000000000", "ebb773f993278eff"),
        ("ffffffffffffffff", 64, "ffffffffffffffff", "278b27e42e2f0d49"),
        ("3000000000000000", 64, "1000000000000001", "30649edf9be7d2c2"),
        ("88", 64, "0000000000000000", "61a8a244adacccf0"),
        ("88bca90e90875a", 64, "0000000000000000", "6ccf4308974c267f"),
        ("88bca90e90875a7f0f79c384627bafb2", 64, "0000000000000000", "1a807d272bbe5db1"),
        ("88bca90e90875a7f0f79c384627bafb2", 128, "0000000000000000", "2269552ab0f85ca6"),
    ],
)
def test_rc2_decrypts_the_vectors_of_rfc_2268(key: str, bits: int, plain: str, encrypted: str) -> None:
    found = decrypt_rc2_cbc(bytes.fromhex(key), bits, bytes(8), bytes.fromhex(encrypted))
    assert found.hex() == plain


def test_rc2_chains_blocks() -> None:
    key, block = bytes(8), bytes.fromhex("ebb773f993278eff")
    assert decrypt_rc2_cbc(key, 63, b"\1" * 8, block * 2) == b"\1" * 8 + block


def test_key_derivation_of_pkcs12_gives_published_values() -> None:
    """The values are those of the test of Bouncy Castle and Botan for the password `smeg`."""
    key = derive_pkcs12(1, "sha1", "smeg", bytes.fromhex("0a58cf64530d823f"), 1, 24)
    assert key.hex() == "8aaae6297b6cb04642ab5b077851284eb7128f1a2a7fbca3"
    initial = derive_pkcs12(2, "sha1", "smeg", bytes.fromhex("0a58cf64530d823f"), 1, 8)
    assert initial.hex() == "79993dfe048d3b76"


def test_trusted_entries_need_the_attribute_of_java() -> None:
    data = store("keytool-legacy-trust")
    found = read_pkcs12(data, PASSWORD)
    assert [type(entry) for entry in found.entries] == [TrustedEntry, TrustedEntry]
    assert TRUSTED_KEY_USAGE == "2.16.840.1.113894.746875.1.1"
    assert read_pkcs12(store("openssl-trust"), PASSWORD).entries == ()
    assert read_pkcs12(store("openssl-trust"), PASSWORD).certificates == 2


def test_indefinite_lengths_and_strings_in_parts_are_read() -> None:
    parts = bytes.fromhex("308024800402616204016300000201050000")
    assert der_of_ber(parts + b"behind").hex() == "30080403616263020105"
    text, number = read_element(der_of_ber(parts)).children()
    assert text.octets() == b"abc"
    assert number.integer() == 5
    tagged = read_element(der_of_ber(bytes.fromhex("a080040261620481016300 00".replace(" ", ""))))
    assert tagged.octets() == b"abc"


def test_conversion_of_ber_does_not_change_der() -> None:
    assert der_of_ber(ROOT.der) == ROOT.der
    long = bytes.fromhex("3082012c") + bytes.fromhex("04820128") + bytes(296)
    assert der_of_ber(long) == long


def test_number_of_converted_values_is_limited() -> None:
    assert der_of_ber(encode(0x30, b"\5\0" * (MAX_VALUES - 1)))
    with pytest.raises(MalformedDer, match="more than 100000 values"):
        der_of_ber(encode(0x30, b"\5\0" * MAX_VALUES))


def test_object_identifiers_are_decoded() -> None:
    oid = read_element(bytes.fromhex("06 0b 60 86 48 01 86 f9 66 ad ca 7b 01"))
    assert oid.oid() == "2.16.840.1.113894.746875.1"


def test_object_identifiers_and_integers_are_bounded() -> None:
    number = b"\xff" * 1022
    assert read_element(b"\x06\x82\x04\0\x2a" + number + b"\x7f").oid().startswith("1.2.")
    with pytest.raises(MalformedDer, match="an object identifier of 1025 bytes"):
        read_element(b"\x06\x82\x04\1\x2a\xff" + number + b"\x7f").oid()
    with pytest.raises(MalformedDer, match="an integer of 9 bytes"):
        read_element(b"\x02\x09" + bytes(9)).integer()
    with pytest.raises(MalformedDer, match="an integer of 0 bytes"):
        read_element(b"\x02\x00").integer()


@pytest.mark.parametrize(
    "data",
    ["", "30", "3005", "3080", "1f8101", "3080" * 100, "308400ffffff", "3085000000000100", "3003020105"[:-2]],
)
def test_malformed_der_is_refused(data: str) -> None:
    with pytest.raises(MalformedDer):
        read_element(bytes.fromhex(data))
    with pytest.raises(MalformedDer):
        der_of_ber(bytes.fromhex(data))


@pytest.mark.parametrize("data", ["30800000", "308103020105", "30840000000302010500", "3003020105" + "00"])
def test_only_the_conversion_accepts_ber(data: str) -> None:
    der_of_ber(bytes.fromhex(data))
    with pytest.raises(MalformedDer):
        read_element(bytes.fromhex(data))


@pytest.mark.parametrize(
    "data", ["3080", "30800201", "3003020400", "0480", "30800101ff", "2405040161" + "0101"]
)
def test_value_without_an_end_is_no_ber(data: str) -> None:
    with pytest.raises(MalformedDer):
        der_of_ber(bytes.fromhex(data))


def number(value: int) -> Element:
    return read_element(encode(INTEGER, value.to_bytes(8, "big")))


def test_iterations_are_limited_by_the_cost_of_the_derivation() -> None:
    """Without a limit, a file would occupy the broker for hours."""
    limit = IterationLimit()
    assert limit.native(number(MAX_NATIVE_ITERATIONS)) == 5_000_000
    assert limit.python(number(MAX_PYTHON_ITERATIONS)) == 200_000
    assert limit.python(None) == 1
    for read, count, message in (
        (limit.native, 5_000_001, "its password has 5000001 iterations, more than 5000000: export it again"),
        (limit.python, 200_001, "its password has 200001 iterations, more than 200000: export it again"),
        (limit.python, 0, "its password has no iterations"),
    ):
        with pytest.raises(MalformedDer, match=message):
            read(number(count))
    for _ in range(4):
        limit.python(number(200_000))
    with pytest.raises(MalformedDer, match="its keys together have too many iterations"):
        limit.python(number(1))


@pytest.mark.parametrize(
    ("iterations", "message"), [("0202ffff", "no iterations"), ("02027fff", "32767 iterat")]
)
def test_iterations_of_a_file_are_limited(
    iterations: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pkcs12_decryption, "MAX_PYTHON_ITERATIONS", 3000)
    data = store("openssl-legacy")
    at = data.rindex(bytes.fromhex("02020800"))  # the iterations of the MAC
    # The same length, so that only the number changes.
    changed = data[:at] + bytes.fromhex(iterations) + data[at + 4 :]
    settings = {"ssl.truststore.location": "x", "ssl.truststore.password": PASSWORD}
    with pytest.raises(TlsConfigError, match=rf"^ssl\.truststore\.location=x cannot be read: .*{message}"):
        load_trust_store(settings, {"x": changed}.__getitem__)


def test_all_derivations_of_a_store_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"ssl.keystore.location": "x", "ssl.keystore.password": PASSWORD}
    files = {"x": store("openssl-legacy")}
    monkeypatch.setattr(pkcs12_decryption, "MAX_STORE_ITERATIONS", 5 * 2048 * 5)
    assert load_key_store(settings, files.__getitem__) is not None  # the MAC, and two for each encryption
    monkeypatch.setattr(pkcs12_decryption, "MAX_STORE_ITERATIONS", 5 * 2048 * 5 - 1)
    with pytest.raises(TlsConfigError, match="its keys together have too many iterations"):
        load_key_store(settings, files.__getitem__)


def test_data_in_rc2_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pkcs12_decryption, "MAX_RC2_BYTES", 64)
    with pytest.raises(MalformedDer, match="more than 64 bytes are encrypted with RC2"):
        read_pkcs12(store("openssl-legacy"), PASSWORD)


def test_number_of_keys_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pkcs12, "MAX_KEYS", 0)
    with pytest.raises(MalformedDer, match="more than 0 private keys"):
        read_pkcs12(store("openssl"), PASSWORD)


@pytest.mark.parametrize("name", ["openssl", "openssl-legacy", "openssl-trust"])
def test_damaged_file_gives_only_configuration_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pkcs12_decryption, "MAX_PYTHON_ITERATIONS", 3000)
    monkeypatch.setattr(pkcs12_decryption, "MAX_NATIVE_ITERATIONS", 3000)
    data, rng = store(name), random.Random(name)
    key_store = {"ssl.keystore.location": "x", "ssl.keystore.password": PASSWORD}
    trust_store = {"ssl.truststore.location": "x", "ssl.truststore.password": PASSWORD}
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.choice([rng.randrange(200), rng.randrange(len(changed))])] ^= 1 << rng.randrange(8)
        with suppress(TlsConfigError):
            load_key_store(key_store, {"x": bytes(changed)}.__getitem__)
        with suppress(TlsConfigError):
            load_trust_store(trust_store, {"x": bytes(changed)}.__getitem__)


def test_names_are_compared_as_in_java() -> None:
    one, other = (parse_certificate(Identity(name).der) for name in ("Example  CA", "example ca"))
    assert one.subject != other.subject
    assert comparable_name(one.subject) == comparable_name(other.subject)
    assert is_self_signed(one)
    leaf = parse_certificate(Identity("leaf", Identity("example ca")).der)
    assert comparable_name(leaf.issuer) == comparable_name(one.subject)
    assert not is_self_signed(leaf)
    assert KnownCertificates([leaf, one]).chain_of(leaf) == [leaf, one]


def test_name_whose_text_is_refused_is_compared_by_its_bytes() -> None:
    """An authority may have such a name, and a principal may not."""
    subject = name([(CN, der(PRINTABLE, b"\xe9"))])
    assert comparable_name(subject) == subject
    with pytest.raises(MalformedDer):
        comparable_name(subject[:-1])


def test_certificates_that_issued_each_other_give_a_chain_with_an_end() -> None:
    one, other = parse_certificate(Identity("one").der), parse_certificate(Identity("other").der)
    one, other = one._replace(issuer=other.subject), other._replace(issuer=one.subject)
    assert KnownCertificates([one, other]).chain_of(one) == [one, other]
