"""The recipes in docs/recipes work: pages show the files, tests pass, and tests find the wrong programs.

`pytest tests/recipes --rewrite` writes changed files into the pages. The recipes in recipes/frameworks need
more packages: `make recipes` runs them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.recipes.recipe_page import (
    FRAMEWORKS,
    PAGES,
    RECIPES,
    Recipe,
    WrongVersion,
    apply_diff,
    missing_lines,
    recipes,
    run_recipe,
    with_current_files,
)

ALL = {recipe.page.stem: recipe for recipe in recipes()}
WRONG = {
    f"{name}-{number}": (recipe, wrong)
    for name, recipe in ALL.items()
    for number, wrong in enumerate(recipe.wrong, 1)
}


def skip_without_packages(recipe: Recipe) -> None:
    if recipe.needs_frameworks and "RECIPES_PYTHON" not in os.environ:
        pytest.skip("make recipes runs this recipe")


@pytest.mark.parametrize("name", ALL)
def test_page_shows_the_files(name: str, request: pytest.FixtureRequest) -> None:
    page = ALL[name].page
    current = with_current_files(page.read_text())
    if request.config.getoption("--rewrite"):
        page.write_text(current)
    assert page.read_text() == current, "run `make test ARGS='-k recipes --rewrite'`"


def test_each_file_is_on_one_page() -> None:
    shown = [file for recipe in ALL.values() for file in recipe.files]
    assert sorted(shown) == sorted([*RECIPES.glob("*.py"), *FRAMEWORKS.glob("*.py")])


def test_overview_links_each_recipe() -> None:
    links = re.findall(r"\(([a-z-]+)\.md\)", (PAGES / "README.md").read_text())
    assert sorted(links) == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_recipe_passes(name: str, tmp_path: Path) -> None:
    skip_without_packages(ALL[name])
    status, output = run_recipe(ALL[name], tmp_path)
    assert status == 0, output


@pytest.mark.parametrize("name", WRONG)
def test_recipe_fails_with_the_wrong_program(name: str, tmp_path: Path) -> None:
    recipe, wrong = WRONG[name]
    skip_without_packages(recipe)
    status, output = run_recipe(recipe, tmp_path, wrong)
    assert status == 1, output
    assert missing_lines(output, wrong.report) == [], output


# The checks.


def test_diff_changes_the_lines_that_it_names() -> None:
    assert apply_diff("a\nb\nc\n", " a\n-b\n+d\n") == "a\nd\nc\n"
    for code in ("a\n", "a\nb\na\nb\n"):
        with pytest.raises(ValueError, match="times, not once"):
            apply_diff(code, " a\n-b\n+d\n")


def test_lines_that_the_output_does_not_have_are_missing() -> None:
    output = "E  lost 3 records\n12:00:01.5 ! Produce 9 from billing\n"
    assert missing_lines(output, ["E  lost…", "...", "15:34:36.313 ! Produce 9 from billing"]) == []
    assert missing_lines(output, ["E  found…", "E  lost"]) == ["E  found…", "E  lost"]


def test_frameworks_run_only_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(PAGES / "none.md", [FRAMEWORKS / "test_none.py"], [WrongVersion("", [])])
    monkeypatch.delenv("RECIPES_PYTHON", raising=False)
    with pytest.raises(pytest.skip.Exception):
        skip_without_packages(recipe)
