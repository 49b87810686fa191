"""The annotations of `kwire.testing`, as a user's type checker and tests see them.

`make pyright` checks the same suite with pyright, which needs Node.js.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("typed_suite.py")
TOOLS = [
    ["mypy", "--strict", "--cache-dir", ".cache"],
    ["pytest", "-q", "-p", "kwire.testing.plugin", "-p", "no:cacheprovider"],
]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool[0])
def test_annotated_suite_is_valid(tool: list[str], tmp_path: Path) -> None:
    """The suite is clean, and each comment `type: ignore` in it hides an error: a typo in a name."""
    (tmp_path / "test_suite.py").write_text(SUITE.read_text())
    result = subprocess.run(
        [sys.executable, "-m", *tool, "test_suite.py"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
