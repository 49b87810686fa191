"""The tests of the recipes find the wrong programs in docs/recipes, and the shown reports are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.recipe_page import (
    apply_diff,
    missing_lines,
    recipes,
    run_recipes,
    skip_without_packages,
)

WRONG = {
    f"{recipe.page.stem}-{number}": (recipe, wrong)
    for recipe in recipes()
    for number, wrong in enumerate(recipe.wrong, 1)
}


@pytest.mark.parametrize("name", WRONG)
def test_recipe_fails_with_the_wrong_program(name: str, tmp_path: Path) -> None:
    recipe, wrong = WRONG[name]
    skip_without_packages(recipe)
    status, output = run_recipes([recipe], tmp_path, wrong)
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
