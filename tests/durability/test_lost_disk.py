"""A broker without its metadata or its last log directory exits with status 1, and says why once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durability.child import ROOT, STOP_SECONDS

SETTINGS = (
    "listeners=PLAINTEXT://127.0.0.1:0",
    "log.flush.offset.checkpoint.interval.ms=50",
)


@pytest.mark.parametrize("names", [("a", "b"), ("a",)])
def test_broker_exits_without_its_metadata_or_last_directory(tmp_path: Path, names: tuple[str, ...]) -> None:
    directories = [tmp_path / name for name in names]
    command = [sys.executable, "-m", "kwire", "serve", "--data", ",".join(map(str, directories))]
    for setting in SETTINGS:
        command += ["--set", setting]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "KWIRE_"))}
    with subprocess.Popen(
        command, cwd=ROOT, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        assert " serves on " in broker.stdout.readline()
        directories[0].rename(tmp_path / "aside")
        directories[0].write_text("no directory any more")
        _, said = broker.communicate(timeout=STOP_SECONDS)
    assert broker.returncode == 1, said
    reasons = [line for line in said.splitlines() if "has failed" in line or "have failed" in line]
    assert len(reasons) == 1, said
    assert " CRITICAL " in reasons[0]
    assert "Not a directory" in reasons[0]
    expected = (
        "the log directory of the metadata log has failed"
        if len(names) > 1
        else "all log directories have failed"
    )
    assert expected in reasons[0]
    assert "Traceback" not in said
