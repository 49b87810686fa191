"""SCRAM, message by message: which forms are taken, who is let in, and what the others are told. RFC 5802.

Users are alice, whose password each mechanism knows, and one whose name has to be escaped.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.sasl import SCRAM_256, SCRAM_512, USERS, Scram, Secured, Talk, secured
from interop.scenario import scenario
from interop.scenarios.raw_users import SHA_256, SHA_512, alter, settled, upsertion

MECHANISMS = {SCRAM_256: SHA_256, SCRAM_512: SHA_512}
PASSWORD = USERS["alice"]
ODD = "a,b=c"

FIRST: dict[str, bytes] = {
    "right": b"n,,n=alice,r=nonce",
    "unknown": b"n,,n=carol,r=nonce",
    "a name in capitals": b"n,,n=ALICE,r=nonce",
    "a server that could bind channels": b"y,,n=alice,r=nonce",
    "a bound channel": b"p=tls-unique,,n=alice,r=nonce",
    "as himself": b"n,a=alice,n=alice,r=nonce",
    "as another": b"n,a=bob,n=alice,r=nonce",
    "as nobody": b"n,a=,n=alice,r=nonce",
    "unknown, as another": b"n,a=bob,n=carol,r=nonce",
    "escaped": b"n,,n=a=2Cb=3Dc,r=nonce",
    "escaped in small letters": b"n,,n=a=2cb=3dc,r=nonce",
    "not escaped": b"n,,n=a=b,r=nonce",
    "half escaped": b"n,,n=a=2Cb=c,r=nonce",
    "no name": b"n,,n=,r=nonce",
    "a name beyond ASCII": "n,,n=al\N{LATIN SMALL LETTER I WITH ACUTE}ce,r=nonce".encode(),
    "no UTF-8": b"n,,n=\xff,r=nonce",
    "no nonce": b"n,,n=alice,r=",
    "no nonce at all": b"n,,n=alice",
    "a blank in the nonce": b"n,,n=alice,r=no nce",
    "a line more": b"n,,n=alice,r=nonce\n",
    "a comma more": b"n,,n=alice,r=nonce,",
    "an extension": b"n,,n=alice,r=nonce,ext=value",
    "an extension without value": b"n,,n=alice,r=nonce,ext",
    "not a token": b"n,,n=alice,r=nonce,tokenauth=false",
    "a token": b"n,,n=alice,r=nonce,tokenauth=true",
    "a token in capitals": b"n,,n=alice,r=nonce,tokenauth=TRUE",
    "empty": b"",
    "a last message": b"c=biws,r=nonce,p=AAAA",
}

Change = Callable[[bytes], bytes]


def replaced(pattern: str, by: str) -> Change:
    def change(final: bytes) -> bytes:
        changed = re.sub(pattern, by, final.decode(), count=1)
        assert changed != final.decode(), pattern
        return changed.encode()

    return change


FINAL: dict[str, Change] = {
    "right": lambda final: final,
    "another proof": replaced("p=.*", f"p={b64encode(bytes(32)).decode()}"),
    "a short proof": replaced("p=.*", "p=AAAA"),
    "no proof": replaced(",p=.*", ""),
    "an empty nonce": replaced("r=[^,]*", "r="),
    "the client's nonce alone": replaced("(r=a-nonce)[^,]*", r"\1"),
    "another nonce": replaced("r=", "r=x"),
    "a nonce that goes on": replaced("(r=[^,]*)", r"\1x"),
    "another header": replaced("c=biws", "c=eSws"),
    "no header": replaced("c=biws,", ""),
    "no base64": replaced("p=.*", "p=!!!!"),
    "a third of base64": replaced("p=.*", "p=AAA"),
    "a line more": lambda final: final + b"\n",
    "empty": lambda final: b"",
    "the first again": lambda final: b"n,,n=alice,r=a-nonce",
}


def with_users(one: Secured) -> None:
    """Let the broker know them."""
    with RawClient(one.broker.bootstrap) as client:
        for mechanism, number in MECHANISMS.items():
            for name in ("alice", ODD):
                salted = Scram(mechanism, name, PASSWORD).salted(b"salt", 4096)
                alter(client, [], [upsertion(name, number, Salt=b"salt", SaltedPassword=salted)])
        settled(client, "alice", ODD)


def told(talk: Talk) -> Any:
    """What was answered, without what is chance in it."""
    for one in talk.seen:
        answer = one[0]
        if isinstance(answer, dict) and answer.get("AuthBytes"):
            answer["AuthBytes"] = re.sub(r"(r=[^,]*?nonce)[^,]+", r"\1...", str(answer["AuthBytes"]))
            answer["AuthBytes"] = re.sub(r"v=.*", "v=...", answer["AuthBytes"])
    return talk.seen


@scenario(seconds=180)
def first_messages(broker: Broker) -> Any:
    """What comes of the first message, in each form, and of silence after it."""
    seen: dict[str, Any] = {}
    with secured(broker, tuple(MECHANISMS)) as one:
        with_users(one)
        for name, first in FIRST.items():
            with Talk(one.bootstrap) as talk:
                talk.handshake(SCRAM_256)
                talk.authenticate(first)
                seen[name] = told(talk)
    return seen


@scenario(seconds=180)
def final_messages(broker: Broker) -> Any:
    """What comes of the second, in each form, and whether more is served then."""
    seen: dict[str, Any] = {}
    with secured(broker, tuple(MECHANISMS)) as one:
        with_users(one)
        for mechanism in MECHANISMS:
            for name, change in FINAL.items():
                with Talk(one.bootstrap) as talk:
                    client = Scram(mechanism, "alice", PASSWORD)
                    talk.handshake(mechanism)
                    answer = talk.authenticate(client.first())
                    talk.authenticate(change(client.final(answer["AuthBytes"])))
                    talk.metadata()
                    seen[f"{mechanism}: {name}"] = told(talk)
    return seen


CLIENTS: dict[str, dict[str, str]] = {
    "right": {},
    "another password": {"password": "no"},
    "an escaped name": {"name": "a=2Cb=3Dc"},
    "as himself": {"authorization": "a=alice"},
    "a word behind the nonce": {"extensions": ",ext=value"},
    "not by a token": {"extensions": ",tokenauth=false"},
}


@scenario(seconds=180)
def clients(broker: Broker) -> Any:
    """Whole exchanges, in which both sides prove what they know."""
    seen: dict[str, Any] = {}
    with secured(broker, tuple(MECHANISMS)) as one:
        with_users(one)
        for mechanism in MECHANISMS:
            for name, given in CLIENTS.items():
                with Talk(one.bootstrap) as talk:
                    client = Scram(mechanism, **{"name": "alice", "password": PASSWORD, **given})
                    talk.handshake(mechanism)
                    answer = talk.authenticate(client.first())
                    last = talk.authenticate(client.final(answer["AuthBytes"]))
                    proved = isinstance(last, dict) and client.is_answered_by(last["AuthBytes"])
                    talk.metadata()
                    seen[f"{mechanism}: {name}"] = [proved, told(talk)]
    return seen
