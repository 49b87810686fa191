"""`kwire logs`, of a broker with two directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.testing import Broker
from tests.cli.running import Desk


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(tmp_path_factory.mktemp(name)) for name in ("one", "two")]


@pytest.fixture(scope="module")
def broker(directories: list[str]) -> Iterator[Broker]:
    with Broker({"log.dirs": ",".join(directories)}) as running:
        yield running


def test_directories_are_told_with_what_lies_in_them(desk: Desk, directories: list[str]) -> None:
    desk("produce", "lies", "x" * 2000)
    rows = desk("logs", "list", "--json").json
    assert {row["directory"] for row in rows} == set(directories)
    assert {(row["broker"], row["state"]) for row in rows} == {(1, "online")}
    assert all(0 < row["free"] <= row["disk"] for row in rows)
    assert sum(row["partitions"] for row in rows) == 1
    (told,) = desk("logs", "describe", "li*", "--json").json
    assert (
        told["topic"],
        told["partition"],
        told["broker"],
        told["lag"],
    ) == ("lies", 0, 1, 0)
    assert told["size"] > 2000
    assert desk("logs", "describe", "li*").out.splitlines()[1].split()[:3] == ["lies", "0", "1"]
    assert "GiB" in desk("logs", "list").out


def test_a_replica_is_moved(desk: Desk, directories: list[str]) -> None:
    desk("produce", "moves", "x")
    (before,) = desk("logs", "describe", "moves", "--json").json
    (other,) = set(directories) - {before["directory"]}
    assert "moving " in desk("logs", "move", "moves", "--partition", "0", "--broker", "1", "--to", other).out
    for _ in range(200):
        rows = desk("logs", "describe", "moves", "--json").json
        if [row["directory"] for row in rows] == [other]:
            break
    assert [(row["directory"], row["moving_here"]) for row in rows] == [(other, False)]
    again = ("logs", "move", "moves", "--partition", "0", "--broker", "1", "--to", other)
    assert desk(*again).out == f"moves-0 is already in {other}\n"
    assert desk(*again, "--json").json == [
        {"topic": "moves", "partition": 0, "broker": 1, "to": other, "moving": False}
    ]
    assert (Path(other) / "moves-0").is_dir()


def test_what_is_wrong_is_one_sentence(desk: Desk, directories: list[str]) -> None:
    desk("produce", "stays", "x")
    assert "the cluster has 1" in desk("logs", "list", "--broker", "4").sentence
    assert "there is no topic 'stay', did you mean 'stays'?" in desk("logs", "describe", "stay").sentence
    move = ("logs", "move", "stays", "--partition", "0")
    assert "the cluster has 1" in desk(*move, "--broker", "4", "--to", "x").sentence
    assert "kwire logs list" in desk(*move, "--broker", "1", "--to", "/nowhere").sentence
    missing = desk("logs", "move", "stays", "--partition", "9", "--broker", "1", "--to", directories[0])
    assert "broker 1 has no replica of stays-9" in missing.sentence
