"""HMACs of delegation tokens, compared with Apache Kafka 4.3.1, and who may renew or describe a token."""

from __future__ import annotations

import pytest

from kwire.broker.security import delegation_tokens as tokens_module
from kwire.broker.security.delegation_tokens import (
    TokenHmacs,
    is_owner_or_renewer,
    is_owner_requester_or_renewer,
    parse_principal,
    token_hmac,
)
from kwire.broker.security.principal import Principal
from kwire.wire.records.metadata import DelegationTokenRecord

KAFKAS = [
    (
        "V2oR0L6YQSi4p8FbMqWNBw",
        "5b1a2cf0cff922afe029a5266b78515b175b62e8a3c662b4efa1e2c8f91badcd"
        "7ab211c62b5140381f88b18af9f35b22d66e90a0b144af2296bfd8f7cb285012",
    ),
    (
        "flSmyd_ESYqmNX1XgIzgAw",
        "97991c84e97550336e5cd6df18f4acdb8abab1d978ca6e1c87227f6ad16bf989"
        "25806a8120b3287bfe537c02d127c129706db7d67abbe6d31df8c516889985b3",
    ),
]
SECRET = b"s3cret"
TOKEN = DelegationTokenRecord(owner="User:zoe", requester="User:alice", renewers=["User:bob"], token_id="t")


@pytest.mark.parametrize(("token_id", "hmac"), KAFKAS)
def test_token_hmac_equals_kafkas(token_id: str, hmac: str) -> None:
    assert token_hmac(SECRET, token_id).hex() == hmac


def test_a_token_is_found_by_its_hmac() -> None:
    tokens = {token_id: DelegationTokenRecord(token_id=token_id) for token_id, _ in KAFKAS}
    hmacs = TokenHmacs(SECRET)
    for token_id, hmac in KAFKAS:
        assert hmacs.find(tokens, bytes.fromhex(hmac)) is tokens[token_id]
        assert hmacs.hmac_of(token_id).hex() == hmac
        assert TokenHmacs(b"another").find(tokens, bytes.fromhex(hmac)) is None
    assert hmacs.find(tokens, b"") is None
    assert "s3cret" not in repr(hmacs)


def test_each_hmac_is_computed_once_and_dropped_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(secret: bytes, token_id: str) -> bytes:
        made.append(token_id)
        return token_id.encode()

    monkeypatch.setattr(tokens_module, "token_hmac", counted)
    first = {token_id: DelegationTokenRecord(token_id=token_id) for token_id in "abc"}
    hmacs = TokenHmacs(SECRET)
    hmacs.update_tokens(first)
    for hmac in (b"a", b"b", b"none", b"none"):
        hmacs.find(first, hmac)
        hmacs.hmac_of("c")
    assert sorted(made) == ["a", "b", "c"]
    then = {token_id: DelegationTokenRecord(token_id=token_id) for token_id in "bcd"}
    assert hmacs.find(then, b"a") is None
    assert hmacs.find(then, b"d") is then["d"]
    assert sorted(made) == ["a", "b", "c", "d"]
    assert len(hmacs) == 3


@pytest.mark.parametrize("text", ["User:alice", "Group:a:b", ":x", "User:"])
def test_principals_survive_formatting_and_parsing(text: str) -> None:
    assert str(parse_principal(text)) == text


@pytest.mark.parametrize(
    ("text", "may_renew", "may_describe"),
    [
        ("User:zoe", True, True),
        ("User:bob", True, True),
        ("User:alice", False, True),
        ("Group:zoe", False, False),
    ],
)
def test_owner_renewer_and_requester_of_a_token(text: str, may_renew: bool, may_describe: bool) -> None:
    kind, name = text.split(":")
    for principal in (parse_principal(text), Principal(kind, name, token_authenticated=True)):
        assert is_owner_or_renewer(TOKEN, principal) is may_renew
        assert is_owner_requester_or_renewer(TOKEN, principal) is may_describe
