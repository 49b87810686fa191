"""SCRAM credentials of users, request by request (KIP-554).

Apache Kafka returns results in the order of a hash table, so the scenarios sort the users.
"""

from __future__ import annotations

from hashlib import pbkdf2_hmac
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_topics import until

SHA_256, SHA_512 = 1, 2


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"Name": name, "Mechanism": mechanism}


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096, **fields: Any) -> dict[str, Any]:
    given = {"Salt": b"salt", "SaltedPassword": b"salted", **fields}
    return {"Name": name, "Mechanism": mechanism, "Iterations": iterations, **given}


def salted(mechanism: str, password: str) -> bytes:
    """Return the password, salted with the default salt and iterations of `upsertion`."""
    return pbkdf2_hmac(mechanism.removeprefix("SCRAM-"), password.encode(), b"salt", 4096)


def alter(client: RawClient, deletions: list[Any], upsertions: list[Any]) -> Any:
    response = client.call("AlterUserScramCredentials", 0, Deletions=deletions, Upsertions=upsertions)
    return by_user(response)


def describe(client: RawClient, *names: str | None) -> Any:
    users = None if names == (None,) else [{"Name": name} for name in names]
    return by_user(client.call("DescribeUserScramCredentials", 0, Users=users))


def by_user(response: Any) -> Any:
    response["Results"] = sorted(response["Results"], key=lambda one: str(one["User"]))
    for one in response["Results"]:
        if "CredentialInfos" in one:
            one["CredentialInfos"] = sorted(one["CredentialInfos"], key=lambda info: str(info["Mechanism"]))
    return comparable(response)


def settled_credentials(client: RawClient, *names: str) -> Any:
    """Wait until the broker has applied all changes so far, and describe the users.

    The broker has applied the changes when it knows a user that is created last.
    """
    alter(client, [], [upsertion("mark")])
    until(lambda: not describe(client, "mark")["Results"][0]["ErrorCode"])
    seen = describe(client, *names)
    alter(client, [deletion("mark")], [])
    until(lambda: bool(describe(client, "mark")["Results"][0]["ErrorCode"]))
    return seen


CHANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "nothing": ([], []),
    "one": ([], [upsertion("alice")]),
    "its other mechanism": ([], [upsertion("alice", SHA_512, 8192)]),
    "again, stronger": ([], [upsertion("alice", SHA_256, 16384, Salt=b"other")]),
    "several": ([], [upsertion("bob"), upsertion("carol", SHA_512), upsertion("d\N{SNOWMAN}ve")]),
    "upserted twice": ([], [upsertion("erin"), upsertion("erin", SHA_512), upsertion("fay")]),
    "upserted three times": ([], [upsertion("erin"), upsertion("erin"), upsertion("erin")]),
    "deleted twice": ([deletion("bob"), deletion("bob", SHA_512), deletion("bob")], []),
    "deleted twice, unknown user": ([deletion("zoe"), deletion("zoe")], []),
    "deleted and upserted": ([deletion("alice")], [upsertion("alice")]),
    "deleted unknown user, and upserted": ([deletion("zoe")], [upsertion("zoe")]),
    "deleted twice and upserted": ([deletion("alice"), deletion("alice")], [upsertion("alice")]),
    "not there": ([deletion("zoe"), deletion("bob", SHA_512)], []),
    "no name": ([deletion("")], [upsertion("")]),
    "no name, upserted": ([], [upsertion("")]),
    "no name and no mechanism": ([], [upsertion("", 0)]),
    "no mechanism": (
        [deletion("alice", 0), deletion("bob", 3)],
        [upsertion("zoe", 0), upsertion("erin", -1)],
    ),
    "too few": ([], [upsertion("zoe", SHA_256, 4095), upsertion("erin", SHA_512, 0)]),
    "too many": ([], [upsertion("zoe", SHA_256, 16385), upsertion("erin", SHA_512, 2147483647)]),
    "no salt": ([], [upsertion("saltless", Salt=b"")]),
    "a long name": ([], [upsertion("n" * 2000)]),
    "some of each": (
        [deletion("carol", SHA_512), deletion("zoe"), deletion("nobody", 9)],
        [upsertion("gus"), upsertion("hal", SHA_256, 1), upsertion("carol"), upsertion("ivy", SHA_512)],
    ),
}


@scenario()
def alterations(broker: Broker) -> Any:
    """Send each change, and describe the users after it."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for name, (deletions, upsertions) in CHANGES.items():
            seen[name] = alter(client, deletions, upsertions), settled_credentials(client)
    return seen


@scenario()
def descriptions(broker: Broker) -> Any:
    """Describe all users, some users, no user, the same user twice, and an unknown user."""
    with RawClient(broker.bootstrap) as client:
        created = [upsertion("alice"), upsertion("bob", SHA_512, 5000)]
        alter(client, [], created)
        alter(client, [], [upsertion("alice", SHA_512)])
        settled_credentials(client)
        return [
            describe(client),
            describe(client, None),
            describe(client, "bob"),
            describe(client, "zoe", "bob", ""),
            describe(client, "bob", "zoe", "bob", "zoe", "alice", "bob"),
        ]


@scenario()
def controller_listener(broker: Broker) -> Any:
    """Change credentials through the controller listener, which cannot describe them."""
    with RawClient(broker.controller_bootstrap) as controller, RawClient(broker.bootstrap) as client:
        return [
            alter(controller, [], [upsertion("alice"), upsertion("bob", 7)]),
            settled_credentials(client, "alice"),
            describe(controller, "alice", "bob"),
            describe(controller),
            alter(controller, [deletion("alice")], []),
        ]


TOKEN_REQUESTS: list[tuple[str, int, dict[str, Any]]] = [
    *(
        (
            "CreateDelegationToken",
            version,
            {"Renewers": renewers, "MaxLifetimeMs": -1}
            | ({"OwnerPrincipalType": "User", "OwnerPrincipalName": owner} if version == 3 else {}),
        )
        for version in (1, 2, 3)
        for owner in ("", "zoe")
        for renewers in ([], [{"PrincipalType": "Group", "PrincipalName": "g"}])
    ),
    *(("RenewDelegationToken", version, {"Hmac": b"x", "RenewPeriodMs": 1}) for version in (1, 2)),
    *(("ExpireDelegationToken", version, {"Hmac": b"x", "ExpiryTimePeriodMs": -1}) for version in (1, 2)),
    *(("DescribeDelegationToken", version, {"Owners": None}) for version in (1, 2, 3)),
]


@scenario()
def unauthenticated_token_requests(broker: Broker) -> Any:
    """Send delegation token requests on listeners without authentication."""
    seen: list[Any] = []
    for bootstrap in (broker.bootstrap, broker.controller_bootstrap):
        with RawClient(bootstrap) as client:
            seen += [client.call(api, version, **fields) for api, version, fields in TOKEN_REQUESTS]
    return seen


EXACT, DEFAULT, ANY = 0, 1, 2
FILTERS: list[list[tuple[str, int, str | None]]] = [
    [],
    [("user", ANY, None)],
    [("user", EXACT, "alice"), ("client-id", ANY, None)],
    [("", ANY, None)],
    [("user", ANY, None), ("user", 7, "x")],
    [("group", ANY, None)],
    [("user", EXACT, None)],
    [("user", DEFAULT, "x")],
    [("user", ANY, "x")],
    [("user", 3, None)],
    [("user", ANY, None), ("ip", ANY, None)],
    [("ip", ANY, None), ("client-id", EXACT, "x"), ("no", 9, "x")],
]


@scenario()
def client_quotas(broker: Broker) -> Any:
    """Describe the quotas of users, as tools do when they describe users. There are no quotas."""
    with RawClient(broker.bootstrap) as client:
        return [
            client.call(
                "DescribeClientQuotas",
                version,
                Components=[
                    {"EntityType": kind, "MatchType": how, "Match": name} for kind, how, name in requested
                ],
                Strict=is_strict,
            )
            for version in (0, 1)
            for is_strict in (False, True)
            for requested in FILTERS
        ]
