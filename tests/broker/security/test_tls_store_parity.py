"""Stores of keytool, openssl and cryptography give the same keys and certificates as in Java.

`interop/tls_store_cases.py` writes the cases, and `interop/test_java_parity.py` compares them with Java.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from kwire.broker.security.tls_context import server_context
from kwire.broker.security.tls_settings import TlsConfigError
from kwire.broker.security.tls_stores import KeyStore, TrustStore, load_key_store, load_trust_store

DATA = Path(__file__).parent / "data" / "kafka-4.3.1-tls-stores.tsv"
CASES = [line.split("\t") for line in DATA.read_text(encoding="utf-8").splitlines()]
NOTHING = "||"
"""Java loads the store, but finds no key or certificate in it, so that every handshake fails."""


def fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()[:12]


def load(question: str) -> tuple[KeyStore | None, TrustStore | None]:
    settings, files = {}, {}
    for word in question.split()[1:]:
        name, _, encoded = word.partition("=")
        value = base64.b64decode(encoded)
        if name.endswith(".location"):
            files[name] = value
        settings[name] = name if name in files else value.decode()
    return load_key_store(settings, files.__getitem__), load_trust_store(settings, files.__getitem__)


def describe(key_store: KeyStore | None, trust_store: TrustStore | None) -> str:
    """Return the stores as `interop/java/TlsStores.java` does."""
    trusted = {fingerprint(one) for one in trust_store.certificates} if trust_store else set()
    keys = [",".join(map(fingerprint, key.chain)) for key in key_store.keys] if key_store else []
    entries = key_store.certificates if key_store else ()
    by_alias = ",".join(f"{alias}:{fingerprint(one)}" for alias, one in entries)
    return f"{','.join(sorted(trusted))}|{' '.join(sorted(keys))}|{by_alias}"


@pytest.mark.parametrize(
    ("question", "answer"), CASES, ids=[question.partition(" ")[0] for question, _ in CASES]
)
def test_store_has_the_keys_and_certificates_that_java_finds(question: str, answer: str) -> None:
    if answer in ("error", NOTHING):
        with pytest.raises(TlsConfigError):
            load(question)
        return
    key_store, trust_store = load(question)
    assert describe(key_store, trust_store) == answer
    if key_store is not None:
        server_context({}, key_store, trust_store)  # OpenSSL checks that each key matches its certificate


def test_cases_cover_every_result() -> None:
    answers = [answer for _, answer in CASES]
    assert "error" in answers
    assert NOTHING in answers
    assert len(set(answers)) > 10
