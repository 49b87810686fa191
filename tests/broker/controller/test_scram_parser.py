"""SCRAM credentials, compared with those that the storage tool of Kafka 4.3.1 makes of the same arguments."""

from __future__ import annotations

import random

import pytest

from kwire.broker.controller.scram_parser import MalformedCredential, parse_credential

KAFKAS = [
    (
        'SCRAM-SHA-256=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]',
        ("alice", 1, b"7q", 8192),
        "e8ed7e79a880316a18a5a18f63a109902c2dfd958a29a66e7bb487eb5fd3455a",
        "cdef114d813edc6a3d8e4f842a7383f87f017eb06e8af3c0e5a3981bcb1d5c60",
    ),
    (
        'SCRAM-SHA-512=[name=a,salt=MWFh,password="\N{LATIN SMALL LETTER E WITH ACUTE}=b"]',
        ("a", 2, b"1aa", 4096),
        "e00bd815977ffc4c3bcf367ce51a10fd8c16a29a75c2488d466506fecb0554c0"
        "66e0f0ce612826df15923ea7cf15952b82e18c5b62d8d00bec212f244a7317e3",
        "c6ff3243cee47b8504468a6e03dc8d291b96a02daff940754a3fd21281b15e79"
        "1fb998d0cb619bb43dd5dca5ce24d7cee00b6350d420938acb6924b9db0b54e5",
    ),
    (
        " SCRAM-SHA-512=[name=a,salt=N3E,password=x] ",
        ("a", 2, b"7q", 4096),
        "b2e57643b5e2494a12c5a3a669310e2437747454ffd5a49088bf27ddb3e359b6"
        "e7c575a17fbcf8b2c2d76a809df943c9241940449c3e43769e8cb8a199387187",
        "8567be0c187f7160cd923876fb3e492ddbe0bc1ce5b584def048181ea29393ed"
        "9d09bcd4e033825a1c75764a7b1b1646806b33f31c42e4a543c55746c3b5ca44",
    ),
]


@pytest.mark.parametrize(("text", "plain", "stored_key", "server_key"), KAFKAS)
def test_credentials_equal_kafkas(
    text: str, plain: tuple[str, int, bytes, int], stored_key: str, server_key: str
) -> None:
    credential = parse_credential(text, random.Random(0))
    assert (credential.name, credential.mechanism, bytes(credential.salt), credential.iterations) == plain
    assert bytes(credential.stored_key).hex() == stored_key
    assert bytes(credential.server_key).hex() == server_key


def test_a_missing_salt_is_random() -> None:
    text, rng = "SCRAM-SHA-256=[name=a,password=x]", random.Random(0)
    first, second = parse_credential(text, rng), parse_credential(text, rng)
    assert len(first.salt) == 26
    assert first.salt != second.salt
    assert first.stored_key != second.stored_key


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SCRAM-SHA-256", "expected MECHANISM="),
        ("SCRAM-SHA-1=[name=a,password=x]", "unknown mechanism SCRAM-SHA-1"),
        ("scram-sha-512=[name=a,password=x]", "unknown mechanism scram-sha-512"),
        ("SCRAM-SHA-256=name=a,password=x", "with brackets"),
        ("SCRAM-SHA-256=[name=a,password=x", "with brackets"),
        ("SCRAM-SHA-256=[ name=a,password=x]", "name= is missing"),
        ("SCRAM-SHA-256=[name=a]", "password= or saltedpassword= is missing"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YCE=]", "needs the salt="),
        ("SCRAM-SHA-256=[name=a,password=x,foo=1]", "unknown setting foo"),
        ("SCRAM-SHA-256=[name=a,password]", "'password' is not a setting"),
        ("SCRAM-SHA-256=[name=a,password=x,iterations=4095]", "iterations is 4095: expected 4096 to 16384"),
        ("SCRAM-SHA-512=[name=a,password=x,iterations=16385]", "iterations is 16385"),
        ("SCRAM-SHA-512=[name=a,password=x,iterations=many]", "iterations is 'many': expected a number"),
        ("SCRAM-SHA-512=[name=a,password=x,salt=!]", "salt is '!': expected base64"),
        ("SCRAM-SHA-512=[name=a,salt=N3E=,saltedpassword=a]", "saltedpassword is 'a': expected base64"),
        ("SCRAM-SHA-512=[name=,password=]", "the password is empty"),
    ],
)
def test_an_invalid_credential_is_refused(text: str, error: str) -> None:
    with pytest.raises(MalformedCredential) as caught:
        parse_credential(text, random.Random(0))
    assert error in str(caught.value)
