"""A page in docs/recipes: a program, its test, wrong versions of the program, and reports of failures.

A page has these blocks of code:

- ```` ```python title="NAME" ```` shows the complete file NAME of recipes/ or recipes/frameworks/.
- ```` ```diff ```` changes a program above it into a wrong version. Its lines without `+` must occur once.
- ```` ``` ```` after a diff has lines of pytest's report for the wrong version, in order. The report has a
  line that starts with the text before `…`. A line `...` stands for omitted lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "recipes"
RECIPES = ROOT / "recipes"
FRAMEWORKS = RECIPES / "frameworks"
"""The recipes that need the packages of requirements/recipes.lock."""
SHOWN = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
WRONG = re.compile(r"^```diff\n(.*?)^```$(?:((?:(?!^```).)*?)^```\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
VARIABLE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d+")
"""Matches what may differ between two runs of a test: UUIDs, and numbers, such as times and offsets."""


class WrongVersion(NamedTuple):
    """A change of a program that its test must find, and lines of the report."""

    diff: str
    report: list[str]


class Recipe(NamedTuple):
    """A page, and the files that it shows: the test, and one or more other files."""

    page: Path
    files: list[Path]
    wrong: list[WrongVersion]

    @property
    def test(self) -> Path:
        """The file with the tests."""
        [found] = [file for file in self.files if file.name.startswith("test_")]
        return found

    @property
    def needs_frameworks(self) -> bool:
        """Whether the recipe needs packages that the development environment does not have."""
        return self.test.parent == FRAMEWORKS


def read_recipe(page: Path) -> Recipe:
    """Return the recipe on a page."""
    text = page.read_text()
    files = [_find(name) for name, _ in SHOWN.findall(text)]
    wrong = [WrongVersion(diff, report.splitlines()) for diff, _, report in WRONG.findall(text)]
    return Recipe(page, files, wrong)


def recipes() -> list[Recipe]:
    """Return the recipes of all pages except the overview."""
    return [read_recipe(page) for page in sorted(PAGES.glob("*.md")) if page.name != "README.md"]


def with_current_files(text: str) -> str:
    """Return the text of a page with the current content of the files that it shows."""
    return SHOWN.sub(lambda block: f'```python title="{block[1]}"\n{_find(block[1]).read_text()}```', text)


def _find(name: str) -> Path:
    return next((path for path in (RECIPES / name, FRAMEWORKS / name) if path.exists()), RECIPES / name)


def apply_diff(code: str, diff: str) -> str:
    """Return a program with a change. Raises ValueError unless the lines to change are in it exactly once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] != "+")
    after = "".join(line[1:] for line in lines if line[0] != "-")
    if code.count(before) != 1:
        raise ValueError(f"the program has these lines {code.count(before)} times, not once:\n{before}")
    return code.replace(before, after)


def skip_without_packages(recipe: Recipe) -> None:
    """Skip the test if the recipe needs packages that are not installed."""
    if recipe.needs_frameworks and "RECIPES_PYTHON" not in os.environ:
        pytest.skip("make recipes runs this recipe")


def run_recipes(recipes: list[Recipe], directory: Path, wrong: WrongVersion | None = None) -> tuple[int, str]:
    """Run the tests in a copy of the recipes, until one fails. Return the exit status and the output.

    With `wrong`, one of the programs is changed. The tests have only the fixtures of kwire. `RECIPES_PYTHON`
    is the Python with the packages of frameworks.
    """
    files = [file for recipe in recipes for file in recipe.files]
    for file in files:
        shutil.copy(file, directory)
    if wrong is not None:
        changed = [file for file in files if _can_change(file, wrong)]
        assert len(changed) == 1, f"no file, or several, have the lines of\n{wrong.diff}"
        (directory / changed[0].name).write_text(apply_diff(changed[0].read_text(), wrong.diff))
    needs_frameworks = any(recipe.needs_frameworks for recipe in recipes)
    python = os.environ["RECIPES_PYTHON"] if needs_frameworks else sys.executable
    options = ["-q", "-x", "-p", "kwire.testing.plugin", "-p", "no:cacheprovider", "--basetemp=data"]
    result = subprocess.run(
        [python, "-m", "pytest", *options],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
    )
    return result.returncode, result.stdout + result.stderr


def _can_change(file: Path, wrong: WrongVersion) -> bool:
    try:
        apply_diff(file.read_text(), wrong.diff)
    except ValueError:
        return False
    return True


def missing_lines(output: str, report: list[str]) -> list[str]:
    """Return the lines of a report that the output does not have, in order. Numbers and UUIDs may differ."""
    remaining = iter(VARIABLE.sub("", output).splitlines())
    missing = []
    for line in report:
        wanted, cut, _ = VARIABLE.sub("", line).partition("…")
        if line == "..." or any(text.startswith(wanted) if cut else text == wanted for text in remaining):
            continue
        missing.append(line)
        remaining = iter(VARIABLE.sub("", output).splitlines())
    return missing
