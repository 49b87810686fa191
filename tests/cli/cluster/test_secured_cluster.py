"""`kwire cluster` with listeners that require authentication."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.cli.main import main
from kwire.wire.java_properties import load
from tests.cli.cluster.test_command import ClusterCommand, first_free_port

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="node" password="node-secret" user_node="node-secret";'
)
SASL = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
    "listener.name.controller.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node",
}


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[ClusterCommand]:
    """Return a cluster with one stopped node, whose listeners require SASL."""
    command = ClusterCommand(tmp_path / "cluster", capsys)
    command.output("up", "--combined", "1", "--port", str(first_free_port(2)))
    command.output("stop")
    edit(command, SASL)
    yield command
    main(["cluster", "down", "--dir", str(command.directory)])
    gc.enable()  # the command disables it for its own process


def edit(command: ClusterCommand, changes: dict[str, str]) -> None:
    path = command.directory / "node-1.properties"
    properties = load(path.read_text()) | changes
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


@pytest.mark.proc
def test_commands_authenticate_like_the_node(
    cluster: ClusterCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.output("up")
    status = cluster.status()
    assert status["reachable"]
    assert status["quorum"]["leader"] == 1
    assert cluster.states() == {1: "running"}
    cluster.output("restart", "1")

    wrong = JAAS.replace('password="node-secret"', 'password="wrong"', 1)
    listeners = ("plaintext", "controller")
    edit(cluster, {f"listener.name.{name}.plain.sasl.jaas.config": wrong for name in listeners})
    option = ["--dir", str(cluster.directory)]
    assert main(["cluster", "status", "--json", *option]) == 1
    [quorum, broker] = json.loads(capsys.readouterr().out)["rejected_requests"]
    assert quorum.startswith("node 1 rejects requests of User:node on the listener CONTROLLER (SASL_AUTH")
    assert broker.startswith("node 1 rejects requests of User:node on the listener PLAINTEXT (SASL_AUTH")
    assert broker.endswith(f"check the listener and super.users in {cluster.directory}/node-1.properties")
    assert main(["cluster", "status", *option]) == 1
    table = capsys.readouterr().out
    assert " unknown " in table
    assert "no leader" not in table

    assert main(["cluster", "stop", *option]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("kwire: the state of the quorum is unknown: node 1 rejects requests")
    assert captured.out.startswith("1 node stopped")


@pytest.mark.proc
def test_denied_request_is_reported_with_the_principal(
    cluster: ClusterCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(cluster, {"super.users": "User:admin"})
    cluster.output("up")
    assert main(["cluster", "status", "--dir", str(cluster.directory)]) == 1
    table = capsys.readouterr().out
    assert "\nthe quorum is unknown\n" in table
    assert "\nthese are the topics that User:node may describe (not in super.users)\n" in table
    assert "node 1 rejects requests of User:node on the listener CONTROLLER (CLUSTER_AUTHORIZATION_" in table


@pytest.mark.proc
def test_a_node_is_not_added_to_a_secured_cluster(
    cluster: ClusterCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(cluster.directory.iterdir())
    assert main(["cluster", "up", "--brokers", "2", "--dir", str(cluster.directory)]) == 1
    assert "node 1 has an authorizer, or listeners with authentication" in capsys.readouterr().err
    assert sorted(cluster.directory.iterdir()) == files
