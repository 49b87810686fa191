"""The kwire commands on listeners with SASL or TLS.

Both brokers have a listener of each security protocol.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from interop.brokers import ApacheKafka, Broker, Kwire, free_port
from interop.certificates import Certificates

REPOSITORY = Path(__file__).resolve().parent.parent
JAAS = "org.apache.kafka.common.security"
PASSWORDS = {"alice": "alice-secret", "admin": 'ad"min\\secret'}
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def quoted(text: str) -> str:
    """Quote a value in a JAAS configuration of a properties file."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"')).replace("\\", "\\\\")


class Secured:
    """A broker with every type of listener that it supports, and the client properties for each listener."""

    def __init__(self, kind: type[Broker], directory: Path, certificates: Certificates) -> None:
        self.directory = directory
        self.numbers = count()
        self.certificates = certificates
        self.broker = kind()
        names = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
        self.ports = {name: free_port() for name in names}
        at = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        users = " ".join(f"user_{name}={quoted(password)}" for name, password in PASSWORDS.items())
        self.broker.port = self.ports["PLAINTEXT"]
        self.broker.properties |= {
            "listeners": f"{at},CONTROLLER://127.0.0.1:{self.broker.controller_port}",
            "advertised.listeners": at,
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in names)]
            ),
            "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
            "delegation.token.secret.key": "secret",
        }
        for name in names:
            if name.startswith("SASL"):
                listener = f"listener.name.{name.lower()}"
                self.broker.properties |= {
                    f"{listener}.plain.sasl.jaas.config": f"{JAAS}.plain.PlainLoginModule required {users};",
                    f"{listener}.scram-sha-256.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
                    f"{listener}.scram-sha-512.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
                }
        self.broker.properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.issue("broker")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "listener.name.ssl.ssl.client.auth": "required",
        }

    def login(
        self, protocol: str, mechanism: str = "PLAIN", user: str = "alice", **others: str
    ) -> dict[str, str]:
        """Return the properties of a client that connects to the listener of this protocol.

        `others` are more properties, and for SASL a `password` and an `option` of the login module.
        """
        properties = {"security.protocol": protocol}
        if protocol.startswith("SASL"):
            kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
            password = quoted(others.pop("password", PASSWORDS.get(user, "")))
            option = others.pop("option", "")
            properties["sasl.mechanism"] = mechanism
            properties["sasl.jaas.config"] = (
                f"{JAAS}.{kind}LoginModule required username={quoted(user)} password={password} {option};"
            )
        if protocol.endswith("SSL"):
            properties["ssl.truststore.type"] = "PEM"
            properties["ssl.truststore.location"] = str(self.certificates.authority)
        return {**properties, **others}

    def kwire(
        self, protocol: str, properties: dict[str, str], *arguments: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a kwire command against the listener of this protocol."""
        path = self.directory / "client.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return subprocess.run(
            [
                *(sys.executable, "-m", "kwire", *arguments),
                *("-b", f"127.0.0.1:{self.ports[protocol]}", "--command-config", str(path)),
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=REPOSITORY,
        )

    def run(self, properties: dict[str, str], *arguments: str, stdin: str = "") -> Any:
        """Run a command that must succeed, and return its JSON output."""
        ran = self.kwire(properties["security.protocol"], properties, *arguments, "--json", stdin=stdin)
        assert ran.returncode == 0, ran.stderr
        if arguments[0] == "consume":
            return [json.loads(line) for line in ran.stdout.splitlines()]
        return json.loads(ran.stdout) if ran.stdout else None

    def refused(self, protocol: str, properties: dict[str, str], *arguments: str) -> str:
        """Run a command that must fail, and return its error message."""
        ran = self.kwire(protocol, properties, *(arguments or ("topics", "list")))
        assert (ran.returncode, ran.stdout) == (1, ""), ran.stdout
        assert ran.stderr.count("\n") == 1
        return ran.stderr


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=[ApacheKafka, Kwire])
def secured(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    made = Secured(request.param, tmp_path_factory.mktemp("secured"), certificates)
    made.broker.start()
    yield made
    made.broker.discard()


def goes_round(secured: Secured, properties: dict[str, str]) -> None:
    topic = f"round-{next(secured.numbers)}"
    secured.run(properties, "produce", topic, "first", "second")
    found = secured.run(properties, "consume", topic, "--from", "beginning", "--until", "end")
    assert [row["value"] for row in found] == ["first", "second"]


def set_password(secured: Secured, user: str) -> None:
    properties = secured.login("SASL_PLAINTEXT", user="admin")
    secured.run(properties, "users", "set", user, stdin=f"{PASSWORDS[user]}\n")


@pytest.mark.parametrize("user", PASSWORDS)
def test_plain_password_authenticates(secured: Secured, user: str) -> None:
    goes_round(secured, secured.login("SASL_PLAINTEXT", user=user))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_users_are_set_and_authenticate(secured: Secured, mechanism: str) -> None:
    set_password(secured, "alice")
    goes_round(secured, secured.login("SASL_PLAINTEXT", mechanism))
    response = secured.run(secured.login("SASL_PLAINTEXT"), "users", "list", "alice")
    assert response == [{"user": "alice", "mechanism": one, "iterations": 4096} for one in SCRAM]
    secured.run(secured.login("SASL_PLAINTEXT"), "users", "delete", "alice", "--mechanism", mechanism)
    response = secured.run(secured.login("SASL_PLAINTEXT"), "users", "list", "alice")
    assert [one["mechanism"] for one in response] == [one for one in SCRAM if one != mechanism]
    assert "(sasl authentication failed)" in secured.refused(
        "SASL_PLAINTEXT", secured.login("SASL_PLAINTEXT", mechanism)
    )
    secured.run(secured.login("SASL_PLAINTEXT"), "users", "delete", "alice")
    assert "does not exist" in secured.refused(
        "SASL_PLAINTEXT", secured.login("SASL_PLAINTEXT"), "users", "list", "alice"
    )


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_delegation_token_authenticates_until_it_expires(secured: Secured, protocol: str) -> None:
    mine = secured.login(protocol)
    (made,) = secured.run(mine, "tokens", "create", "--renewer", "admin", "--lifetime", "1h")
    assert (made["owner"], made["requester"], made["renewers"]) == ("alice", "alice", ["admin"])
    as_token = secured.login(
        protocol, SCRAM[0], made["token"], password=made["password"], option="tokenauth=true"
    )
    goes_round(secured, as_token)
    sentence = secured.refused(protocol, as_token, "tokens", "create")
    assert "use a SASL listener, and a user with a password" in sentence
    # The brokers remove an expired token of the other protocol only once an hour.
    listed = secured.run(mine, "tokens", "list", "alice")
    (response,) = [one for one in listed if one["token"] == made["token"]]
    assert response == {key: value for key, value in made.items() if key != "password"}
    (renewed,) = secured.run(secured.login(protocol, user="admin"), "tokens", "renew", made["token"])
    assert renewed["expires"] <= made["renewable_until"]
    secured.run(mine, "tokens", "expire", made["token"])
    assert made["token"] not in [one["token"] for one in secured.run(mine, "tokens", "list")]
    assert "sasl authentication failed" in secured.refused(protocol, as_token)
    (short,) = secured.run(mine, "tokens", "create", "--lifetime", "1s")
    expired = secured.login(
        protocol, SCRAM[1], short["token"], password=short["password"], option="tokenauth=true"
    )
    secured.run(expired, "topics", "list")
    time.sleep(1.1)
    assert ": delegation token expired; create another one with 'kwire tokens create'" in secured.refused(
        protocol, expired
    )
    assert "there is no token nosuch" in secured.refused(protocol, mine, "tokens", "renew", "nosuch")


def test_wrong_password_prints_advice(secured: Secured) -> None:
    wrong = secured.login("SASL_PLAINTEXT", password="guessed")
    where = f"127.0.0.1:{secured.ports['SASL_PLAINTEXT']}"
    assert secured.refused("SASL_PLAINTEXT", wrong) == (
        f"kwire topics: user alice at {where}: Authentication failed: Invalid username or password (sasl "
        f"authentication failed); check username and password in sasl.jaas.config\n"
    )
    wrong = secured.login("SASL_PLAINTEXT", SCRAM[0], password="guessed")
    assert (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        "SCRAM-SHA-256"
    ) in secured.refused("SASL_PLAINTEXT", wrong)


def test_wrong_security_protocol_prints_the_right_one(secured: Secured) -> None:
    plain = {"security.protocol": "PLAINTEXT"}
    sentence = secured.refused("SASL_PLAINTEXT", plain)
    assert "requires authentication with " in sentence
    assert "set security.protocol=SASL_PLAINTEXT, sasl.mechanism and sasl.jaas.config" in sentence
    assert all(mechanism in sentence for mechanism in ("PLAIN", *SCRAM))
    sentence = secured.refused("PLAINTEXT", secured.login("SASL_PLAINTEXT"))
    assert "requires no authentication: use security.protocol=PLAINTEXT" in sentence
    tls = secured.login("SASL_SSL")
    assert "does not use TLS: set security.protocol=SASL_PLAINTEXT" in secured.refused("SASL_PLAINTEXT", tls)
    assert "does not use TLS: set security.protocol=PLAINTEXT" in secured.refused(
        "PLAINTEXT", secured.login("SSL")
    )


def test_tls(secured: Secured, certificates: Certificates) -> None:
    own = certificates.issue("client")
    goes_round(secured, secured.login("SASL_SSL"))
    shown = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(own)}
    goes_round(secured, secured.login("SSL", **shown))
    key, _, chain = own.read_text().partition("-----BEGIN CERTIFICATE-----")
    inline = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key.replace("\n", " "),
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}".replace("\n", " "),
    }
    secured.run(secured.login("SSL", **inline), "topics", "list")
    trusted = secured.login("SASL_SSL")
    del trusted["ssl.truststore.location"]
    trusted["ssl.truststore.certificates"] = certificates.authority.read_text().replace("\n", "\\n")
    secured.run(trusted, "topics", "list")


def test_failed_tls_handshake_prints_advice(secured: Secured, tmp_path: Path) -> None:
    nobody = secured.login("SASL_SSL")
    del nobody["ssl.truststore.location"]
    assert "has a certificate that is not trusted (" in secured.refused("SASL_SSL", nobody)
    assert "requires a client certificate that it trusts (" in secured.refused("SSL", secured.login("SSL"))
    others = Certificates(tmp_path)
    stranger = secured.login(
        "SSL", **{"ssl.keystore.type": "PEM", "ssl.keystore.location": str(others.issue("x"))}
    )
    assert "requires a client certificate that it trusts (" in secured.refused("SSL", stranger)
    plain = {"security.protocol": "PLAINTEXT"}
    assert "requires TLS: set security.protocol=SSL" in secured.refused("SSL", plain)
    assert "requires TLS: set security.protocol=SASL_SSL" in secured.refused(
        "SASL_SSL", secured.login("SASL_PLAINTEXT")
    )


def test_host_name_is_verified_unless_disabled(secured: Secured, certificates: Certificates) -> None:
    other = Secured(type(secured.broker), secured.directory, certificates)
    other.broker.properties["ssl.keystore.location"] = str(
        certificates.issue("elsewhere", "subjectAltName=DNS:elsewhere.example")
    )
    other.broker.start()
    try:
        assert "has a certificate for another name (" in other.refused("SASL_SSL", other.login("SASL_SSL"))
        unchecked = other.login("SASL_SSL", **{"ssl.endpoint.identification.algorithm": ""})
        goes_round(other, unchecked)
    finally:
        other.broker.discard()
