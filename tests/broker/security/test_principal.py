"""Text and comparison of principals."""

from __future__ import annotations

from kwire.broker.security.principal import ANONYMOUS, Principal


def test_a_principal_is_formatted_as_in_kafka() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert str(Principal("User", "a:b")) == "User:a:b"


def test_a_principal_authenticated_by_token_is_the_same_principal() -> None:
    alice = Principal("User", "alice")
    assert alice.is_same(Principal("User", "alice", token_authenticated=True))
    assert not alice.is_same(Principal("User", "bob"))
    assert not alice.is_same(Principal("Group", "alice"))
