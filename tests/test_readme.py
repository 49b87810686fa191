"""The README's examples do what it says: each is run as it stands, but for the broker's address."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import told_by_pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ADDRESS = "127.0.0.1:9092"
EXAMPLES = {
    title: code
    for title, code in re.findall(
        r"^\*\*([\w-]+)\*\*.*?^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
    )
    if "pyspark" not in code  # in interop, where there is a Spark
}


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """The address of a broker that was started as the README says, on a free port."""
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


def test_the_readme_has_an_example_for_every_client() -> None:
    assert EXAMPLES.keys() == {"kafka-python", "aiokafka", "confluent-kafka"}
    assert all(ADDRESS in code for code in EXAMPLES.values())


def test_the_example_of_a_test_runs() -> None:
    [code] = [
        code
        for code in re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
        if "kwire.testing" in code
    ]
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "offset=0" in told.stdout


def test_the_examples_for_pytest_pass(tmp_path: Path) -> None:
    found = [
        code
        for code in re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
        if "def test_" in code
    ]
    for number, code in enumerate(found):
        place = tmp_path / str(number)
        place.mkdir()
        told = told_by_pytest(code, place)
        assert told.returncode == 0, told.stdout
    assert len(found) == 2, "the test of ten lines, and that of a program"


@pytest.mark.parametrize("client", EXAMPLES)
def test_an_example_prints_what_it_sent(client: str, bootstrap: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", EXAMPLES[client].replace(ADDRESS, bootstrap)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stdout
