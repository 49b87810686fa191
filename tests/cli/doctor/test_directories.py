"""Findings of `kwire doctor` about log directories."""

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


def _findings_of(*paths: Path, now_ms: int = LATE_MS, node_id: int = 1) -> list[Finding]:
    directories = ",".join(map(str, paths))
    return list(findings(load(None, {}, {"log.dirs": directories, "node.id": str(node_id)}), now_ms))


def _problems(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.severity == PROBLEM]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("used")
    with Broker(log_dir=path):
        assert "in use by a running broker" in [one.message for one in _findings_of(path)]
    return path


def test_new_directory_has_no_problems_and_is_not_created(tmp_path: Path) -> None:
    found = _findings_of(tmp_path / "new" / "data")
    assert not _problems(found)
    assert "empty: the first start formats it" in [one.message for one in found]
    assert list(tmp_path.iterdir()) == []


def test_used_directory_names_its_node_and_cluster(used: Path) -> None:
    before = sorted(used.iterdir())
    found = _findings_of(used)
    assert not _problems(found)
    assert any("belongs to node 1 of cluster" in one.message for one in found)
    assert not any("in use" in one.message for one in found)
    assert sorted(used.iterdir()) == before


def test_directory_that_prevents_a_start_is_a_problem(used: Path, tmp_path: Path) -> None:
    (other,) = _problems(_findings_of(used, node_id=7))
    assert "belongs to node 1, and node.id is 7" in (other.fix or "")
    (half,) = _problems(_findings_of(used, tmp_path))
    assert "there is no meta.properties" in (half.fix or "")
    (tmp_path / "file").touch()
    assert "is not a directory" in _problems(_findings_of(tmp_path / "file"))[0].message


def test_files_from_the_future_are_reported(used: Path) -> None:
    assert any("in the future" in one.message for one in _findings_of(used, now_ms=NOW_MS))
    assert not any("in the future" in one.message for one in _findings_of(used))


def test_corrupt_checkpoint_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n9\n")
    assert any("a checkpoint is corrupt" in one.message for one in _problems(_findings_of(tmp_path)))


def test_missing_write_permission_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, which can write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    findings = _findings_of(tmp_path)
    found = _problems(findings)[0]
    assert "cannot write" in found.message
    assert "chown" in (found.fix or "")
    assert not any("the first start" in one.message for one in findings)


def test_read_only_file_system_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    real, flags = os.statvfs, {"f_flag": os.ST_RDONLY}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**flags, f_frsize=real(path).f_frsize))
    assert "not read-only" in (_problems(_findings_of(tmp_path))[0].fix or "")


def test_directory_in_which_no_file_can_be_created_is_one_problem() -> None:
    """Even root cannot create files in /sys, although the system says that root may."""
    if not Path("/sys/kernel").exists():
        pytest.skip("this system has no /sys")
    found = _findings_of(Path("/sys/kernel/data"))
    (only,) = _problems(found)
    assert "choose another directory" in (only.fix or "") or os.geteuid() != 0
    assert not any("the first start" in one.message for one in found)


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
def test_free_space_and_inodes(blocks: int, free: int, inodes: int, verdicts: list[str]) -> None:
    volume: Any = SimpleNamespace(f_blocks=blocks, f_frsize=1 << 30, f_bavail=free, f_favail=inodes)
    assert [one.severity for one in volume_findings("x", lambda path: volume)] == verdicts


@pytest.mark.linux("/proc/self/mounts")
def test_filesystem_type_is_known() -> None:
    assert filesystem("/proc/self") == "proc"
    assert filesystem("/dev/shm") in ("tmpfs", "")
