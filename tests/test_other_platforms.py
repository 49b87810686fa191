"""On systems other than Linux and macOS, everything that needs a broker ends with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kwire.host.platform import SENTENCE

ROOT = Path(__file__).parent.parent
PROGRAM = [sys.executable, "-m", "tests.other_platform"]

SERVE = "import sys; from kwire.cli.main import main; sys.exit(main(['serve', '--data', sys.argv[1]]))"
UP = "import sys; from kwire.cli.main import main; sys.exit(main(['cluster', 'up', '--dir', sys.argv[1]]))"
SUITE = """\
import pytest
from kwire.testing import Broker, Cluster, Record, SimulatedCluster

def test_without_kwire():
    pass

def test_with_the_broker(kwire):
    pass

def test_with_a_cluster(kwire_cluster):
    pass

@pytest.mark.kwire_simulation(seeds=1)
def test_with_a_simulation(kwire_simulation):
    pass
"""


@pytest.fixture(params=["freebsd14", "win32"])
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _run(platform: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, platform, program, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("program", [SERVE, UP], ids=["serve", "cluster up"])
def test_commands_that_start_a_broker_end_with_the_sentence(
    platform: str, program: str, tmp_path: Path
) -> None:
    ran = _run(platform, program, str(tmp_path / "data"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"kwire: {SENTENCE}\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("call", ["Broker()", "Broker(process='child')", "Cluster()", "SimulatedCluster(1)"])
def test_classes_raise_the_sentence(platform: str, call: str) -> None:
    name = call.partition("(")[0]
    ran = _run(platform, f"from kwire.testing import {name}; {call}")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith(f"UnsupportedPlatform: {SENTENCE}")


def test_plugin_loads_and_fails_only_the_tests_that_request_a_fixture(platform: str, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    plugins = ("-p", "no:cacheprovider", "-p", "kwire.testing.plugin")
    ran = _run(platform, program, "-q", *plugins, "--rootdir", str(tmp_path), str(tmp_path))
    assert "1 passed, 3 errors" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count(f"\n{SENTENCE}\n") == 3
