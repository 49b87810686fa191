"""Delegation tokens: creation, renewal, expiry, and use for authentication (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
import time
from typing import Any

from interop.brokers import Broker, Served
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.sasl import PLAIN, SCRAM_256, SCRAM_512, Scram, Talk, plain, secured
from interop.scenario import scenario
from interop.scenarios.raw_scram_credentials import TOKEN_REQUESTS
from interop.scenarios.raw_topics import until
from interop.wire import encode_request

MECHANISMS = (PLAIN, SCRAM_256, SCRAM_512)
SECRET = {"delegation.token.secret.key": "a secret of the cluster"}
SHORT = SECRET | {
    "delegation.token.max.lifetime.ms": "216000000",
    "delegation.token.expiry.time.ms": "72000000",
}
"""Broker settings: a maximum lifetime of 60 hours, and an expiry after 20 hours unless renewed."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SOON_MS = 8_000
LONGEST = 2**63 - 1


class TokenClient:
    """An authenticated connection, and requests about tokens on this connection."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    def __enter__(self) -> TokenClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.socket.close()

    def create(self, version: int = 3, *, lifetime_ms: int = -1, renewers: Any = (), owner: str = "") -> Any:
        fields: dict[str, Any] = {"Renewers": [user(name) for name in renewers], "MaxLifetimeMs": lifetime_ms}
        if version >= 3:
            kind, _, name = owner.rpartition(":")
            fields |= {"OwnerPrincipalType": kind or "User", "OwnerPrincipalName": name}
        return self.client.call("CreateDelegationToken", version, **fields)

    def renew(self, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
        return without_random_values(
            self.client.call("RenewDelegationToken", version, Hmac=bytes(hmac), RenewPeriodMs=period_ms)
        )

    def expire(self, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
        return without_random_values(
            self.client.call("ExpireDelegationToken", version, Hmac=bytes(hmac), ExpiryTimePeriodMs=period_ms)
        )

    def described(self, *owners: str, version: int = 3) -> list[Any]:
        """Describe the tokens of these owners, by default of all owners, sorted by owner and issue time."""
        requested = [user(owner) for owner in owners] or None
        response = self.client.call("DescribeDelegationToken", version, Owners=requested)
        assert response["ErrorCode"] == 0, response
        return sorted(response["Tokens"], key=lambda token: (token["PrincipalName"], token["IssueTimestamp"]))

    def is_known(self, hmac: bytes) -> bool:
        """Return whether the broker knows the token with this HMAC."""
        return any(bytes(token["Hmac"]) == bytes(hmac) for token in self.described())


def plain_token_client(one: Served, name: str) -> TokenClient:
    """Authenticate this user with PLAIN on a new connection."""
    client = RawClient(one.bootstrap)
    client.call("SaslHandshake", 1, Mechanism=PLAIN)
    response = client.call("SaslAuthenticate", 2, AuthBytes=plain(name))
    assert response["ErrorCode"] == 0, response
    return TokenClient(client)


def user(text: str) -> dict[str, str]:
    kind, _, name = text.rpartition(":")
    return {"PrincipalType": kind or "User", "PrincipalName": name}


def without_random_values(response: Any) -> Any:
    """Replace timestamps by the hours from now, and token ids and HMACs by their lengths."""
    response = comparable(response)
    now_ms = time.time() * 1000
    for key, value in response.items():
        if "Timestamp" in key and value > 0:
            response[key] = f"in {round((value - now_ms) / HOUR_MS)} hours"
        elif key in ("TokenId", "Hmac"):
            response[key] = len(value)
        elif key in ("Tokens",):
            response[key] = [without_random_values(token) for token in value]
    return response


@scenario(seconds=120)
def token_creation(broker: Broker) -> Any:
    """Create tokens in each version, for different requesters, owners and lifetimes."""
    seen: dict[str, Any] = {}
    with secured(broker, MECHANISMS, SECRET) as one, plain_token_client(one, "alice") as alice:
        for version in (1, 2, 3):
            for lifetime_ms in (-1, 0, 20 * HOUR_MS, DAY_MS, 30 * DAY_MS, LONGEST, -LONGEST):
                seen[f"v{version} {lifetime_ms}"] = without_random_values(
                    alice.create(version, lifetime_ms=lifetime_ms)
                )
            seen[f"v{version} renewers"] = without_random_values(
                alice.create(version, renewers=("bob", "carol", "bob"))
            )
            seen[f"v{version} group"] = without_random_values(
                alice.create(version, renewers=("bob", "Group:carol"))
            )
        for owner in ("bob", "Group:bob", "User:zoe:x", "alice"):
            seen[f"for {owner}"] = without_random_values(alice.create(owner=owner))
        created = alice.create(renewers=("last",))
        until(lambda: alice.is_known(created["Hmac"]))
        for version in (1, 2, 3):
            seen[f"described v{version}"] = [
                without_random_values(token) for token in alice.described(version=version)
            ]
    return seen


@scenario(seconds=120)
def renewal_and_expiry(broker: Broker) -> Any:
    """Renew and expire tokens as different users."""
    seen: list[Any] = []
    with (
        secured(broker, MECHANISMS, SHORT) as one,
        plain_token_client(one, "alice") as alice,
        plain_token_client(one, "bob") as bob,
    ):
        created = alice.create(renewers=("bob",))
        others = alice.create(owner="zoe")
        until(lambda: alice.is_known(others["Hmac"]))
        for period_ms in (-1, 0, 5 * HOUR_MS, 40 * HOUR_MS, 30 * DAY_MS):
            seen += [alice.renew(created["Hmac"], period_ms), bob.renew(created["Hmac"], period_ms, 1)]
        seen += [
            ask(hmac, period_ms)
            for requester in (alice, bob)
            for ask in (requester.renew, requester.expire)
            for hmac in (others["Hmac"], b"", b"x" * 64)
            for period_ms in (-1, 1_000)
        ]
        for period_ms in (10 * HOUR_MS, 40 * HOUR_MS, 30 * DAY_MS, LONGEST):
            seen += [alice.expire(created["Hmac"], period_ms), bob.expire(created["Hmac"], period_ms, 1)]
        seen += [
            bob.expire(created["Hmac"]),
            without_random_values({"there": alice.is_known(others["Hmac"])}),
        ]
        until(lambda: not alice.is_known(created["Hmac"]))
        seen += [alice.renew(created["Hmac"]), alice.expire(created["Hmac"])]
        now = alice.create()
        until(lambda: alice.is_known(now["Hmac"]))
        seen.append(alice.expire(now["Hmac"], 0))
        time.sleep(0.3)
        # The token has expired. The broker removes it only at its next check, which is much later.
        seen += [alice.renew(now["Hmac"]), alice.expire(now["Hmac"], 1_000), alice.expire(now["Hmac"])]
    return seen


@scenario(seconds=120)
def token_description(broker: Broker) -> Any:
    """Describe tokens of all owners and of some, as two users. Without an authorizer, both see all tokens."""
    with (
        secured(broker, MECHANISMS, SECRET) as one,
        plain_token_client(one, "alice") as alice,
        plain_token_client(one, "bob") as bob,
    ):
        alice.create(renewers=("carol",))
        alice.create(owner="zoe")
        last = bob.create(renewers=("alice",))
        until(lambda: alice.is_known(last["Hmac"]))
        return [
            [without_random_values(token) for token in requester.described(*owners)]
            for requester in (alice, bob)
            for owners in ((), ("alice",), ("zoe",), ("carol",), ("bob", "zoe"), ("Group:bob",), ("nobody",))
        ] + [without_random_values(alice.client.call("DescribeDelegationToken", 3, Owners=[]))]


def scram_exchange(
    talk: Talk, mechanism: str, token_id: str, password: str, extensions: str = ",tokenauth=true"
) -> Any:
    """Run a SCRAM exchange with a token. Return the error code and message, or the details of the session.

    The details are "in", whether the server's final message is valid, and the session lifetime.
    """
    scram = Scram(mechanism, token_id, password, extensions=extensions)
    talk.handshake(mechanism)
    first = talk.client.call("SaslAuthenticate", 2, AuthBytes=scram.first())
    if first["ErrorCode"]:
        return [first["ErrorCode"], first["ErrorMessage"].replace(token_id, "<id>")]
    final = talk.client.call("SaslAuthenticate", 2, AuthBytes=scram.final(first["AuthBytes"]))
    if final["ErrorCode"]:
        return [final["ErrorCode"], final["ErrorMessage"].replace(token_id, "<id>")]
    hours = -(-final["SessionLifetimeMs"] // HOUR_MS)
    return "in", scram.is_answered_by(final["AuthBytes"]), f"for {hours} hours"


def token_password(created: Any) -> str:
    return base64.b64encode(bytes(created["Hmac"])).decode()


@scenario(seconds=120)
def token_authentication(broker: Broker) -> Any:
    """Authenticate with a token. The connection has the owner's principal, and must not create tokens."""
    seen: dict[str, Any] = {}
    with secured(broker, MECHANISMS, SECRET) as one, plain_token_client(one, "alice") as alice:
        created = alice.create(owner="zoe")
        last = alice.create(owner="Group:bob")
        until(lambda: alice.is_known(last["Hmac"]))
        for mechanism in (SCRAM_256, SCRAM_512):
            for name, shows in {
                "right": (created["TokenId"], token_password(created)),
                "a group's": (last["TokenId"], token_password(last)),
                "another's": (created["TokenId"], token_password(last)),
                "no such": ("nothing", token_password(created)),
                "as a user": (created["TokenId"], token_password(created), ""),
                "with tokenauth=false": (created["TokenId"], token_password(created), ",tokenauth=false"),
                "as one, in capitals": (created["TokenId"], token_password(created), ",tokenauth=TRUE"),
                "a user as a token": ("alice", "alice's secret"),
            }.items():
                with Talk(one.bootstrap) as talk:
                    what = [scram_exchange(talk, mechanism, *shows)]
                    if what[0][0] == "in":
                        what += [
                            talk.client.call(api, version, **fields)
                            for api, version, fields in TOKEN_REQUESTS
                        ]
                    seen[f"{mechanism} {name}"] = what
        with Talk(one.bootstrap) as talk:
            scram_exchange(talk, SCRAM_256, created["TokenId"], token_password(created))
            seen["renewed"] = alice.renew(last["Hmac"])
            talk.metadata()
            seen["served"] = talk.seen
    return seen


@scenario(seconds=120)
def session_expiry(broker: Broker) -> Any:
    """Let a token expire. A session with the token must end, and a new authentication must fail."""
    seen: list[Any] = []
    settings = SECRET | {"delegation.token.expiry.check.interval.ms": "1000"}
    with (
        secured(broker, MECHANISMS, settings) as one,
        plain_token_client(one, "alice") as alice,
        Talk(one.bootstrap) as talk,
    ):
        short, kept = alice.create(lifetime_ms=SOON_MS), alice.create()
        ends = time.monotonic() + SOON_MS / 1000
        until(lambda: alice.is_known(kept["Hmac"]))
        seen.append(scram_exchange(talk, SCRAM_256, short["TokenId"], token_password(short)))
        talk.metadata()
        time.sleep(ends + 0.5 - time.monotonic())
        talk.metadata()
        seen.append(talk.seen)
        until(lambda: not alice.is_known(short["Hmac"]))
        seen += [alice.is_known(kept["Hmac"]), alice.renew(short["Hmac"]), alice.expire(short["Hmac"])]
        with Talk(one.bootstrap) as late:
            seen.append(scram_exchange(late, SCRAM_256, short["TokenId"], token_password(short)))
    return seen


@scenario(seconds=120)
def expired_token(broker: Broker) -> Any:
    """Authenticate with a token that has expired but is not removed yet."""
    with secured(broker, MECHANISMS, SECRET) as one, plain_token_client(one, "alice") as alice:
        created = alice.create(lifetime_ms=1_000)
        until(lambda: alice.is_known(created["Hmac"]))
        time.sleep(1.2)
        with Talk(one.bootstrap) as talk:
            outcome = scram_exchange(talk, SCRAM_256, created["TokenId"], token_password(created))
            talk.metadata()
            seen = [alice.is_known(created["Hmac"]), alice.renew(created["Hmac"]), outcome, talk.seen]
        return seen + [pipelined_request(one, created) for _ in range(20)]


def pipelined_request(one: Served, created: Any) -> Any:
    """Send the last message of a SCRAM exchange and a request at once, and return both responses."""
    scram = Scram(SCRAM_256, created["TokenId"], token_password(created), extensions=",tokenauth=true")
    with Talk(one.bootstrap) as talk:
        talk.handshake(SCRAM_256)
        first = talk.client.call("SaslAuthenticate", 2, AuthBytes=scram.first())
        frames = [
            encode_request("SaslAuthenticate", 2, {"AuthBytes": scram.final(first["AuthBytes"])}),
            encode_request("Metadata", 9, {"Topics": []}),
        ]
        talk.client.socket.sendall(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        final = talk.next(("SaslAuthenticate", 2))
        return [
            final if isinstance(final, str) else [final["ErrorCode"], final["SessionLifetimeMs"]],
            talk.next(("Metadata", 9)),
        ]


@scenario(seconds=120)
def tokens_disabled(broker: Broker) -> Any:
    """Send token requests to a broker that has no delegation.token.secret.key."""
    with (
        secured(broker, MECHANISMS, {"delegation.token.secret.key": ""}) as one,
        plain_token_client(one, "alice") as alice,
    ):
        return [
            [api, version, comparable(alice.client.call(api, version, **fields))]
            for api, version, fields in TOKEN_REQUESTS
        ]
