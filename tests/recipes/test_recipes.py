"""The pages in docs/recipes show the files of the recipes, and the tests of the recipes pass.

`pytest tests/recipes --rewrite` writes changed files into the pages. The recipes in recipes/frameworks need
more packages: `make recipes` runs them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recipes.recipe_page import (
    FRAMEWORKS,
    PAGES,
    RECIPES,
    Recipe,
    WrongVersion,
    recipes,
    run_recipes,
    skip_without_packages,
    with_current_files,
)

ALL = {recipe.page.stem: recipe for recipe in recipes()}


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


def test_recipes_of_clients_pass(tmp_path: Path) -> None:
    recipes = [recipe for recipe in ALL.values() if not recipe.needs_frameworks]
    status, output = run_recipes(recipes, tmp_path)
    assert status == 0, output


@pytest.mark.parametrize("name", [name for name, recipe in ALL.items() if recipe.needs_frameworks])
def test_recipe_of_a_framework_passes(name: str, tmp_path: Path) -> None:
    skip_without_packages(ALL[name])
    status, output = run_recipes([ALL[name]], tmp_path)
    assert status == 0, output


def test_frameworks_run_only_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(PAGES / "none.md", [FRAMEWORKS / "test_none.py"], [WrongVersion("", [])])
    monkeypatch.delenv("RECIPES_PYTHON", raising=False)
    with pytest.raises(pytest.skip.Exception):
        skip_without_packages(recipe)
