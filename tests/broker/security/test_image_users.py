"""Users and delegation tokens in the metadata, and their SCRAM credentials."""

from __future__ import annotations

from base64 import b64encode

import pytest

from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.security import image_users
from kwire.broker.security.delegation_tokens import token_hmac
from kwire.broker.security.image_users import ImageUsers
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.broker.security.users import ScramCredential
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.records.metadata import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

SECRET = b"secret"
SHA_256, SHA_512 = SCRAM_MECHANISMS


class MutableUsers:
    """Users of a metadata image that a test changes."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.image = MetadataImage()
        self.host = VirtualHost()
        self.work = self.host.hold_work()
        self.mechanisms = [SHA_512]
        self.users = ImageUsers(lambda: self.image, secret, self.host, lambda: self.mechanisms)

    def write(self, *records: object) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.apply(self.image.offset + len(records), 1)


def token_record(token_id: str, owner: str = "User:alice", expires_ms: int = 5) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=owner, requester="User:bob", token_id=token_id, expiration_timestamp=expires_ms
    )


def test_scram_credentials_are_found_by_mechanism_and_name() -> None:
    fixture = MutableUsers()
    fixture.write(
        UserScramCredentialRecord(
            name="alice", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
        )
    )
    assert fixture.users.scram_credential(SHA_512, "alice") == (b"s", b"k", b"v", 4096)
    assert fixture.users.scram_credential(SHA_256, "alice") is None
    assert fixture.users.scram_credential(SHA_512, "bob") is None
    fixture.write(RemoveUserScramCredentialRecord(name="alice", mechanism=2))
    assert fixture.users.scram_credential(SHA_512, "alice") is None


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_token_authenticates_with_its_hmac(mechanism: str) -> None:
    fixture = MutableUsers()
    fixture.write(token_record("t"))
    found = fixture.users.token(mechanism, "t")
    assert found is not None
    assert (str(found.owner), found.owner.token_authenticated, found.expires_ms) == ("User:alice", True, 5)
    password = b64encode(token_hmac(SECRET, "t")).decode()
    salt, _, _, iterations = found.credential
    salted = SCRAM_MECHANISMS[mechanism].salt_password(password, salt, iterations)
    assert SCRAM_MECHANISMS[mechanism].credential(salt, iterations, salted) == found.credential
    fixture.write(token_record("t", expires_ms=9))
    again = fixture.users.token(mechanism, "t")
    assert again is not None
    assert (again.expires_ms, again.credential is found.credential) == (9, True)
    fixture.write(RemoveDelegationTokenRecord(token_id="t"))
    assert fixture.users.token(mechanism, "t") is None


def test_the_owner_of_a_token_is_a_user_principal() -> None:
    fixture = MutableUsers()
    fixture.write(token_record("t", owner="Group:a:b"))
    found = fixture.users.token(SHA_256, "t")
    assert found is not None
    assert str(found.owner) == "User:a:b"


def test_without_a_secret_no_token_authenticates() -> None:
    fixture = MutableUsers(b"")
    fixture.write(token_record("t"))
    assert fixture.users.token(SHA_256, "t") is None


def test_the_credential_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_users, "MAX_CACHED", 2)
    fixture = MutableUsers()
    fixture.write(*map(token_record, "abc"))
    first = [fixture.users.token(SHA_256, name) for name in "ab"]
    assert fixture.users.token(SHA_256, "a") == first[0]
    fixture.users.token(SHA_256, "c")
    assert fixture.users.token(SHA_256, "a") == first[0]
    assert fixture.users.token(SHA_256, "b") != first[1], "the least recently used credential has a new salt"


class DerivedCredentials:
    """A record of the credentials that were derived."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        make = image_users._derive

        def counted(secret: bytes, mechanism: str, token_id: str, salt: bytes) -> ScramCredential:
            self.made.append((mechanism, token_id))
            return make(secret, mechanism, token_id, salt)

        monkeypatch.setattr(image_users, "_derive", counted)


def test_credentials_of_new_tokens_are_derived_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture, counted = MutableUsers(), DerivedCredentials(monkeypatch)
    fixture.write(*map(token_record, "abc"))
    fixture.users.update_tokens(fixture.image.delegation_tokens)
    assert (len(fixture.work), counted.made) == (1, []), "one credential at a time"
    fixture.work.pop().deliver()
    fixture.host.run_pending()
    assert counted.made == [(SHA_512, "a")]
    fixture.users.token(SHA_512, "a")
    assert len(counted.made) == 1, "the credential is cached"
    fixture.users.token(SHA_512, "c")
    fixture.write(RemoveDelegationTokenRecord(token_id="a"))
    fixture.users.update_tokens(fixture.image.delegation_tokens)
    while fixture.work:
        fixture.work.pop().deliver()
        fixture.host.run_pending()
    assert counted.made == [(SHA_512, "a"), (SHA_512, "c"), (SHA_512, "b")], "each credential is derived once"
    assert {key[1] for key in fixture.users._cached} == {"b", "c"}


def test_no_more_credentials_are_derived_ahead_than_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_users, "MAX_CACHED", 2)
    fixture, counted = MutableUsers(), DerivedCredentials(monkeypatch)
    fixture.write(*map(token_record, "abc"))
    fixture.users.update_tokens(fixture.image.delegation_tokens)
    while fixture.work:
        fixture.work.pop().deliver()
        fixture.host.run_pending()
    assert len(counted.made) == 2
    assert fixture.users.token(SHA_512, "c") is not None


def test_after_a_failed_derivation_the_next_credential_is_derived() -> None:
    fixture = MutableUsers()
    fixture.write(*map(token_record, "ab"))
    fixture.users.update_tokens(fixture.image.delegation_tokens)
    fixture.work.pop()
    fixture.users._cache((SHA_512, "a"), MemoryError())
    fixture.host.run_pending()
    fixture.work.pop().deliver()
    fixture.host.run_pending()
    assert [key[1] for key in fixture.users._cached] == ["b"]
