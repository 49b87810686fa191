"""The parts of `kwire pipeline` that do not need Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from kwire.cli.main import main
from kwire.pipeline import cli, connectivity
from kwire.pipeline.config import FAILED
from kwire.pipeline.segments.files import SegmentsError


def test_help_lists_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert all(job in output for job in cli.JOBS)


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.NEEDED, "no_such_module", "no-such-package")
    assert main(["pipeline", "audit", "--config", "job.toml"]) == FAILED
    errors = capsys.readouterr().err
    assert "no-such-package; run pip install 'kwire[spark]'" in errors
    assert errors.count("\n") == 1


def test_an_unknown_key_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "NEEDED", {})
    config = tmp_path / "job.toml"
    config.write_text("[replay]\nspeeed = 3\n")
    assert main(["pipeline", "replay", "--config", str(config)]) == FAILED
    assert capsys.readouterr().err == (
        "kwire pipeline: unknown key replay.speeed; the keys of replay: client, job, limit, partitions, "
        "speed, topic\n"
    )


def test_a_misspelled_table_is_reported_before_the_job_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "NEEDED", {})
    config = tmp_path / "job.toml"
    config.write_text("[archive]\n[input]\n[value]\n")
    assert main(["pipeline", "archive", "--config", str(config)]) == FAILED
    assert capsys.readouterr().err == ("kwire pipeline: unknown table [value]: did you mean [values]?\n")


def test_an_unreachable_cluster_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "NEEDED", {})
    monkeypatch.setattr(connectivity.check_reachable, "__defaults__", (0.1,))
    config = tmp_path / "job.toml"
    config.write_text('[input.options]\n"kafka.bootstrap.servers" = "127.0.0.1:1"\n')
    assert main(["pipeline", "archive", "--config", str(config)]) == FAILED
    errors = capsys.readouterr().err
    assert errors.startswith("kwire pipeline: cannot connect to 127.0.0.1:1: check input.options.")
    assert errors.count("\n") == 1


def test_a_task_error_is_extracted_from_spark_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError(
            "Job aborted.\n  File x, line 3\npipeline.segments.scan.CorruptSegment: a.log is torn\n at org.x"
        )

    monkeypatch.setattr(cli, "NEEDED", {})
    job = ModuleType("job")
    monkeypatch.setitem(sys.modules, "job", job)
    monkeypatch.setitem(cli.JOBS, "audit", cli.Job("fails", "job"))
    monkeypatch.setattr(job, "command", fail, raising=False)
    config = tmp_path / "job.toml"
    config.write_text("")
    assert main(["pipeline", "audit", "--config", str(config)]) == FAILED
    assert capsys.readouterr().err == "kwire pipeline: a.log is torn\n"

    def fail_here(*_: object) -> int:
        raise SegmentsError("there is not a directory /x")

    monkeypatch.setattr(job, "command", fail_here)
    assert main(["pipeline", "audit", "--config", str(config)]) == FAILED
    assert capsys.readouterr().err == "kwire pipeline: there is not a directory /x\n"

    def fail_below(*_: object) -> int:
        (config / "x").mkdir()
        return 0

    monkeypatch.setattr(job, "command", fail_below)
    assert main(["pipeline", "audit", "--config", str(config)]) == FAILED
    assert capsys.readouterr().err == f"kwire pipeline: {config}/x: Not a directory\n"
