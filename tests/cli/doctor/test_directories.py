"""Data directories, as a doctor sees them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kwire.broker.config import load
from kwire.cli.doctor.directories import filesystem, findings, volume_findings
from kwire.cli.doctor.finding import PROBLEM, Finding
from kwire.testing import Broker

NOW_MS = 1_700_000_000_000
LATE_MS = 4_000_000_000_000


def _found(*paths: Path, now_ms: int = LATE_MS, node_id: int = 1) -> list[Finding]:
    directories = ",".join(map(str, paths))
    return list(findings(load(None, {}, {"log.dirs": directories, "node.id": str(node_id)}), now_ms))


def _problems(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.severity == PROBLEM]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("used")
    with Broker(log_dir=path):
        assert "in use by a running broker" in [one.message for one in _found(path)]
    return path


def test_a_new_directory_is_fine_and_stays_as_it_is(tmp_path: Path) -> None:
    found = _found(tmp_path / "new" / "data")
    assert not _problems(found)
    assert "empty: the first start formats it" in [one.message for one in found]
    assert list(tmp_path.iterdir()) == []


def test_a_used_directory_says_whose_it_is(used: Path) -> None:
    before = sorted(used.iterdir())
    found = _found(used)
    assert not _problems(found)
    assert any("belongs to node 1 of cluster" in one.message for one in found)
    assert not any("in use" in one.message for one in found)
    assert sorted(used.iterdir()) == before


def test_what_keeps_a_broker_from_starting_is_a_problem(used: Path, tmp_path: Path) -> None:
    (other,) = _problems(_found(used, node_id=7))
    assert "belongs to node 1, and node.id is 7" in (other.fix or "")
    (half,) = _problems(_found(used, tmp_path))
    assert "there is no meta.properties" in (half.fix or "")
    (tmp_path / "file").touch()
    assert "is not a directory" in _problems(_found(tmp_path / "file"))[0].message


def test_a_clock_that_was_ahead_is_told(used: Path) -> None:
    assert any("in the future" in one.message for one in _found(used, now_ms=NOW_MS))
    assert not any("in the future" in one.message for one in _found(used))


def test_a_damaged_checkpoint_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n9\n")
    assert any("a checkpoint is corrupt" in one.message for one in _problems(_found(tmp_path)))


def test_rights_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who runs this may be root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert "cannot write" in _problems(_found(tmp_path))[0].message


@pytest.mark.parametrize(
    ("blocks", "free", "inodes", "verdicts"),
    [
        (1000, 500, 10**6, ["ok"]),
        (1000, 50, 10**6, ["warning"]),
        (1000, 0, 10**6, ["problem"]),
        (1000, 500, 5, ["ok", "warning"]),
        (0, 500, 0, ["ok"]),
    ],
)
def test_room(blocks: int, free: int, inodes: int, verdicts: list[str]) -> None:
    volume: Any = SimpleNamespace(f_blocks=blocks, f_frsize=1 << 30, f_bavail=free, f_favail=inodes)
    assert [one.severity for one in volume_findings("x", lambda path: volume)] == verdicts


def test_the_kind_of_a_file_system_is_known() -> None:
    assert filesystem("/proc/self") == "proc"
    assert filesystem("/dev/shm") in ("tmpfs", "")
