"""The README's examples work; only the broker's address is replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import ADDRESS, examples_of, run_pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
TEST, CLIENT = examples_of(ROOT / "README.md")
START = "\n" + 29 * " " + 'auto_offset_reset="earliest", '
"""The argument of the consumer without which the test fails."""
VARIABLE = re.compile(
    r"\d\d:\d\d:\d\d\.\d+|after [\d.]+ ms|-1-[0-9a-f]{8}|kafka-python-[\d.]+\d|"
    r"\d+ (?=ApiVersions|Metadata|Fetch)"
)
"""Matches what differs between two runs of the test."""


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """Start a broker as in the README, on a free port, and yield its address."""
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path), "--log-level", "error"]
    with subprocess.Popen(
        [*command, "--set", "listeners=PLAINTEXT://127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        try:
            found = re.search(r"serves on ([\d.:]+),", broker.stdout.readline())
            assert found
            yield found[1]
        finally:
            broker.terminate()
            assert broker.wait(30) == 0


def test_test_example_has_ten_lines_and_passes(tmp_path: Path) -> None:
    assert len(TEST.splitlines()) <= 10
    result = run_pytest(TEST, tmp_path)
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


def test_report_of_the_failing_test_is_real(tmp_path: Path) -> None:
    assert START in TEST
    result = run_pytest(TEST.replace(START, "\n" + 29 * " "), tmp_path)
    assert "1 failed" in result.stdout
    found = iter(VARIABLE.sub("", result.stdout).splitlines())
    [report] = re.findall(r"^```\n(>  .*?)^```", README, re.DOTALL | re.MULTILINE)
    for line in VARIABLE.sub("", report).splitlines():
        wanted = line.partition("…")[0]
        assert any(text.startswith(wanted) for text in found), wanted


def test_client_example_prints_its_record(bootstrap: str) -> None:
    assert ADDRESS in CLIENT
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT.replace(ADDRESS, bootstrap)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    values = [line.split(" ", 2)[2] for line in ran.stdout.splitlines()]
    assert values == [f"hello {number}" for number in range(10)]
