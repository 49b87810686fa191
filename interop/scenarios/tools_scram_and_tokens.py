"""kafka-configs for SCRAM, kafka-delegation-tokens, and Java console clients with passwords and tokens."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.sasl import PLAIN, PLAIN_MODULE, SCRAM_256, SCRAM_512, SCRAM_MODULE, USERS, Secured, secured
from interop.scenario import scenario
from interop.scenarios.raw_delegation_tokens import MECHANISMS, SECRET
from interop.tools import TOOLS, a_file, lines_of, run, said, until

CONFIGS = "kafka.admin.ConfigCommand"
TOKENS = f"{TOOLS}.DelegationTokenCommand"
PRODUCER, CONSUMER = f"{TOOLS}.ConsoleProducer", f"{TOOLS}.consumer.ConsoleConsumer"
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d")
HMAC = re.compile(r"[A-Za-z0-9+/]{86}==")
CREDENTIALS = re.compile(r"SCRAM-SHA-\d+=iterations=\d+, .*")
HIDDEN = b64encode(b"x" * 64).decode()


@contextmanager
def client_config_file(name: str, password: str, mechanism: str = PLAIN, more: str = "") -> Iterator[str]:
    """Yield the path of a Java client's configuration file. `more` contains further JAAS options."""
    module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
    jaas = f'{module} required username="{name}" password="{password}"{more};'
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={jaas}"]
    # Short timeouts, because a client that is rejected would retry for a long time.
    lines += ["default.api.timeout.ms=20000", "request.timeout.ms=10000", "max.block.ms=20000"]
    with a_file("\n".join(lines) + "\n") as path:
        yield path


def user_tool_output(broker: Broker, *arguments: str) -> list[str]:
    """Run kafka-configs for users. Return its output with sorted mechanisms, which come from a hash table."""
    lines = said(CONFIGS, broker, "--entity-type", "users", *arguments)
    return [CREDENTIALS.sub(lambda found: ", ".join(sorted(found[0].split(", "))), line) for line in lines]


def has_credentials(broker: Broker, name: str, count: int) -> bool:
    """Return whether the broker knows exactly `count` SCRAM credentials of this user."""
    with RawClient(broker.bootstrap) as client:
        response = client.call("DescribeUserScramCredentials", 0, Users=[{"Name": name}])
    return len(response["Results"][0]["CredentialInfos"]) == count


@scenario(seconds=180)
def passwords(broker: Broker) -> Any:
    """Create, describe and delete SCRAM credentials, with errors."""
    alice, bob = ("--entity-name", "tools-alice"), ("--entity-name", "tools-bob")
    both = f"{SCRAM_256}=[iterations=8192,password=a],{SCRAM_512}=[password=b]"

    seen = {
        "nobody": user_tool_output(broker, "--describe", *alice),
        "one": user_tool_output(broker, "--alter", *bob, "--add-config", f"{SCRAM_256}=[password=x]"),
        # The tool puts all credentials of a user into one request, which may name the user only once.
        "both": user_tool_output(broker, "--alter", *alice, "--add-config", both),
        "stronger": user_tool_output(
            broker, "--alter", *alice, "--add-config", f"{SCRAM_256}=[iterations=8192,password=a]"
        ),
        "other": user_tool_output(broker, "--alter", *alice, "--add-config", f"{SCRAM_512}=[password=b]"),
    }
    until(lambda: has_credentials(broker, "tools-alice", 2))
    seen["described"] = user_tool_output(broker, "--describe", *alice)
    seen["of all"] = [line for line in user_tool_output(broker, "--describe") if "tools-" in line]
    for name, text in {
        "too few": f"{SCRAM_256}=[iterations=100,password=a]",
        "too many": f"{SCRAM_256}=[iterations=20000,password=a]",
        "no password": f"{SCRAM_256}=[iterations=8192]",
        "no mechanism": "SCRAM-SHA-1=[password=a]",
    }.items():
        seen[name] = user_tool_output(broker, "--alter", *alice, "--add-config", text)
    seen["taken"] = user_tool_output(broker, "--alter", *alice, "--delete-config", SCRAM_256)
    until(lambda: has_credentials(broker, "tools-alice", 1))
    seen["deleted again"] = user_tool_output(broker, "--alter", *alice, "--delete-config", SCRAM_256)
    seen["left"] = user_tool_output(broker, "--describe", *alice)
    for whose, mechanism in ((alice, SCRAM_512), (bob, SCRAM_256)):
        user_tool_output(broker, "--alter", *whose, "--delete-config", mechanism)
    return seen


def delegation_token_output(one: Secured, config: str, *arguments: str) -> tuple[list[str], str, bytes]:
    """Run the tool. Return its output, and the id and HMAC of the token if the output contains them."""
    outcome = run(TOKENS, "--bootstrap-server", one.bootstrap, "--command-config", config, *arguments)
    hmac = HMAC.search(outcome.stdout)
    shown = re.search(r"tokenId : (\S+)", outcome.stdout)
    hidden = outcome._replace(
        stdout=HMAC.sub("<hmac>", TIME.sub("<time>", outcome.stdout)),
        stderr=HMAC.sub("<hmac>", outcome.stderr),
    )
    return lines_of(hidden), shown[1] if shown else "", b64decode(hmac[0]) if hmac else b""


@scenario(seconds=240)
def delegation_tokens(broker: Broker) -> Any:
    """Create, describe, renew, use and expire a token."""
    seen: dict[str, Any] = {}
    with (
        secured(broker, MECHANISMS, SECRET) as one,
        client_config_file("alice", USERS["alice"]) as alice,
        client_config_file("bob", USERS["bob"]) as bob,
    ):
        create = ("--create", "--max-life-time-period")
        seen["created"], token_id, hmac = delegation_token_output(
            one, alice, *create, "-1", "--renewer-principal", "User:bob"
        )
        password = b64encode(hmac).decode()
        alices = ("--describe", "--owner-principal", "User:alice")
        until(lambda: bool(delegation_token_output(one, bob, *alices)[2]))
        seen["described"] = delegation_token_output(one, bob, *alices)[0]
        # Without an owner, the tool sends an empty list of owners, which does not mean all owners.
        seen["one's own"] = delegation_token_output(one, alice, "--describe")[0]
        seen["another's"] = delegation_token_output(one, bob, "--describe", "--owner-principal", "User:zoe")[
            0
        ]
        seen["renewed"] = delegation_token_output(
            one, bob, "--renew", "--renew-time-period", "-1", "--hmac", password
        )[0]
        seen["for another"] = delegation_token_output(
            one, alice, *create, "1000", "--owner-principal", "User:zoe"
        )[0]
        seen["no such"] = delegation_token_output(
            one, alice, "--renew", "--renew-time-period", "-1", "--hmac", HIDDEN
        )[0]
        with client_config_file(token_id, password, SCRAM_256, ' tokenauth="true"') as by_token:
            seen["by a token"] = delegation_token_output(one, by_token, *create, "-1")[0]
            seen["written"] = console_round_trip(one, by_token)
        seen["ended"] = delegation_token_output(
            one, alice, "--expire", "--expiry-time-period", "-1", "--hmac", password
        )[0]
        with client_config_file(token_id, password, SCRAM_512, ' tokenauth="true"') as by_token:
            seen["too late"] = delegation_token_output(one, by_token, "--describe")[0]
    return seen


def console_round_trip(one: Secured, config: str) -> Any:
    """Produce two records with the console producer and read them in a group."""
    to = ("--bootstrap-server", one.bootstrap, "--topic", "by-users")
    produced = run(PRODUCER, *to, "--command-config", config, stdin="one\ntwo\n")
    consumed = run(
        *(CONSUMER, *to, "--command-config", config),
        *("--from-beginning", "--max-messages", "2", "--timeout-ms", "30000", "--group", "by-users"),
    )
    return lines_of(produced), lines_of(consumed)


@scenario(seconds=240)
def scram_clients(broker: Broker) -> Any:
    """Authenticate with SCRAM, then delete the user's credentials. The next authentication must fail."""
    seen: dict[str, Any] = {}
    carol = ("--entity-name", "carol")
    with secured(broker, MECHANISMS, SECRET) as one:
        for mechanism in (SCRAM_256, SCRAM_512):
            given = user_tool_output(
                one.broker, "--alter", *carol, "--add-config", f"{mechanism}=[password=carol-1]"
            )
            until(lambda: has_credentials(one.broker, "carol", 1))
            with (
                client_config_file("carol", "carol-1", mechanism) as right,
                client_config_file("carol", "no", mechanism) as wrong,
            ):
                seen[mechanism] = [
                    given,
                    console_round_trip(one, right),
                    delegation_token_output(one, wrong, "--describe")[0],
                ]
                user_tool_output(one.broker, "--alter", *carol, "--delete-config", mechanism)
                until(lambda: has_credentials(one.broker, "carol", 0))
                seen[f"{mechanism}, deleted"] = delegation_token_output(one, right, "--describe")[0]
    return seen
