"""`kwire doctor`: findings about the configuration, ports and the console."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kwire.broker.config import load
from kwire.broker.config.jaas import PLAIN_MODULE
from kwire.cli.doctor.doctor import configuration_findings, console_findings
from kwire.cli.doctor.machine import MachineFacts
from kwire.client.security import jaas_config
from kwire.testing import Broker
from tests.cli.doctor.test_machine import GOOD_FACTS
from tests.cli.run_command import RunCommand


@pytest.fixture(autouse=True)
def _fine_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather_facts() -> MachineFacts:
        return GOOD_FACTS

    monkeypatch.setattr("kwire.cli.doctor.machine.gather_facts", gather_facts)
    monkeypatch.setattr("kwire.cli.doctor.directories.SLOW_SYNC_MS", 1e9)
    monkeypatch.setattr("kwire.cli.doctor.directories.MIN_FREE_BYTES", 0)


def test_new_broker_has_no_problems(offline: RunCommand, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    at = ("--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--data", str(tmp_path / "data"))
    rows = offline("doctor", *at, "--json").json
    assert "problem" not in {row["severity"] for row in rows}
    assert {
        "area": "ports",
        "severity": "ok",
        "message": f"127.0.0.1:{port} of PLAINTEXT is free",
        "fix": None,
    } in rows
    messages = offline("doctor", *at)
    assert messages.status == 0
    assert messages.out.splitlines()[-1].startswith("0 problems, ")


def test_missing_protection_is_a_problem_unless_it_is_accepted(
    offline: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def severities() -> list[str]:
        rows = json.loads(offline("doctor", "--data", str(tmp_path), "--set", setting, "--json").out)
        return [row["severity"] for row in rows if row["message"].endswith(fault)]

    setting = "authorizer.class.name=com.example.Authorizer"
    fault = "kwire does not restrict clients as these settings ask: authorizer.class.name"
    assert severities() == ["problem"]
    monkeypatch.setenv("KWIRE_ACCEPT_UNPROTECTED", "true")
    assert severities() == ["warning"]


def test_used_port_names_the_broker_or_is_a_problem(
    offline: RunCommand, broker: Broker, tmp_path: Path
) -> None:
    at = f"listeners=PLAINTEXT://{broker.bootstrap_servers}"
    rows = offline("doctor", "--set", at, "--data", str(broker.log_dir), "--json").json
    assert f"a broker listens on {broker.bootstrap_servers} of PLAINTEXT" in [row["message"] for row in rows]
    other_directory = offline("doctor", "--set", at, "--data", str(tmp_path))
    assert other_directory.status == 1
    assert f"another broker listens on {broker.bootstrap_servers} of PLAINTEXT, with" in other_directory.out
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            result = offline(
                "doctor", "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--data", str(tmp_path)
            )
    assert result.status == 1
    assert f"127.0.0.1:{port} of PLAINTEXT cannot be used: address already in use" in result.out
    assert "→ choose another port" in result.out


def test_configuration_file_is_read_as_serve_reads_it(offline: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partition=3\nnode.id=1\nprocess.roles=broker,controller\n"
                    f"log.dirs={tmp_path}\nlisteners=PLAINTEXT://127.0.0.1:1\n")  # fmt: skip
    result = offline("doctor", str(path))
    assert "did you mean num.partitions?" in result.out
    assert (
        "No such file or directory: give the path of a broker's configuration file"
        in offline("doctor", str(tmp_path / "none")).sentence
    )
    bad = offline("doctor", "--set", "num.partitions=x")
    assert bad.status == 1
    assert "XX  configuration" in bad.out
    assert offline("doctor", "--set", "x").status == 2


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({}, None),
        ({"default.replication.factor": "3", "min.insync.replicas": "3"}, "set min.insync.replicas=2"),
        ({"min.insync.replicas": "2"}, "acks=all fails on every new topic"),
        (
            {"default.replication.factor": "3", "min.insync.replicas": "2"},
            "set offsets.topic.replication.factor=3",
        ),
        (
            {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://localhost:9092"},
            "set advertised.listeners to this machine's name",
        ),
        (
            {"advertised.listeners": "PLAINTEXT://no-such-host.invalid:9092"},
            "a name that clients can resolve",
        ),
    ],
)
def test_questionable_configuration_is_reported_with_a_fix(settings: dict[str, str], fix: str | None) -> None:
    findings = list(configuration_findings(load(None, {}, settings)))
    if fix is None:
        assert findings == []
    else:
        assert fix in (findings[0].fix or "")


def sasl_settings(options: str, host: str = "127.0.0.1") -> dict[str, str]:
    return {
        "listeners": f"SASL_PLAINTEXT://{host}:9092",
        "advertised.listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {options};",
    }


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        (sasl_settings('username="me" password="mine" user_me="mine"'), []),
        (
            sasl_settings('username="me" password="mine" user_me="yours"'),
            ["nodes authenticate at SASL_PLAINTEXT as me, which is rejected"],
        ),
        (
            sasl_settings(""),
            [
                "SASL_PLAINTEXT has PLAIN enabled, but no users",
                "nodes authenticate at SASL_PLAINTEXT as nobody, which is rejected",
            ],
        ),
    ],
)
def test_inter_broker_credentials_are_checked(settings: dict[str, str], messages: list[str]) -> None:
    assert [finding.message for finding in configuration_findings(load(None, {}, settings))] == messages


def test_plain_passwords_in_clear_text_are_reported() -> None:
    settings = sasl_settings('username="me" password="mine" user_me="mine"', host="")
    findings = [finding.message for finding in configuration_findings(load(None, {}, settings))]
    assert "SASL_PLAINTEXT sends passwords in clear text (PLAIN), and listens on other interfaces" in findings
    over_tls = settings | {"listener.security.protocol.map": "SASL_PLAINTEXT:SASL_SSL"}
    del over_tls["security.inter.broker.protocol"]
    over_tls["inter.broker.listener.name"] = "SASL_PLAINTEXT"
    findings = [finding.message for finding in configuration_findings(load(None, {}, over_tls))]
    assert not any("clear text" in text for text in findings)


@pytest.mark.parametrize(
    ("address", "console", "is_reported"),
    [
        ("0.0.0.0:8080", "true", True),
        ("[::]:8080", "true", True),
        ("0.0.0.0:8080", "", False),
        ("127.0.0.1:8080", "true", False),
        ("[::1]:8080", "true", False),
        ("8080", "true", False),
        ("", "true", False),
    ],
)
def test_open_console_beside_authenticated_listeners_is_reported(
    address: str, console: str, is_reported: bool
) -> None:
    environ = {"KWIRE_HTTP": address, "KWIRE_CONSOLE": console}
    closed = load(None, {}, sasl_settings('username="me" password="mine" user_me="mine"'))
    findings = [finding.message for finding in console_findings(closed, environ)]
    assert (
        findings
        == [f"the console at {address} (KWIRE_HTTP) requires no authentication, while every listener does"]
        * is_reported
    )
    assert list(console_findings(load(None, {}, {}), environ)) == []


@pytest.mark.parametrize(
    ("address", "http_tls", "is_reported"),
    [("0.0.0.0:8080", "", True), ("0.0.0.0:8080", "SSL", False), ("8080", "", False), ("", "", False)],
)
def test_unencrypted_logins_at_the_http_port_are_reported(
    address: str, http_tls: str, is_reported: bool
) -> None:
    settings = sasl_settings('username="me" password="mine" user_me="mine"') | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:me",
    }
    for console in ("true", ""):
        environ = {"KWIRE_HTTP": address, "KWIRE_CONSOLE": console, "KWIRE_HTTP_TLS": http_tls}
        findings = [finding.message for finding in console_findings(load(None, {}, settings), environ)]
        reported = f"users log in at the HTTP port {address} (KWIRE_HTTP) with unencrypted passwords"
        assert findings == [reported] * is_reported


@pytest.mark.parametrize(
    ("protocol", "client_auth", "http_tls", "is_reported"),
    [
        ("SSL", "none", "", False),  # clients of the listener do not authenticate either
        ("SSL", "required", "", True),
        ("SSL", "required", "CLIENTS", False),
        ("SASL_SSL", "none", "", True),
        ("SASL_SSL", "none", "CLIENTS", True),
        ("SASL_SSL", "required", "CLIENTS", False),
    ],
)
def test_console_with_client_certificates_is_not_open(
    protocol: str, client_auth: str, http_tls: str, is_reported: bool
) -> None:
    settings = {
        "listeners": "CLIENTS://127.0.0.1:9094",
        "listener.security.protocol.map": f"CLIENTS:{protocol}",
        "inter.broker.listener.name": "CLIENTS",
        "listener.name.clients.ssl.client.auth": client_auth,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.clients.scram-sha-256.sasl.jaas.config": jaas_config("SCRAM-SHA-256", "me", "mine"),
    }
    environ = {"KWIRE_HTTP": "0.0.0.0:8080", "KWIRE_CONSOLE": "true", "KWIRE_HTTP_TLS": http_tls}
    assert bool(list(console_findings(load(None, {}, settings), environ))) == is_reported
