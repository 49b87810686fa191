"""Users and delegation tokens that one broker creates and the other broker accepts, on the same directory."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from interop.brokers import free_port
from interop.raw_client import RawClient
from interop.sasl import PREFIX, SCRAM_256, SCRAM_512, Talk, jaas
from interop.scenarios.raw_delegation_tokens import (
    MECHANISMS,
    SECRET,
    TokenClient,
    plain_token_client,
    scram_exchange,
    token_password,
)
from interop.scenarios.raw_scram_credentials import alter, deletion, describe, salted, upsertion
from interop.scenarios.raw_topics import until
from interop.swap.dump_log import dump_errors_by_shape
from interop.swap.shared_directory import Shared, log_messages_by_shape

ENDINGS = ["stop", "kill", "stop", "stop"]
OTHERS = 30
"""The number of additional users, high enough that a metadata snapshot is written in each turn."""
ITERATIONS = 4096
CODES = {SCRAM_256: 1, SCRAM_512: 2}


class Listener(NamedTuple):
    """The SASL listener of the broker whose turn it is."""

    bootstrap: str


def listen(shared: Shared) -> Listener:
    listener = Listener(f"127.0.0.1:{free_port()}")
    properties = shared.broker.properties
    for key in ("listeners", "advertised.listeners"):
        properties[key] += f",SECURED://{listener.bootstrap}"
    properties["listener.security.protocol.map"] += ",SECURED:SASL_PLAINTEXT"
    properties[f"{PREFIX}sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
    properties |= {f"{PREFIX}{one.lower()}.sasl.jaas.config": jaas(one) for one in MECHANISMS}
    properties |= SECRET
    return listener


class Made:
    """The users and tokens that earlier turns created, with their secrets."""

    def __init__(self) -> None:
        self.users: dict[str, tuple[str, str]] = {}
        self.tokens: list[Any] = []
        self.gone: dict[str, tuple[str, str]] = {}

    def make(self, turn: int, plain: RawClient, alice: TokenClient) -> None:
        """Create users and tokens, and delete one user and one token of the previous turn."""
        given = []
        for mechanism, code in CODES.items():
            name, secret = f"user-{turn}-{code}", f"secret of {turn}"
            given.append(upsertion(name, code, ITERATIONS, SaltedPassword=salted(mechanism, secret)))
            self.users[name] = mechanism, secret
        given += [upsertion(f"other-{turn}-{number}") for number in range(OTHERS)]
        ending = f"user-{turn - 1}-1"
        results = alter(plain, [deletion(ending)] if ending in self.users else [], given)["Results"]
        assert {one["ErrorCode"] for one in results} == {0}
        if ending in self.users:
            self.gone[ending] = self.users.pop(ending)
        if self.tokens:
            ended = self.tokens.pop(0)
            assert alice.expire(ended["Hmac"])["ErrorCode"] == 0
        self.tokens += [alice.create(owner=f"owner-{turn}", renewers=("alice",)), alice.create()]
        assert {made["ErrorCode"] for made in self.tokens} == {0}
        until(lambda: alice.is_known(self.tokens[-1]["Hmac"]))

    def check_logins(self, listener: Listener) -> None:
        """Check that existing users and tokens can authenticate, and that deleted ones cannot."""
        for name, (mechanism, secret) in self.users.items():
            with Talk(listener.bootstrap) as talk:
                assert scram_exchange(talk, mechanism, name, secret, "")[:2] == ("in", True), name
        for name, (mechanism, secret) in self.gone.items():
            with Talk(listener.bootstrap) as talk:
                assert scram_exchange(talk, mechanism, name, secret, "")[0] == 58, name
        for made in self.tokens:
            for mechanism in CODES:
                with Talk(listener.bootstrap) as talk:
                    assert scram_exchange(talk, mechanism, made["TokenId"], token_password(made))[:2] == (
                        "in",
                        True,
                    )
                    assert talk.metadata() != "closed"

    def check_descriptions(self, plain: RawClient, alice: TokenClient) -> None:
        """Check that the broker describes users and tokens as they were created."""
        for name, (mechanism, _) in self.users.items():
            (response,) = describe(plain, name)["Results"]
            assert response["CredentialInfos"] == [{"Mechanism": CODES[mechanism], "Iterations": ITERATIONS}]
        found = {token["TokenId"]: token for token in alice.described()}
        assert set(found) == {made["TokenId"] for made in self.tokens}
        for made in self.tokens:
            token = found[made["TokenId"]]
            assert bytes(token["Hmac"]) == bytes(made["Hmac"])
            for time in ("Issue", "Expiry", "Max"):
                assert token[f"{time}Timestamp"] == made[f"{time}TimestampMs"]
            assert (token["PrincipalName"], token["TokenRequesterPrincipalName"]) == (
                made["PrincipalName"],
                "alice",
            )


@pytest.mark.parametrize(
    "order", [["apache", "kwire"], ["kwire", "apache"]], ids=["apache_first", "kwire_first"]
)
def test_users_and_tokens_survive_a_swap(order: list[str]) -> None:
    shared, made = Shared("users"), Made()
    listener = listen(shared)
    try:
        for turn, how in enumerate(ENDINGS):
            broker = shared.start(order[turn % 2])
            with RawClient(broker.bootstrap) as plain, plain_token_client(listener, "alice") as alice:
                until(lambda: len(alice.described()) >= len(made.tokens))
                made.check_descriptions(plain, alice)
                made.check_logins(listener)
                made.make(turn, plain, alice)
                made.check_logins(listener)
            shared.end(how)
            assert shared.files("__cluster_metadata-0/*.checkpoint"), "no snapshot was written"
            output = log_messages_by_shape(broker.log_text())
            assert not [line for line in output.values() if "oken" in line or "cram" in line.lower()]
        assert dump_errors_by_shape(shared) == {}
    finally:
        shared.discard()
