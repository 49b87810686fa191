"""`kwire logs`, with a broker that has two log directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.testing import Broker
from tests.cli.run_command import RunCommand


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(tmp_path_factory.mktemp(name)) for name in ("one", "two")]


@pytest.fixture(scope="module")
def broker(directories: list[str]) -> Iterator[Broker]:
    with Broker({"log.dirs": ",".join(directories)}) as running:
        yield running


def test_list_and_describe_show_log_directories_and_replicas(run: RunCommand, directories: list[str]) -> None:
    run("produce", "lies", "x" * 2000)
    rows = run("logs", "list", "--json").json
    assert {row["directory"] for row in rows} == set(directories)
    assert {(row["broker"], row["state"]) for row in rows} == {(1, "online")}
    assert all(0 < row["free"] <= row["disk"] for row in rows)
    assert sum(row["partitions"] for row in rows) == 1
    (described,) = run("logs", "describe", "li*", "--json").json
    assert (
        described["topic"],
        described["partition"],
        described["broker"],
        described["lag"],
    ) == ("lies", 0, 1, 0)
    assert described["size"] > 2000
    assert run("logs", "describe", "li*").out.splitlines()[1].split()[:3] == ["lies", "0", "1"]
    assert "GiB" in run("logs", "list").out


def test_move_changes_the_log_directory_of_a_replica(run: RunCommand, directories: list[str]) -> None:
    run("produce", "moves", "x")
    (before,) = run("logs", "describe", "moves", "--json").json
    (other,) = set(directories) - {before["directory"]}
    assert "moving " in run("logs", "move", "moves", "--partition", "0", "--broker", "1", "--to", other).out
    for _ in range(200):
        rows = run("logs", "describe", "moves", "--json").json
        if [row["directory"] for row in rows] == [other]:
            break
    assert [(row["directory"], row["moving_here"]) for row in rows] == [(other, False)]
    again = ("logs", "move", "moves", "--partition", "0", "--broker", "1", "--to", other)
    assert run(*again).out == f"moves-0 is already in {other}\n"
    assert run(*again, "--json").json == [
        {"topic": "moves", "partition": 0, "broker": 1, "to": other, "moving": False}
    ]
    assert (Path(other) / "moves-0").is_dir()


def test_logs_errors_are_one_sentence(run: RunCommand, directories: list[str]) -> None:
    run("produce", "stays", "x")
    assert "the cluster has 1" in run("logs", "list", "--broker", "4").sentence
    assert (
        "there is no topic 'stay', or this user may not describe it, did you mean 'stays'?"
        in run("logs", "describe", "stay").sentence
    )
    move = ("logs", "move", "stays", "--partition", "0")
    assert "the cluster has 1" in run(*move, "--broker", "4", "--to", "x").sentence
    assert "kwire logs list" in run(*move, "--broker", "1", "--to", "/nowhere").sentence
    missing = run("logs", "move", "stays", "--partition", "9", "--broker", "1", "--to", directories[0])
    assert "broker 1 has no replica of stays-9" in missing.sentence
