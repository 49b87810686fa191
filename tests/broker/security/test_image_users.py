"""Who there is by the metadata, and what proves it."""

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


class Known:
    """Users of an image that a test changes."""

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


def test_passwords_come_and_go_by_mechanism() -> None:
    known = Known()
    known.write(
        UserScramCredentialRecord(
            name="alice", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
        )
    )
    assert known.users.scram_credential(SHA_512, "alice") == (b"s", b"k", b"v", 4096)
    assert known.users.scram_credential(SHA_256, "alice") is None
    assert known.users.scram_credential(SHA_512, "bob") is None
    known.write(RemoveUserScramCredentialRecord(name="alice", mechanism=2))
    assert known.users.scram_credential(SHA_512, "alice") is None


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_token_is_proved_by_its_hmac(mechanism: str) -> None:
    known = Known()
    known.write(token_record("t"))
    found = known.users.token(mechanism, "t")
    assert found is not None
    assert (str(found.owner), found.owner.token_authenticated, found.expires_ms) == ("User:alice", True, 5)
    password = b64encode(token_hmac(SECRET, "t")).decode()
    salt, _, _, iterations = found.credential
    salted = SCRAM_MECHANISMS[mechanism].salt_password(password, salt, iterations)
    assert SCRAM_MECHANISMS[mechanism].credential(salt, iterations, salted) == found.credential
    known.write(token_record("t", expires_ms=9))
    again = known.users.token(mechanism, "t")
    assert again is not None
    assert (again.expires_ms, again.credential is found.credential) == (9, True)
    known.write(RemoveDelegationTokenRecord(token_id="t"))
    assert known.users.token(mechanism, "t") is None


def test_the_owner_of_a_token_is_a_user() -> None:
    known = Known()
    known.write(token_record("t", owner="Group:a:b"))
    found = known.users.token(SHA_256, "t")
    assert found is not None
    assert str(found.owner) == "User:a:b"


def test_without_a_secret_nobody_has_a_token() -> None:
    known = Known(b"")
    known.write(token_record("t"))
    assert known.users.token(SHA_256, "t") is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_users, "MAX_CACHED", 2)
    known = Known()
    known.write(*map(token_record, "abc"))
    first = [known.users.token(SHA_256, name) for name in "ab"]
    assert known.users.token(SHA_256, "a") == first[0]
    known.users.token(SHA_256, "c")
    assert known.users.token(SHA_256, "a") == first[0]
    assert known.users.token(SHA_256, "b") != first[1], "it was shown longest ago, and has a new salt"


class Counted:
    """How often a credential was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        make = image_users._derive

        def counted(secret: bytes, mechanism: str, token_id: str, salt: bytes) -> ScramCredential:
            self.made.append((mechanism, token_id))
            return make(secret, mechanism, token_id, salt)

        monkeypatch.setattr(image_users, "_derive", counted)


def test_credentials_are_made_in_workers_as_tokens_come(monkeypatch: pytest.MonkeyPatch) -> None:
    known, counted = Known(), Counted(monkeypatch)
    known.write(*map(token_record, "abc"))
    known.users.update_tokens(known.image.delegation_tokens)
    assert (len(known.work), counted.made) == (1, []), "one at a time"
    known.work.pop().deliver()
    known.host.run_pending()
    assert counted.made == [(SHA_512, "a")]
    known.users.token(SHA_512, "a")
    assert len(counted.made) == 1, "it is there"
    known.users.token(SHA_512, "c")
    known.write(RemoveDelegationTokenRecord(token_id="a"))
    known.users.update_tokens(known.image.delegation_tokens)
    while known.work:
        known.work.pop().deliver()
        known.host.run_pending()
    assert counted.made == [(SHA_512, "a"), (SHA_512, "c"), (SHA_512, "b")], "each once, whoever made it"
    assert {key[1] for key in known.users._cached} == {"b", "c"}


def test_no_more_is_made_ahead_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_users, "MAX_CACHED", 2)
    known, counted = Known(), Counted(monkeypatch)
    known.write(*map(token_record, "abc"))
    known.users.update_tokens(known.image.delegation_tokens)
    while known.work:
        known.work.pop().deliver()
        known.host.run_pending()
    assert len(counted.made) == 2
    assert known.users.token(SHA_512, "c") is not None


def test_of_what_a_worker_could_not_make_the_next_is_made() -> None:
    known = Known()
    known.write(*map(token_record, "ab"))
    known.users.update_tokens(known.image.delegation_tokens)
    known.users._cache(known.work.pop() and (SHA_512, "a"), MemoryError())
    known.host.run_pending()
    known.work.pop().deliver()
    known.host.run_pending()
    assert [key[1] for key in known.users._cached] == ["b"]
