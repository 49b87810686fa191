"""`kwire certs`: its files, what it keeps, and the settings that it prints."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.security.tls_context import server_context
from kwire.broker.security.tls_stores import load_key_store, load_trust_store
from kwire.certificates.authority import Authority
from kwire.cli.admin import certs
from kwire.client.tls import create_context
from kwire.testing import Kafka
from kwire.wire.java_properties import load
from tests.cli.run_command import CommandResult, RunCommand

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "new" / "tls"


def read_file(path: str) -> bytes:
    return Path(path).read_bytes()


def settings_of(result: CommandResult) -> list[dict[str, str]]:
    """Return the properties that the command has printed: those of the node, then those of the clients."""
    assert result.status == 0, result.err
    return [load(f"#{text}") for text in result.out.split("\n# ")[1:]]


def states_of(result: CommandResult) -> dict[str, str]:
    return {os.path.basename(row["file"]): row["state"] for row in result.json}


def handshake(server: dict[str, str], client: dict[str, str], name: str = "localhost") -> Any:
    """Connect a listener and a client with these settings, and return the client's certificate."""
    listener = server_context(server, load_key_store(server, read_file), load_trust_store(server, read_file))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = listener.wrap_bio(to_server, to_client, server_side=True)
    other = create_context(client).wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(3):
        for side in (other, one):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    one.write(b"x")
    assert other.read() == b"x"
    return one.getpeercert()


def test_printed_settings_fit_together(directory: Path, offline: RunCommand) -> None:
    server, alice, bob = settings_of(offline("certs", str(directory), "--client", "alice", "--client", "bob"))
    assert server["listeners"].startswith("SSL://localhost:9094,")
    assert server["ssl.client.auth"] == "required"
    for name in ("localhost", "127.0.0.1", "::1", socket.gethostname()):
        assert handshake(server, alice, name)["subject"] == ((("commonName", "alice"),),)
    assert handshake(server, bob)["subject"] == ((("commonName", "bob"),),)
    assert handshake(server, {**server, "security.protocol": "SSL"}), "the node is a client of other nodes"


@pytest.mark.parametrize("arguments", [[], ["--client", "alice", "--pkcs12"]])
def test_broker_and_client_start_with_the_printed_settings(
    directory: Path,
    offline: RunCommand,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    monkeypatch.setattr(certs, "PORT", ports[0])
    monkeypatch.setattr(certs, "CONTROLLER_PORT", ports[1])
    monkeypatch.chdir(tmp_path)
    printed = offline("certs", str(directory), *arguments).out.split("\n# ")[1:]
    for name, text in zip(("server.properties", "client.properties"), printed, strict=True):
        Path(name).write_text(f"# {text}\n")
    client = load(Path("client.properties").read_text())
    with subprocess.Popen([sys.executable, "-m", "kwire", "serve", "server.properties"]) as server:
        try:
            with Kafka(client.pop("bootstrap.servers"), properties=client, timeout_s=30) as kafka:
                kafka.wait_until(partial(responds, kafka))
                kafka.produce("orders", "first")
                assert [record.value for record in kafka.records("orders", count=1)] == [b"first"]
        finally:
            server.terminate()
    assert (tmp_path / "kwire-data").is_dir()


def responds(kafka: Kafka) -> bool:
    try:
        return kafka.topics() == []
    except Exception:
        return False


def test_clients_without_certificates_only_need_the_authority(directory: Path, offline: RunCommand) -> None:
    server, client = settings_of(offline("certs", str(directory), "--host", "::1", "--host", "kafka.test"))
    assert server["listeners"].startswith("SSL://[::1]:9094,")
    assert client["bootstrap.servers"] == "[::1]:9094"
    assert "ssl.client.auth" not in server
    stores = {key for key in client if key.startswith("ssl.")}
    assert stores == {"ssl.truststore.type", "ssl.truststore.location"}
    assert handshake(server, client, "kafka.test") is None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "localhost")


def test_only_the_owner_can_read_private_keys(directory: Path, offline: RunCommand) -> None:
    before = os.umask(0)
    try:
        assert offline("certs", str(directory), "--client", "alice", "--pkcs12").status == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    public = {"ca.pem", "truststore.p12"}
    assert modes == {
        **dict.fromkeys(public, 0o644),
        **dict.fromkeys(("ca-key.pem", "broker.pem", "broker.p12"), 0o600),
        **dict.fromkeys(("alice.pem", "alice.p12", "password"), 0o600),
    }
    for name in public:
        assert b"PRIVATE KEY" not in (directory / name).read_bytes()


def test_second_run_reuses_the_authority_and_keeps_files(directory: Path, offline: RunCommand) -> None:
    [server, _] = settings_of(offline("certs", str(directory)))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    second = offline("certs", str(directory), "--client", "alice", "--json")
    assert states_of(second) == {
        "ca-key.pem": "kept", "ca.pem": "kept", "broker.pem": "kept", "alice.pem": "created"
    }  # fmt: skip
    assert before == {name: (directory / name).read_bytes() for name in before}
    [_, alice] = settings_of(offline("certs", str(directory), "--client", "alice"))
    assert handshake({**server, "ssl.client.auth": "required"}, alice)


def test_replace_issues_certificates_again_but_keeps_the_authority(
    directory: Path, offline: RunCommand
) -> None:
    offline("certs", str(directory), "--client", "alice", "--pkcs12")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    again = offline("certs", str(directory), "--host", "kafka.test", "--pkcs12", "--replace", "--json")
    replaced = {"broker.pem", "broker.p12", "truststore.p12"}
    assert {name for name, state in states_of(again).items() if state == "replaced"} == replaced
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert {name for name in before if before[name] != after[name]} == replaced
    third = offline("certs", str(directory), "--replace", "--json")
    for result in (again, third):  # without --host, the certificate keeps its names
        [row] = [row for row in result.json if row["file"].endswith("broker.pem")]
        assert row["names"] == ["kafka.test"]
        assert row["principal"] == "User:CN=broker"


@pytest.mark.parametrize("is_first_run", [True, False])
def test_pkcs12_stores_are_those_of_the_printed_settings(
    directory: Path, offline: RunCommand, is_first_run: bool
) -> None:
    if not is_first_run:
        offline("certs", str(directory), "--pkcs12")
    server, alice = settings_of(offline("certs", str(directory), "--client", "alice", "--pkcs12"))
    assert server["ssl.keystore.type"] == alice["ssl.truststore.type"] == "PKCS12"
    assert (directory / "password").read_text() == f"{server['ssl.keystore.password']}\n"
    key_store = load_key_store(alice, read_file)
    assert key_store is not None
    server_context({}, key_store, load_trust_store(alice, read_file))
    keytool = shutil.which("keytool")
    if keytool is not None and is_first_run:
        store, password = alice["ssl.keystore.location"], alice["ssl.keystore.password"]
        command = [keytool, "-list", "-keystore", store, "-storepass", password]
        assert "PrivateKeyEntry" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_lifetime_is_in_days(directory: Path, offline: RunCommand) -> None:
    rows = offline("certs", str(directory), "--days", "3", "--json").json
    [expires] = [row["expires"] for row in rows if row["file"].endswith("broker.pem")]
    assert expires[:10] == time.strftime("%Y-%m-%d", time.gmtime(time.time() + 3 * 24 * 3600))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "a b"], "--host: 'a b' is neither a host name nor an IP address"),
        (
            ["--client", "../x"],
            "--client ../x: use letters, digits, '.', '_', '@' and '-', at most 64 of them",
        ),
        (["--client", ""], "--client : use letters"),
        (["--node", "ca"], "--node ca: the directory has other files of that name, choose another one"),
        (["--client", "broker"], "--client broker: the node has that name, choose another one"),
        (["--days", "0"], "--days 0: expected 1 or more"),
    ],
)
def test_invalid_arguments_write_nothing(
    directory: Path, offline: RunCommand, arguments: list[str], message: str
) -> None:
    result = offline("certs", str(directory), *arguments)
    assert result.status == 2
    assert result.sentence.startswith(f"kwire certs: {message}")
    assert not directory.exists()


def test_existing_files_that_do_not_fit_are_not_overwritten(directory: Path, offline: RunCommand) -> None:
    offline("certs", str(directory), "--host", "kafka.test", "--pkcs12")
    broker, store = directory / "broker.pem", directory / "broker.p12"
    now_ms = int(time.time() * 1000)

    def fails(message: str, *arguments: str) -> None:
        before = broker.read_bytes(), store.read_bytes()
        result = offline("certs", str(directory), *arguments)
        assert result.status == 1
        assert message in result.sentence
        assert "--replace" in result.sentence
        assert (broker.read_bytes(), store.read_bytes()) == before

    fails("broker.pem exists, and is for kafka.test: choose another --node", "--host", "other.test")
    good, good_store = broker.read_text(), store.read_bytes()
    store.write_bytes((directory / "truststore.p12").read_bytes())
    fails("broker.p12 exists, but not with this certificate", "--pkcs12")
    store.write_bytes(b"nothing")
    fails("broker.p12 exists, but not with this certificate", "--pkcs12")
    store.write_bytes(good_store)
    other = Authority.create("other", now_ms).issue("CN=broker", ["kafka.test"], now_ms=now_ms)
    broker.write_text(other.key_pem + other.chain_pem)
    fails("broker.pem was not issued by ")
    broker.write_text(good.partition("-----BEGIN CERTIFICATE")[0])
    fails("broker.pem exists, but ")
    authority = Authority.load((directory / "ca.pem").read_text(), (directory / "ca-key.pem").read_text())
    expired = authority.issue("CN=broker", now_ms=now_ms - 2 * DAY_MS, lifetime_days=1)
    broker.write_text(expired.key_pem + expired.chain_pem)
    fails("broker.pem has expired at ")
    assert offline("certs", str(directory), "--pkcs12", "--replace").status == 0


def test_incomplete_or_expired_authority_is_refused(directory: Path, offline: RunCommand) -> None:
    offline("certs", str(directory))
    key = (directory / "ca-key.pem").read_text()
    (directory / "ca-key.pem").unlink()
    sentence = offline("certs", str(directory)).sentence
    assert "has ca.pem but no ca-key.pem: restore ca-key.pem, or choose another directory" in sentence
    (directory / "ca-key.pem").write_text(key.replace("M", "N", 1))
    assert "has no usable authority (" in offline("certs", str(directory)).sentence
    old = Authority.create("old", int(time.time() * 1000) - 2 * DAY_MS, lifetime_days=1)
    (directory / "ca-key.pem").write_text(old.key_pem)
    (directory / "ca.pem").write_text(old.certificate_pem)
    assert "ca.pem has expired at " in offline("certs", str(directory)).sentence


def test_unwritable_directory_is_named(tmp_path: Path, offline: RunCommand) -> None:
    (tmp_path / "file").write_text("")
    assert offline("certs", str(tmp_path / "file")).sentence.endswith("file/ca.pem: Not a directory")
    assert offline("certs", "/proc/nothing").sentence.startswith("kwire certs: /proc/nothing: ")


def test_failed_write_leaves_no_file(
    directory: Path, offline: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kwire.cli.admin.certs.os.replace", fail)
    assert offline("certs", str(directory)).sentence.endswith("ca-key.pem: No space left on device")
    assert not list(directory.iterdir())


def test_missing_package_is_named(directory: Path) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None; from kwire.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "certs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("kwire certs: the Python package cryptography is not installed")
    assert done.stderr.endswith("pip install 'kwire[tls]'\n")
