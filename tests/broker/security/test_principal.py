"""Who asks, in words and beside others."""

from __future__ import annotations

from kwire.broker.security.principal import ANONYMOUS, Principal


def test_a_principal_is_told_as_kafka_tells_it() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert str(Principal("User", "a:b")) == "User:a:b"


def test_who_has_shown_a_token_is_the_same_one() -> None:
    alice = Principal("User", "alice")
    assert alice.is_same(Principal("User", "alice", token_authenticated=True))
    assert not alice.is_same(Principal("User", "bob"))
    assert not alice.is_same(Principal("Group", "alice"))
