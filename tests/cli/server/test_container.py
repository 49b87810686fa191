"""Settings of `kwire container` from the environment, as in Apache Kafka's image."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kwire.cli.server.container import (
    DEFAULT_CLUSTER_ID,
    apply_image_defaults,
    health_address,
    properties_file,
)
from kwire.cli.shared.command_error import CommandError

QUORUM = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:1",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@127.0.0.1:1",
}


def test_cluster_id_has_a_default() -> None:
    assert apply_image_defaults({})["CLUSTER_ID"] == DEFAULT_CLUSTER_ID
    assert apply_image_defaults({"CLUSTER_ID": ""})["CLUSTER_ID"] == DEFAULT_CLUSTER_ID
    assert apply_image_defaults({"CLUSTER_ID": "mine"})["CLUSTER_ID"] == "mine"


def test_arguments_override_the_environment() -> None:
    settings = apply_image_defaults({"A": "1", "B": "2"}, ["A=3=4", "C="])
    assert {name: settings[name] for name in "ABC"} == {"A": "3=4", "B": "2", "C": ""}
    for wrong in ("A", "=1"):
        with pytest.raises(CommandError, match=f"^{wrong}: expected NAME=VALUE"):
            apply_image_defaults({}, [wrong])


def test_listeners_default_to_the_advertised_ports_on_all_interfaces() -> None:
    advertised = {"KAFKA_ADVERTISED_LISTENERS": "A://kafka:19092,B://localhost:9092"}
    assert apply_image_defaults(advertised)["KAFKA_LISTENERS"] == "A://0.0.0.0:19092,B://0.0.0.0:9092"
    given = {**advertised, "KAFKA_LISTENERS": "A://:1"}
    assert apply_image_defaults(given)["KAFKA_LISTENERS"] == "A://:1"


def test_controller_has_no_advertised_listeners() -> None:
    controller = {"KAFKA_PROCESS_ROLES": "controller", "KAFKA_ADVERTISED_LISTENERS": ""}
    assert "KAFKA_ADVERTISED_LISTENERS" not in apply_image_defaults(controller)
    with pytest.raises(CommandError, match="remove the variable"):
        apply_image_defaults({**controller, "KAFKA_ADVERTISED_LISTENERS": "A://kafka:1"})


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN"}, "warning"),
        ({"KAFKA_LOG4J_ROOT_LOGLEVEL": "trace"}, "debug"),
        ({"KAFKA_LOG4J_ROOT_LOGLEVEL": "no level"}, None),
        ({"KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN", "KWIRE_LOG_LEVEL": "debug"}, "debug"),
        ({}, None),
    ],
)
def test_log4j_root_level_sets_the_log_level(given: dict[str, str], level: str | None) -> None:
    assert apply_image_defaults(given).get("KWIRE_LOG_LEVEL") == level


@pytest.mark.parametrize(
    ("environ", "text", "chosen"),
    [
        ({}, None, "default"),
        ({}, " \n", "default"),
        ({}, "node.id=1", "mounted"),
        ({"KAFKA_NODE_ID": "1"}, "node.id=2", "mounted"),
        ({"KAFKA_NODE_ID": "1"}, " \n", "mounted"),
        ({"KAFKA_NODE_ID": "1"}, None, os.devnull),
        ({"KAFKA_LISTENER_NAME_A_SSL_CLIENT_AUTH": "none"}, None, os.devnull),
        # Variables for the JVM, or those that Kubernetes sets for a service named kafka, are no broker keys.
        ({"KAFKA_HEAP_OPTS": "-Xmx1g", "KAFKA_PORT": "tcp://10.0.0.1:9092"}, None, "default"),
    ],
)
def test_default_properties_file_applies_without_other_settings(
    environ: dict[str, str], text: str | None, chosen: str, tmp_path: Path
) -> None:
    mounted = tmp_path / "server.properties"
    if text is not None:
        mounted.write_text(text)
    found = properties_file(environ, str(mounted), "default")
    assert found == (str(mounted) if chosen == "mounted" else chosen)


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ("", ("127.0.0.1", 9092)),
        ("PLAINTEXT://:9192", ("127.0.0.1", 9192)),
        ("CONTROLLER://:9093, HOST://0.0.0.0:9192", ("127.0.0.1", 9192)),
        ("CONTROLLER://:9093", ("127.0.0.1", 9093)),
        ("HOST://[::]:9192", ("::1", 9192)),
        ("HOST://kafka:9192,CONTROLLER://kafka:9093", ("kafka", 9192)),
    ],
)
def test_health_check_prefers_a_broker_listener(
    listeners: str, expected: tuple[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("controller.listener.names=CONTROLLER\nlisteners=HOST://:1\n")
    assert health_address(str(file), {"KAFKA_LISTENERS": listeners}) == expected


def test_missing_properties_file_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"/none/server\.properties: No such file"):
        health_address("/none/server.properties", {})


def test_invalid_listeners_are_an_error() -> None:
    with pytest.raises(CommandError, match="expected NAME://host:port"):
        health_address(os.devnull, {"KAFKA_LISTENERS": "9092"})


def run_container(directory: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a container that fails to start."""
    return subprocess.run(
        [sys.executable, "-m", "kwire", "container", "run", "--mounted-configs-dir", str(directory)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_log_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    meta = "version=1\ncluster.id=one\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAABQ\n"
    (data / "meta.properties").write_text(meta)
    result = run_container(tmp_path, {**QUORUM, "KAFKA_LOG_DIRS": str(data), "CLUSTER_ID": "other"})
    assert result.returncode == 1
    assert result.stderr.startswith("kwire: ")
    assert "one" in result.stderr
    assert "other" in result.stderr
    assert (data / "meta.properties").read_text() == meta


def test_missing_quorum_voters_are_an_error(tmp_path: Path) -> None:
    environ = {**QUORUM, "KAFKA_LOG_DIRS": str(tmp_path / "data")}
    del environ["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    environ["KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS"] = "127.0.0.1:1"
    result = run_container(tmp_path, environ)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "kwire: controller.quorum.voters is not set, so the voters are unknown: set "
    )
    assert not (tmp_path / "data").exists()
