"""Every example in Python of the pages for users runs as it stands, but for the broker's address.

Those for Spark run in interop, where there is one; decisions quote code that goes on elsewhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kwire.testing import Broker

DOCS = Path(__file__).resolve().parent.parent / "docs"
ADDRESS = "127.0.0.1:9092"
EXAMPLES = {
    f"{page.relative_to(DOCS)}:{number}": code
    for page in sorted(DOCS.glob("*.md"))
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
    if "spark" not in code
}


def test_there_are_examples() -> None:
    assert any(name.startswith("start.md") for name in EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    with Broker() as broker:
        code = EXAMPLES[name].replace(ADDRESS, broker.bootstrap_servers)
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
    assert told.returncode == 0, told.stderr
