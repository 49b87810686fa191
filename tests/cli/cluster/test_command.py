"""`kwire cluster`: node processes and the directory that describes them."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.config import load
from kwire.broker.metadata.features import unserved_feature_levels
from kwire.broker.node.format import InitialMetadata, format_directories
from kwire.broker.storage.disk import RealDisk
from kwire.cli.cluster import directory as cluster_directory
from kwire.cli.cluster.directory import ClusterDirectory
from kwire.cli.cluster.plan import NodeCounts
from kwire.cli.main import main
from kwire.cli.shared.command_error import CommandError


class ClusterCommand:
    """Runs `kwire cluster` commands for one directory."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.option = f"--dir {directory}"
        self._capsys = capsys

    def output(self, *arguments: str, status: int = 0) -> str:
        """Run a command, check its exit status, and return what it prints."""
        assert main(["cluster", *arguments, "--dir", str(self.directory)]) == status
        output = self._capsys.readouterr()
        return output.out if status == 0 else output.err

    def status(self) -> Any:
        return json.loads(self.output("status", "--json"))

    def wait_for_leader(self) -> int:
        """Wait for an active controller and return its id."""
        while (quorum := self.status()["quorum"]) is None:
            pass
        leader: int = quorum["leader"]
        return leader

    def states(self) -> dict[int, str]:
        return {node["node"]: node["state"] for node in self.status()["nodes"]}


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[ClusterCommand]:
    cluster_command = ClusterCommand(tmp_path / "cluster", capsys)
    yield cluster_command
    if cluster_command.directory.exists():
        main(["cluster", "down", "--dir", str(cluster_command.directory)])
    gc.enable()  # the command disables it for its own process


def first_free_port(count: int) -> int:
    """Return the first of `count` consecutive free ports.

    The ports are below the ephemeral range, so that no outgoing connection between nodes uses one.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        if all(is_free(one) for one in range(port, port + count)):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.proc
def test_cluster_is_started_stopped_restarted_and_removed(cluster: ClusterCommand) -> None:
    port = first_free_port(3)
    output = cluster.output("up", "--brokers", "2", "--port", str(port), "--set", "num.partitions=4")
    assert output.startswith(f"2 brokers serve on 127.0.0.1:{port},127.0.0.1:{port + 1}, ")
    status = cluster.status()
    assert [(node["node"], node["roles"]) for node in status["nodes"]] == [
        (100, "controller"),
        (1, "broker"),
        (2, "broker"),
    ]
    assert cluster.states() == {100: "running", 1: "running", 2: "running"}
    pids = {node["node"]: node["pid"] for node in status["nodes"]}

    assert (
        cluster.output("kill", "2")
        == f"node 2 killed, 'kwire cluster restart 2 {cluster.option}' starts it again\n"
    )
    assert not is_alive(pids[2])
    assert cluster.states()[2] == "stopped"
    assert cluster.output("kill", "2") == cluster.output("stop", "2") == "node 2 is not running\n"
    assert cluster.output("restart", "1") == f"node 1 serves on 127.0.0.1:{port}\n"
    assert (
        cluster.output("stop", "1")
        == f"node 1 stopped, 'kwire cluster restart 1 {cluster.option}' starts it again\n"
    )
    cluster.output("restart", "1")
    kept = f"the data is kept in {cluster.directory}; 'kwire cluster up {cluster.option}' starts them again"
    assert cluster.output("stop") == f"2 nodes stopped, {kept}\n"
    assert cluster.output("stop") == "no node is running\n"
    assert set(cluster.states().values()) == {"stopped"}
    assert not any(map(is_alive, pids.values()))
    assert "no broker is reachable" in cluster.output("status")

    cluster.output("up", "--brokers", "2")
    assert cluster.states() == {100: "running", 1: "running", 2: "running"}
    (cluster.directory / "notes.txt").touch()
    assert cluster.output("down") == f"removed the cluster in {cluster.directory} and its data\n"
    assert [path.name for path in cluster.directory.iterdir()] == ["notes.txt"]


def test_combined_nodes_elect_another_controller(cluster: ClusterCommand) -> None:
    output = cluster.output("up", "--port", str(first_free_port(6)))
    assert output.startswith("3 brokers serve on ")
    status = cluster.status()
    assert {node["roles"] for node in status["nodes"]} == {"broker,controller"}
    first = status["quorum"]["leader"]
    assert sorted(voter["node"] for voter in status["quorum"]["voters"]) == [1, 2, 3]
    cluster.output("kill", str(first))
    other = cluster.wait_for_leader()
    assert other != first
    cluster.output("restart", str(first))
    cluster.output("up")
    assert set(cluster.states().values()) == {"running"}
    table = cluster.output("status")
    assert re.search(rf"^ *{first} .* running +voter ", table, re.MULTILINE)
    assert f"node {cluster.wait_for_leader()} leads the quorum in leader epoch " in table

    # The last nodes have no majority, so they stop without a controlled shutdown.
    cluster.output("stop")
    assert set(cluster.states().values()) == {"stopped"}


def test_dedicated_controllers_are_added(cluster: ClusterCommand) -> None:
    cluster.output("up", "--brokers", "1", "--port", str(first_free_port(4)))
    cluster.output("up", "--controllers", "3")
    status = cluster.status()
    assert {node["node"]: node["quorum"] for node in status["nodes"]} == {
        100: "leader",
        101: "voter",
        102: "voter",
        1: "observer",
    }
    cluster.output("stop", "100")
    assert cluster.wait_for_leader() in (101, 102)
    cluster.output("kill", "101")
    cluster.output("kill", "102")
    output = cluster.output("stop", "1", status=1)
    assert output.startswith("kwire: the quorum has no leader, which brokers need for a controlled shutdown")
    cluster.output("kill", "1")


def is_alive(pid: int) -> bool:
    """Return whether a process runs: the cmdline of a zombie process is empty."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_node_with_a_used_port_reports_the_failure(cluster: ClusterCommand) -> None:
    port = first_free_port(2)
    # Listening succeeds although closed connections to this port are in TIME_WAIT.
    with socket.create_server(("127.0.0.1", port)):
        output = cluster.output("up", "--brokers", "1", "--port", str(port), status=1)
    assert output.startswith("kwire: node 1 did not start: ")
    assert str(port) in output
    assert f"; running: 100; 'kwire cluster down {cluster.option}' and " in output
    assert f" and 'kwire cluster up --port PORT {cluster.option}' start over" in output


def test_invalid_properties_of_a_node_do_not_affect_other_nodes(cluster: ClusterCommand) -> None:
    cluster.output("up", "--brokers", "2", "--port", str(first_free_port(3)))
    cluster.output("kill", "2")
    edited = cluster.directory / "node-2.properties"
    original = edited.read_text()
    edited.write_text(f"{original}num.partitions=many\n")
    (cluster.directory / "node-2.old.properties").write_text(original)

    status = cluster.status()
    assert {node["node"]: (node["roles"], node["state"]) for node in status["nodes"]} == {
        100: ("controller", "running"),
        1: ("broker", "running"),
        2: (None, "stopped"),
    }
    assert f"{edited}: Invalid value many" in status["config_errors"]["2"]
    assert f"{edited}: Invalid value many" in cluster.output("status")
    cluster.output("kill", "1")
    output = cluster.output("up", "--brokers", "2", status=1)
    assert output.startswith(f"kwire: {edited}: Invalid value many")
    assert output.endswith("; running: 100, 1\n")
    assert "num.partitions" in cluster.output("restart", "2", status=1)
    cluster.output("stop", "1")
    edited.write_text(original)
    cluster.output("up", "--brokers", "2")
    assert set(cluster.states().values()) == {"running"}


def test_adding_a_broker_warns_about_replication_factors(cluster: ClusterCommand) -> None:
    output = cluster.output("up", "--brokers", "1", "--port", str(first_free_port(3)))
    assert output.startswith("1 broker serves on ")
    assert output.count("\n") == 1
    output = cluster.output("up", "--brokers", "2")
    assert output.startswith("2 brokers serve on ")
    assert "nodes 100, 1 still create topics with fewer than 2" in output
    for node_id in (100, 1):
        edited = cluster.directory / f"node-{node_id}.properties"
        edited.write_text(edited.read_text().replace("replication.factor=1", "replication.factor=2"))
    assert cluster.output("up", "--brokers", "2").count("\n") == 1
    output = cluster.output("up", "--brokers", "2", "--set", "min.insync.replicas=2")
    assert "existing nodes 100, 1, 2 keep" in output


def test_failure_before_serving_is_reported(cluster: ClusterCommand) -> None:
    directory = ClusterDirectory(str(cluster.directory))
    directory.create(NodeCounts(1), first_free_port(2), {})
    meta = cluster.directory / "node-1" / "meta.properties"
    own_id = (cluster.directory / "cluster.id").read_text().strip()
    meta.write_text(meta.read_text().replace(own_id, "AAAAAAAAAAAAAAAAAAAAAQ"))
    assert "node 1 did not start: the quorum belongs to another cluster" in cluster.output(
        "up", "--brokers", "1", status=1
    )


def test_reused_pid_counts_as_stopped(cluster: ClusterCommand) -> None:
    cluster.directory.mkdir()
    (cluster.directory / "cluster.id").touch()
    properties = cluster.directory / "node-1.properties"
    properties.write_text(
        "process.roles=broker\nnode.id=1\ncontroller.quorum.voters=100@127.0.0.1:1\n"
        "controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://127.0.0.1:2\n"
    )
    (cluster.directory / "node-1.pid").write_text(f"{os.getpid()}\n")
    assert cluster.states() == {1: "stopped"}
    cluster.output("kill", "1")


def test_status_watch_repeats_until_ctrl_c(cluster: ClusterCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    ClusterDirectory(str(cluster.directory)).create(NodeCounts(combined=1), 20_001, {})
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    output = cluster.output("status", "--watch", "5")
    assert pauses == [5, 5, 5]
    assert output.count("the quorum has no leader\nno broker is reachable\n") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], "there is no cluster in"),
        (["kill", "7"], "there is no cluster in"),
        (["up", "--brokers", "0"], "--brokers 0: expected 1 to 32"),
        (["up", "--combined", "8"], "--combined 8: expected 1 to 7"),
        (["up", "--combined", "3", "--controllers", "1"], "option, --combined or --controllers"),
        (["up", "--port", "65533"], "--port 65533: expected 1 to 65530, for 3 nodes"),
        (["up", "--set", "node.id=5"], "--set node.id: kwire cluster sets this key for each node"),
        (
            ["up", "--set", "controller.quorum.voters=1@a:1"],
            "kwire cluster sets this key from the nodes of the cluster",
        ),
        (["up", "--set", "num.partitions"], "--set num.partitions: expected KEY=VALUE"),
        (["up", "--set", "num.partition=3"], "did you mean num.partitions?"),
    ],
)
def test_errors_are_one_line(cluster: ClusterCommand, arguments: list[str], message: str) -> None:
    output = cluster.output(*arguments, status=2 if arguments[0] == "up" else 1)
    assert output.startswith("kwire: ")
    assert message in output
    assert output.count("\n") == 1


def test_unusable_directory_is_reported(cluster: ClusterCommand, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cluster.directory = tmp_path / "file" / "cluster"
    output = cluster.output("up", status=1)
    assert output == f"kwire: {cluster.directory}: Not a directory: choose a writable directory with --dir\n"


def test_directory_with_other_files_is_refused_and_unchanged(cluster: ClusterCommand) -> None:
    cluster.directory.mkdir()
    (cluster.directory / "thesis.tex").touch()
    assert "is not empty and has no cluster" in cluster.output("up", status=1)
    assert [path.name for path in cluster.directory.iterdir()] == ["thesis.tex"]
    (cluster.directory / "thesis.tex").unlink()


def test_node_properties_load_as_a_kafka_configuration(cluster: ClusterCommand) -> None:
    directory = ClusterDirectory(str(cluster.directory))
    directory.create(NodeCounts(3), 20_001, {})
    broker = load(str(cluster.directory / "node-2.properties"), {}, {})
    assert (broker.node_id, broker.process_roles) == (2, ["broker"])
    assert broker.log_dirs == [str(cluster.directory / "node-2")]
    assert broker.default_replication_factor == 3
    assert broker.min_insync_replicas == 2


def test_added_brokers_have_their_own_ports(cluster: ClusterCommand) -> None:
    directory = ClusterDirectory(str(cluster.directory))
    directory.create(NodeCounts(2), 20_001, {})
    directory.create(NodeCounts(4), None, {})
    with pytest.raises(CommandError, match="--port 9092: this cluster already uses ports from 20001 on"):
        directory.create(NodeCounts(4), 9092, {})
    assert {node.node_id: node.address for node in directory.nodes()} == {
        100: "127.0.0.1:20003",
        1: "127.0.0.1:20001",
        2: "127.0.0.1:20002",
        3: "127.0.0.1:20004",
        4: "127.0.0.1:20005",
    }


def test_cluster_with_static_voters_still_starts(cluster: ClusterCommand) -> None:
    """The properties of every node name one controller, as older versions wrote them."""
    cluster.directory.mkdir()
    (cluster.directory / "cluster.id").write_text("4L6g3nShT-eMCtK--X86sw\n")
    first = first_free_port(3)
    listeners = {100: f"CONTROLLER://127.0.0.1:{first + 1}", 1: f"PLAINTEXT://127.0.0.1:{first}"}
    for node_id, listener in listeners.items():
        path = cluster.directory / f"node-{node_id}.properties"
        path.write_text(
            f"process.roles={'controller' if node_id == 100 else 'broker'}\nnode.id={node_id}\n"
            f"controller.quorum.voters=100@127.0.0.1:{first + 1}\ncontroller.listener.names=CONTROLLER\n"
            f"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={cluster.directory / f'node-{node_id}'}\nlisteners={listener}\n"
        )
        format_directories(
            load(str(path), {}, {}),
            RealDisk(),
            random.Random(1),
            0,
            cluster_id="4L6g3nShT-eMCtK--X86sw",
            initial_metadata=InitialMetadata(unserved_feature_levels()),
        )
    assert "has static controller.quorum.voters" in cluster.output("up", "--controllers", "3", status=1)
    cluster.output("up", "--brokers", "2")
    assert cluster.states() == {100: "running", 1: "running", 2: "running"}


def test_interrupted_creation_is_continued_or_removed(
    cluster: ClusterCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ClusterDirectory(str(cluster.directory))

    def format_then_interrupt(*arguments: Any, **options: Any) -> None:
        format_directories(*arguments, **options)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(cluster_directory, "format_directories", format_then_interrupt)
            with pytest.raises(KeyboardInterrupt):
                directory.create(NodeCounts(1), 20_001, {})
        assert "no node in" in cluster.output("status", status=1)
    directory.create(NodeCounts(1), 20_001, {})
    assert cluster.states() == {100: "stopped", 1: "stopped"}
    cluster.output("down")
    assert not cluster.directory.exists()
    with monkeypatch.context() as patched:
        patched.setattr(cluster_directory, "format_directories", format_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            directory.create(NodeCounts(1), 20_001, {})
    cluster.output("down")
    assert not cluster.directory.exists()


def test_creation_interrupted_before_the_last_rename_is_finished(cluster: ClusterCommand) -> None:
    """All voters are formatted together, and some of them may already have run."""
    directory = ClusterDirectory(str(cluster.directory))
    directory.create(NodeCounts(combined=3), 20_001, {})
    meta = (cluster.directory / "node-2" / "meta.properties").read_text()
    (cluster.directory / "node-2.properties").rename(cluster.directory / "node-2.unfinished")
    assert directory.create(NodeCounts(), None, {}) == []
    assert cluster.states() == {1: "stopped", 2: "stopped", 3: "stopped"}
    assert (cluster.directory / "node-2" / "meta.properties").read_text() == meta


def test_module_in_the_working_directory_is_not_imported(
    cluster: ClusterCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy.py").write_text("raise SystemExit('not the standard library')\n")
    monkeypatch.chdir(tmp_path)
    cluster.output("up", "--brokers", "1", "--port", str(first_free_port(2)))
    assert cluster.states() == {100: "running", 1: "running"}
