"""`kwire cluster`: nodes that are processes, and a folder that says all there is to know of them."""

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


class Desk:
    """Somebody who types commands about one cluster."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.option = f"--dir {directory}"
        self._capsys = capsys

    def says(self, *arguments: str, status: int = 0) -> str:
        """What a command prints that ends in this status."""
        assert main(["cluster", *arguments, "--dir", str(self.directory)]) == status
        told = self._capsys.readouterr()
        return told.out if status == 0 else told.err

    def status(self) -> Any:
        return json.loads(self.says("status", "--json"))

    def until_led(self) -> int:
        """The active controller, once there is one."""
        while (quorum := self.status()["quorum"]) is None:
            pass
        leader: int = quorum["leader"]
        return leader

    def states(self) -> dict[int, str]:
        return {node["node"]: node["state"] for node in self.status()["nodes"]}


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    made = Desk(tmp_path / "cluster", capsys)
    yield made
    if made.directory.exists():
        main(["cluster", "down", "--dir", str(made.directory)])
    gc.enable()  # which the command switches off, in a process that is its own elsewhere


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on.

    Below those that the system chooses: the near end of a connection between two nodes may have one of those.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        if all(is_free(one) for one in range(port, port + count)):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


def test_a_cluster_from_its_beginning_to_its_end(desk: Desk) -> None:
    port = free_ports(3)
    told = desk.says("up", "--brokers", "2", "--port", str(port), "--set", "num.partitions=4")
    assert told.startswith(f"2 brokers serve on 127.0.0.1:{port},127.0.0.1:{port + 1}, ")
    status = desk.status()
    assert [(node["node"], node["roles"]) for node in status["nodes"]] == [
        (100, "controller"),
        (1, "broker"),
        (2, "broker"),
    ]
    assert desk.states() == {100: "running", 1: "running", 2: "running"}
    pids = {node["node"]: node["pid"] for node in status["nodes"]}

    assert (
        desk.says("kill", "2") == f"node 2 killed, 'kwire cluster restart 2 {desk.option}' starts it again\n"
    )
    assert not is_alive(pids[2])
    assert desk.states()[2] == "stopped"
    assert desk.says("kill", "2") == desk.says("stop", "2") == "node 2 is not running\n"
    assert desk.says("restart", "1") == f"node 1 serves on 127.0.0.1:{port}\n"
    assert (
        desk.says("stop", "1") == f"node 1 stopped, 'kwire cluster restart 1 {desk.option}' starts it again\n"
    )
    desk.says("restart", "1")
    kept = f"the data is kept in {desk.directory}; 'kwire cluster up {desk.option}' starts them again"
    assert desk.says("stop") == f"2 nodes stopped, {kept}\n"
    assert desk.says("stop") == "no node is running\n"
    assert set(desk.states().values()) == {"stopped"}
    assert not any(map(is_alive, pids.values()))
    assert "no broker is reachable" in desk.says("status")

    desk.says("up", "--brokers", "2")
    assert desk.states() == {100: "running", 1: "running", 2: "running"}
    (desk.directory / "notes.txt").touch()
    assert desk.says("down") == f"removed the cluster in {desk.directory} and its data\n"
    assert [path.name for path in desk.directory.iterdir()] == ["notes.txt"]


def test_three_nodes_that_are_both_elect_another(desk: Desk) -> None:
    told = desk.says("up", "--port", str(free_ports(6)))
    assert told.startswith("3 brokers serve on ")
    status = desk.status()
    assert {node["roles"] for node in status["nodes"]} == {"broker,controller"}
    first = status["quorum"]["leader"]
    assert sorted(voter["node"] for voter in status["quorum"]["voters"]) == [1, 2, 3]
    desk.says("kill", str(first))
    other = desk.until_led()
    assert other != first
    desk.says("restart", str(first))
    desk.says("up")
    assert set(desk.states().values()) == {"running"}
    table = desk.says("status")
    assert re.search(rf"^ *{first} .* running +voter ", table, re.MULTILINE)
    assert f"node {desk.until_led()} leads the quorum in leader epoch " in table

    # Who is left with no majority hands over to nobody.
    desk.says("stop")
    assert set(desk.states().values()) == {"stopped"}


def test_controllers_of_their_own_become_more(desk: Desk) -> None:
    desk.says("up", "--brokers", "1", "--port", str(free_ports(4)))
    desk.says("up", "--controllers", "3")
    status = desk.status()
    assert {node["node"]: node["quorum"] for node in status["nodes"]} == {
        100: "leader",
        101: "voter",
        102: "voter",
        1: "observer",
    }
    desk.says("stop", "100")
    assert desk.until_led() in (101, 102)
    desk.says("kill", "101")
    desk.says("kill", "102")
    told = desk.says("stop", "1", status=1)
    assert told.startswith("kwire: the quorum has no leader, which brokers need for a controlled shutdown")
    desk.says("kill", "1")


def is_alive(pid: int) -> bool:
    """Whether it runs; of one that has ended and was not asked for yet, nothing is told there."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_a_node_that_cannot_start_is_told_of(desk: Desk) -> None:
    port = free_ports(2)
    # It may be taken though connections to who had it before are remembered, which nodes take no offence at.
    with socket.create_server(("127.0.0.1", port)):
        told = desk.says("up", "--brokers", "1", "--port", str(port), status=1)
    assert told.startswith("kwire: node 1 did not start: ")
    assert str(port) in told
    assert f"; running: 100; 'kwire cluster down {desk.option}' and " in told
    assert f" and 'kwire cluster up --port PORT {desk.option}' start over" in told


def test_properties_that_are_broken_stop_nobody_elses_commands(desk: Desk) -> None:
    desk.says("up", "--brokers", "2", "--port", str(free_ports(3)))
    desk.says("kill", "2")
    edited = desk.directory / "node-2.properties"
    whole = edited.read_text()
    edited.write_text(f"{whole}num.partitions=many\n")
    (desk.directory / "node-2.old.properties").write_text(whole)

    status = desk.status()
    assert {node["node"]: (node["roles"], node["state"]) for node in status["nodes"]} == {
        100: ("controller", "running"),
        1: ("broker", "running"),
        2: (None, "stopped"),
    }
    assert f"{edited}: Invalid value many" in status["config_errors"]["2"]
    assert f"{edited}: Invalid value many" in desk.says("status")
    desk.says("kill", "1")
    told = desk.says("up", "--brokers", "2", status=1)
    assert told.startswith(f"kwire: {edited}: Invalid value many")
    assert told.endswith("; running: 100, 1\n")
    assert "num.partitions" in desk.says("restart", "2", status=1)
    desk.says("stop", "1")
    edited.write_text(whole)
    desk.says("up", "--brokers", "2")
    assert set(desk.states().values()) == {"running"}


def test_who_lets_a_cluster_grow_is_told_of_the_replicas(desk: Desk) -> None:
    told = desk.says("up", "--brokers", "1", "--port", str(free_ports(3)))
    assert told.startswith("1 broker serves on ")
    assert told.count("\n") == 1
    told = desk.says("up", "--brokers", "2")
    assert told.startswith("2 brokers serve on ")
    assert "nodes 100, 1 still create topics with fewer than 2" in told
    for node_id in (100, 1):
        edited = desk.directory / f"node-{node_id}.properties"
        edited.write_text(edited.read_text().replace("replication.factor=1", "replication.factor=2"))
    assert desk.says("up", "--brokers", "2").count("\n") == 1
    told = desk.says("up", "--brokers", "2", "--set", "min.insync.replicas=2")
    assert "existing nodes 100, 1, 2 keep" in told


def test_a_node_that_fails_before_it_serves_is_told_of(desk: Desk) -> None:
    directory = ClusterDirectory(str(desk.directory))
    directory.create(NodeCounts(1), free_ports(2), {})
    meta = desk.directory / "node-1" / "meta.properties"
    own_id = (desk.directory / "cluster.id").read_text().strip()
    meta.write_text(meta.read_text().replace(own_id, "AAAAAAAAAAAAAAAAAAAAAQ"))
    assert "node 1 did not start: the quorum belongs to another cluster" in desk.says(
        "up", "--brokers", "1", status=1
    )


def test_a_pid_that_somebody_else_has_by_now_is_nobody(desk: Desk) -> None:
    desk.directory.mkdir()
    (desk.directory / "cluster.id").touch()
    properties = desk.directory / "node-1.properties"
    properties.write_text(
        "process.roles=broker\nnode.id=1\ncontroller.quorum.voters=100@127.0.0.1:1\n"
        "controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://127.0.0.1:2\n"
    )
    (desk.directory / "node-1.pid").write_text(f"{os.getpid()}\n")
    assert desk.states() == {1: "stopped"}
    desk.says("kill", "1")


def test_status_is_told_until_ctrl_c(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    ClusterDirectory(str(desk.directory)).create(NodeCounts(combined=1), 20_001, {})
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    told = desk.says("status", "--watch", "5")
    assert pauses == [5, 5, 5]
    assert told.count("the quorum has no leader\nno broker is reachable\n") == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status"], "there is no cluster in"),
        (["kill", "7"], "there is no cluster in"),
        (["up", "--brokers", "0"], "--brokers 0: expected 1 to 32"),
        (["up", "--combined", "8"], "--combined 8: expected 1 to 7"),
        (["up", "--combined", "3", "--controllers", "1"], "option, --combined or --controllers"),
        (["up", "--port", "65533"], "--port 65533: expected 1 to 65530, for 3 nodes"),
        (["up", "--set", "node.id=5"], "--set node.id: this key differs from node to node"),
        (["up", "--set", "controller.quorum.voters=1@a:1"], "this key follows from the nodes of the cluster"),
        (["up", "--set", "num.partitions"], "--set num.partitions: expected KEY=VALUE"),
        (["up", "--set", "num.partition=3"], "did you mean num.partitions?"),
    ],
)
def test_what_is_wrong_is_one_line(desk: Desk, arguments: list[str], said: str) -> None:
    told = desk.says(*arguments, status=2 if arguments[0] == "up" else 1)
    assert told.startswith("kwire: ")
    assert said in told
    assert told.count("\n") == 1


def test_a_folder_that_cannot_be_is_told_of(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    desk.directory = tmp_path / "file" / "cluster"
    told = desk.says("up", status=1)
    assert told == f"kwire: {desk.directory}: Not a directory: choose a writable directory with --dir\n"


def test_a_folder_of_somebody_elses_is_left_alone(desk: Desk) -> None:
    desk.directory.mkdir()
    (desk.directory / "thesis.tex").touch()
    assert "is not empty and has no cluster" in desk.says("up", status=1)
    assert [path.name for path in desk.directory.iterdir()] == ["thesis.tex"]
    (desk.directory / "thesis.tex").unlink()


def test_properties_are_such_as_apache_kafka_takes(desk: Desk) -> None:
    directory = ClusterDirectory(str(desk.directory))
    directory.create(NodeCounts(3), 20_001, {})
    broker = load(str(desk.directory / "node-2.properties"), {}, {})
    assert (broker.node_id, broker.process_roles) == (2, ["broker"])
    assert broker.log_dirs == [str(desk.directory / "node-2")]
    assert broker.default_replication_factor == 3
    assert broker.min_insync_replicas == 2


def test_a_broker_that_is_added_has_a_port_of_its_own(desk: Desk) -> None:
    directory = ClusterDirectory(str(desk.directory))
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


def test_a_cluster_of_the_version_before_goes_on(desk: Desk) -> None:
    """One controller, which all properties name."""
    desk.directory.mkdir()
    (desk.directory / "cluster.id").write_text("4L6g3nShT-eMCtK--X86sw\n")
    first = free_ports(3)
    listeners = {100: f"CONTROLLER://127.0.0.1:{first + 1}", 1: f"PLAINTEXT://127.0.0.1:{first}"}
    for node_id, listener in listeners.items():
        path = desk.directory / f"node-{node_id}.properties"
        path.write_text(
            f"process.roles={'controller' if node_id == 100 else 'broker'}\nnode.id={node_id}\n"
            f"controller.quorum.voters=100@127.0.0.1:{first + 1}\ncontroller.listener.names=CONTROLLER\n"
            f"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={desk.directory / f'node-{node_id}'}\nlisteners={listener}\n"
        )
        format_directories(
            load(str(path), {}, {}),
            RealDisk(),
            random.Random(1),
            0,
            cluster_id="4L6g3nShT-eMCtK--X86sw",
            initial_metadata=InitialMetadata(unserved_feature_levels()),
        )
    assert "has static controller.quorum.voters" in desk.says("up", "--controllers", "3", status=1)
    desk.says("up", "--brokers", "2")
    assert desk.states() == {100: "running", 1: "running", 2: "running"}


def test_a_beginning_that_was_cut_short_goes_on_or_is_removed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ClusterDirectory(str(desk.directory))

    def interrupted(*arguments: Any, **options: Any) -> None:
        format_directories(*arguments, **options)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(cluster_directory, "format_directories", interrupted)
            with pytest.raises(KeyboardInterrupt):
                directory.create(NodeCounts(1), 20_001, {})
        assert "no node in" in desk.says("status", status=1)
    directory.create(NodeCounts(1), 20_001, {})
    assert desk.states() == {100: "stopped", 1: "stopped"}
    desk.says("down")
    assert not desk.directory.exists()
    with monkeypatch.context() as patched:
        patched.setattr(cluster_directory, "format_directories", interrupted)
        with pytest.raises(KeyboardInterrupt):
            directory.create(NodeCounts(1), 20_001, {})
    desk.says("down")
    assert not desk.directory.exists()


def test_a_beginning_that_was_cut_short_at_its_end_is_finished(desk: Desk) -> None:
    """Whoever votes is formatted with the others, and may have run by now."""
    directory = ClusterDirectory(str(desk.directory))
    directory.create(NodeCounts(combined=3), 20_001, {})
    meta = (desk.directory / "node-2" / "meta.properties").read_text()
    (desk.directory / "node-2.properties").rename(desk.directory / "node-2.unfinished")
    assert directory.create(NodeCounts(), None, {}) == []
    assert desk.states() == {1: "stopped", 2: "stopped", 3: "stopped"}
    assert (desk.directory / "node-2" / "meta.properties").read_text() == meta


def test_a_folder_may_hold_a_module_of_the_standard_librarys_name(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy.py").write_text("raise SystemExit('not the standard library')\n")
    monkeypatch.chdir(tmp_path)
    desk.says("up", "--brokers", "1", "--port", str(free_ports(2)))
    assert desk.states() == {100: "running", 1: "running"}
